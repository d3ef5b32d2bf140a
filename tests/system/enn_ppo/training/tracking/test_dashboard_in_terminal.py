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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[5]
DRAWING = r"\x1b\[\?2026h.*?\x1b\[\?2026l"
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

    def read_until(self, pattern: str, start: int = 0, seconds: float = 120.0) -> None:
        """Read until the output after `start` matches."""
        deadline = time.monotonic() + seconds
        while not re.search(pattern, self.output[start:], re.S):
            assert time.monotonic() < deadline, self.output[-2000:]
            if not select.select([self.main], [], [], 1.0)[0]:
                continue
            try:
                self.output += os.read(self.main, 65536).decode()
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
    inherited = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
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


def drawings(output: str) -> list[list[str]]:
    """The lines of each drawing of the dashboard, without sequences and without messages above it."""
    found = []
    for drawing in re.findall(r"\x1b\[\?2026h(.*?)\x1b\[\?2026l", output, re.S):
        lines = SEQUENCES.sub("", drawing).replace("\r", "").splitlines()
        found.append(lines[next(i for i, line in enumerate(lines) if "Copycat" in line and "/run" in line) :])
    return found


def test_it_is_drawn_redrawn_at_another_size_and_left_whole_by_ctrl_c(tmp_path: Path) -> None:
    with training(24, 80, tmp_path / "run", {}) as run:
        settings = termios.tcgetattr(run.main)
        run.read_until(rf"(?:{DRAWING}){{2}}")
        assert max(len(line) for lines in drawings(run.output) for line in lines) == 80
        assert "\x1b[32m" in run.output
        begun = len(run.output)
        run.resize(10, 40)
        run.read_until(rf"(?:{DRAWING}){{3}}", begun)
        last = drawings(run.output)[-1]
        assert (max(map(len, last)), len(last)) == (40, 8)
        os.write(run.main, b"\x03")
        run.read_until(r"Ctrl-C: finishing this update", begun)
        run.read_until(r"go on with resume=\S*run\r\n", begun)
        assert run.process.wait(60) == 128 + signal.SIGINT
        assert termios.tcgetattr(run.main) == settings
        assert "?25l" not in run.output and "?1049h" not in run.output  # the cursor and the screen stay as they are
        assert run.output.endswith("\n")


@pytest.mark.parametrize(("rows", "columns"), [(10, 40), (50, 200)])
def test_it_fits_into_the_terminal_and_no_color_is_heeded(rows: int, columns: int, tmp_path: Path) -> None:
    with training(rows, columns, tmp_path / "run", {"NO_COLOR": "1"}, "total_timesteps=960") as run:
        run.read_until(r"done: [^\n]*\n")
        assert run.process.wait(60) == 0
        shown = drawings(run.output)
        assert len(shown) >= 2
        assert all(len(lines) <= rows - 2 and max(map(len, lines)) <= columns for lines in shown)
        assert shown[-1][1].startswith("100%")
        assert not re.search(r"\x1b\[(?:\d+;)*(?:3|9)\dm", run.output)


@pytest.mark.parametrize(("environment", "setting"), [({"TERM": "dumb"}, "progress=auto"), ({}, "progress=plain")])
def test_a_dumb_terminal_and_plain_progress_get_lines_without_sequences(
    environment: dict[str, str], setting: str, tmp_path: Path
) -> None:
    with training(24, 80, tmp_path / "run", environment, "total_timesteps=320", setting) as run:
        run.read_until(r"done: [^\n]*\n")
        assert run.process.wait(60) == 0
        assert "\x1b" not in run.output
        assert re.search(r"^320/320 steps \(100%\) .* steps/s", run.output, re.M)
