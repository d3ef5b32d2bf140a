"""A world that hangs in a worker process is named, and one that cannot be interrupted ends the trainer's process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from enn_ppo.checkpoints import load_checkpoint
from tests.enn_ppo.training.test_hanging_worlds import Stuck, assert_hangs_and_goes_on


@pytest.fixture(autouse=True)
def no_steps() -> None:
    Stuck.num_steps = 0


SCRIPT = """
import sys
from pathlib import Path
from enn_ppo import train
from enn_ppo.training import watchdog
from tests.enn_ppo.training.test_hanging_worlds import Stuck, stuck

watchdog.GRACE = 0.5
train(stuck(Path(sys.argv[1]), at=99, ignores_signals=True), env=Stuck)
"""


def test_a_worker_process_that_hangs_ends_the_run_with_a_checkpoint_of_the_last_update(tmp_path: Path) -> None:
    who = r"worker 0 \(environments 0 to 3, process \d+\)"
    assert_hangs_and_goes_on(tmp_path / "run", {"num_processes": 1}, who)


def test_a_world_that_cannot_be_interrupted_ends_the_process(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, tmp_path / "run"],
        cwd=Path(__file__).parents[4],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 1
    assert (
        "Stuck (environment 2) has not answered for env.timeout=0.5 seconds, and cannot be interrupted" in ended.stderr
    )
    assert load_checkpoint(tmp_path / "run").step == 0
