"""A training in a pseudo-terminal: the dashboard, a change of size, Ctrl-C, and what is left of the terminal."""

from __future__ import annotations

import codecs
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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[5]
DASHBOARD = r"[^\r\n]*\d+%[^\r\n]*━[^\r\n]*"  # its line with the bar
SEQUENCES = re.compile(r"\x1b\[\??[\d;]*[a-zA-Z]")
#: Makes standard input the terminal that Ctrl-C and changes of size come from, and becomes the command.
LAUNCH = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
TRAIN = (
    "-m enn_ppo.train env=custom env.id=tests.enn_ppo.worlds:Copycat rollout.num_envs=4 rollout.steps=8 optim.batch_size=16 "
    "net.d_model=16 net.n_layer=1 net.n_head=2 net.backend=reference total_timesteps=100000000 device=cpu"
).split()

pytestmark = pytest.mark.slow


class Training:
    """A training whose standard streams are a pseudo-terminal.

    Attributes:
        output: everything that it has written.
    """

    def __init__(self, main: int, process: subprocess.Popen[bytes]) -> None:
        self.main, self.process, self.output = main, process, ""
        # a read may end within a character, and the echo of Ctrl-C may come within one
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def read_until(self, pattern: str, start: int = 0, seconds: float = 120.0) -> None:
        """Read until the output after `start` matches."""
        deadline = time.monotonic() + seconds
        while not re.search(pattern, self.output[start:], re.S):
            assert time.monotonic() < deadline, self.output[-2000:]
            if not select.select([self.main], [], [], 1.0)[0]:
                continue
            try:
                self.output += self._decode(os.read(self.main, 65536))
            except OSError as error:  # the other side is closed
                raise AssertionError(self.output[-2000:]) from error

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.main, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


@contextmanager
def training(
    rows: int, columns: int, run_dir: Path, environment: Mapping[str, str], *settings: str
) -> Iterator[Training]:
    main, side = pty.openpty()
    fcntl.ioctl(main, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    command = [sys.executable, "-c", LAUNCH, sys.executable, *TRAIN, f"run_dir={run_dir}", *settings]
    # pytest's workers have a size of the terminal in their environment
    inherited = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=inherited | {"TERM": "xterm-256color", "PYTHONPATH": str(ROOT)} | dict(environment),
        stdin=side,
        stdout=side,
        stderr=side,
        start_new_session=True,
    )
    try:
        yield Training(main, process)
    finally:
        process.kill()
        process.wait()
        os.close(side)
        os.close(main)


def test_ctrl_c_leaves_the_terminal_whole(tmp_path: Path) -> None:
    with training(24, 80, tmp_path / "run", {}) as run:
        settings = termios.tcgetattr(run.main)
        run.read_until(rf"{DASHBOARD}.*{DASHBOARD}")
        assert "\x1b[3" in run.output
        begun = len(run.output)
        run.resize(10, 40)
        run.read_until(rf"{DASHBOARD}.*{DASHBOARD}", begun)
        os.write(run.main, b"\x03")
        run.read_until(r"Ctrl-C: finishing this update", begun)
        run.read_until(r"go on with resume=\S*run\r\n", begun)
        assert run.process.wait(60) == 128 + signal.SIGINT
        assert termios.tcgetattr(run.main) == settings
        assert re.findall(r"\x1b\[\?25[lh]", run.output)[-1] == "\x1b[?25h" and "?1049h" not in run.output
        assert run.output.endswith("\n")


def test_it_fits_into_a_narrow_terminal_and_no_color_is_heeded(tmp_path: Path) -> None:
    with training(10, 40, tmp_path / "run", {"NO_COLOR": "1"}, "total_timesteps=9600") as run:
        run.read_until(r"done: [^\n]*\n")
        assert run.process.wait(60) == 0
        drawn = re.findall(DASHBOARD, run.output)
        assert drawn and all(len(SEQUENCES.sub("", line)) <= 40 for line in drawn)
        assert "100% ━" in SEQUENCES.sub("", drawn[-1])
        assert not re.search(r"\x1b\[(?:\d+;)*(?:3|9)\dm", run.output)
