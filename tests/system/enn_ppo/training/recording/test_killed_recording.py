"""A recording whose process is killed in the middle of a chunk."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from enn_ppo.training.recording.reading import read_all
from tests.enn_ppo.recordings import (
    Menagerie,
    assert_same_frames,
    record,
)

REPOSITORY = Path(__file__).parents[5]


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.enn_ppo.recordings import Menagerie, collector_of, recorder_for

collector = collector_of(Menagerie, 3)
collector.recorder = recorder_for(Path(sys.argv[1]), Menagerie())
for number in range(2):
    collector.seed_noise(number)
    collector.collect(5)

def write_half(file, data):
    really_write(file, data[: len(data) // 2])
    os.kill(os.getpid(), signal.SIGKILL)

really_write, os.write = os.write, write_half
collector.collect(5)
"""


def test_a_recording_killed_in_the_middle_of_a_chunk_reads_up_to_the_last_whole_one_and_goes_on(tmp_path: Path) -> None:
    path, whole = tmp_path / "killed.arrow", tmp_path / "whole.arrow"
    record(whole, Menagerie)
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, path], env=environment, cwd=REPOSITORY, timeout=120, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    torn = path.stat().st_size - whole.stat().st_size
    assert torn > 100

    left_out = f"killed.arrow: the last {torn:,} bytes begin with a chunk that is damaged or cut short"
    with pytest.warns(UserWarning, match=left_out):
        assert_same_frames(read_all(path), read_all(whole))
    taken = int(read_all(whole).episode.max())
    record(path, Menagerie)
    frames = read_all(path)  # without a warning
    assert len(frames) == 60
    assert_same_frames(frames.gather(torch.arange(30)), read_all(whole))
    assert int(frames.episode[30:].min()) == taken + 1
