"""The policy server as a command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from enn_ppo.checkpoints import Checkpoint, save_policy
from tests.enn_ppo.served import Client, garden, train_garden


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return train_garden(tmp_path_factory.mktemp("garden"))


def test_the_command_serves_an_exported_file_until_it_is_interrupted(checkpoint: Checkpoint, tmp_path: Path) -> None:
    file = save_policy(checkpoint.path, tmp_path / "garden.safetensors")
    command = [sys.executable, "-m", "enn_ppo.serve", f"checkpoint={file}", "port=0", "device=cpu"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        first = process.stdout.readline()
        assert "; Ctrl-C ends it" in first, process.stderr.read()
        client = Client(int(first.partition("127.0.0.1:")[2].partition(";")[0]), {})
        assert client.ask(garden())["type"] == "actions"
        os.kill(process.pid, signal.SIGINT)
        said, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")
    assert "served 1 decisions in 1 batches to 1 clients; refused 0, dropped 0 slow and 0 broken ones" in said
