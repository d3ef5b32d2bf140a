"""Kernels are more than the interpreter asks for: Triton's compiler takes them too, for a GPU that need not be there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton.backends.nvidia")

ROOT = Path(__file__).parents[4]
SHARED_MEMORY = 99 * 1024  # bytes that a program may have, on the GPUs since 2020 that have least of it


@pytest.mark.slow
def test_every_kernel_compiles_and_fits_into_shared_memory(tmp_path: Path) -> None:
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.system.rogue_net.cuda.compile_kernels"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert len(lines) == 8  # forward and backward, without relative positions and with them, each twice
    assert {precision for _, precision, _ in lines} == {"ieee", "tf32", "rounded"}
    assert [line for line in lines if int(line[2]) > SHARED_MEMORY] == []
