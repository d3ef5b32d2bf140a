"""A recording whose process is killed while it writes a chunk."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from enn_ppo.training.recording import read_all
from tests.enn_ppo.recordings import Menagerie, assert_same_frames, files_of, record

REPOSITORY = Path(__file__).parents[4]

KILLED = """
import os, signal, sys
from pathlib import Path
from enn_ppo.training import files
from tests.enn_ppo.recordings import Menagerie, collector_of, recorder_for

collector = collector_of(Menagerie, 3)
collector.recorder = recorder_for(Path(sys.argv[1]), Menagerie())
for number in range(2):
    collector.seed_noise(number)
    collector.collect(5)

def write_half(path, data, mode=0o666):
    path.write_bytes(data[: len(data) // 2])
    os.kill(os.getpid(), signal.SIGKILL)

files.write_file = write_half
collector.collect(5)
"""


def test_a_recording_killed_in_the_middle_of_a_chunk_has_whole_chunks(tmp_path: Path) -> None:
    path, whole = tmp_path / "killed", tmp_path / "whole"
    record(whole, Menagerie)
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, path], env=environment, cwd=REPOSITORY, timeout=120, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    assert files_of(path).items() > files_of(whole).items()  # and what is half written, under a hidden name
    assert_same_frames(read_all(path), read_all(whole))
