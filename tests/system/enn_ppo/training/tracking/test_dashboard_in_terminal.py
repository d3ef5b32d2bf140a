"""A training in a pseudo-terminal: the dashboard, a change of size, Ctrl-C, and what is left of the terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from tests.processes import ROOT

DASHBOARD = r"[^\r\n]*\d+%[^\r\n]*━[^\r\n]*"  # its line with the bar
#: Makes standard input the terminal that Ctrl-C and changes of size come from, and becomes the command.
LAUNCH = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
TRAIN = (
    "-m enn_ppo.train env=custom env.id=tests.enn_ppo.worlds:Copycat rollout.num_envs=4 rollout.steps=8 optim.batch_size=16 "
    "net.d_model=16 net.n_layer=1 net.n_head=2 net.backend=reference total_timesteps=100000000 device=cpu"
).split()


@pytest.mark.slow
def test_ctrl_c_leaves_the_terminal_whole(tmp_path: Path) -> None:
    main, side = pty.openpty()
    # pytest's workers have a size of the terminal in their environment
    inherited = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
    process = subprocess.Popen(
        [sys.executable, "-c", LAUNCH, sys.executable, *TRAIN, f"run_dir={tmp_path / 'run'}"],
        cwd=ROOT,
        env=inherited | {"TERM": "xterm-256color", "PYTHONPATH": str(ROOT)},
        stdin=side,
        stdout=side,
        stderr=side,
        start_new_session=True,
    )
    output = b""

    def resize(rows: int, columns: int) -> None:
        fcntl.ioctl(main, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read_until(pattern: str, start: int = 0) -> None:
        """Read until the output after `start` matches."""
        nonlocal output
        deadline = time.monotonic() + 120
        while not re.search(pattern, output[start:].decode(errors="replace"), re.S):
            assert time.monotonic() < deadline, output[-2000:]
            if select.select([main], [], [], 1.0)[0]:
                output += os.read(main, 65536)

    try:
        resize(24, 80)
        settings = termios.tcgetattr(main)
        read_until(rf"{DASHBOARD}.*{DASHBOARD}")
        assert b"\x1b[3" in output
        begun = len(output)
        resize(10, 40)
        read_until(rf"{DASHBOARD}.*{DASHBOARD}", begun)
        os.write(main, b"\x03")
        read_until(r"Ctrl-C: finishing this update", begun)
        read_until(r"go on with resume=\S*run\r\n", begun)
        assert process.wait(60) == 128 + signal.SIGINT
        assert termios.tcgetattr(main) == settings
        assert re.findall(rb"\x1b\[\?25[lh]", output)[-1] == b"\x1b[?25h" and b"?1049h" not in output
        assert output.endswith(b"\n")
    finally:
        process.kill()
        process.wait()
        os.close(side)
        os.close(main)
