"""Playing by hand in the terminal: what is shown, what can be typed, and the way back."""

import io
import os
import pty
import signal
import subprocess
import sys
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]


# --- Arrow keys


@contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The other side of a terminal that is standard input and output. It sends Ctrl-D on, as one that is asked for keys does."""
    main_side, side = pty.openpty()
    tty.setcbreak(side)
    with os.fdopen(side, "r+b", buffering=0) as raw, io.TextIOWrapper(raw, "utf-8", write_through=True) as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        monkeypatch.setattr(sys, "stdout", stream)
        yield main_side
        monkeypatch.undo()
    os.close(main_side)


# --- On the command line


def run(*arguments: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "entity_gym.play", *arguments]
    return subprocess.run(command, cwd=ROOT, input=typed, capture_output=True, text=True, timeout=120)


def test_a_game_is_played_from_a_seed_until_the_input_ends() -> None:
    done = run("tests.entity_gym.check.broken:Walk", "--seed", "0", "--set", "size=5", typed="stay\n1\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("seed 0; ? for help, q to quit\n\nWalk, episode 1, step 0\n")
    assert "Walk, episode 1, step 1" in done.stdout
    assert "\x1b" not in done.stdout


def test_a_compiled_world_is_played_without_compiling_it() -> None:
    done = run("MineSweeper", "--seed", "1", "--set", "width=8", typed="q\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert "MineSweeper, episode 1, step 0\n" in done.stdout
    assert "  4 Defuse Mines\n" in done.stdout.replace("   4", "\n  4")


def test_ctrl_c_ends_the_game_without_a_traceback() -> None:
    command = [sys.executable, "-u", "-m", "entity_gym.play", "tests.entity_gym.check.broken:Walk"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, text=True, **pipes) as process:
        assert process.stdout is not None
        while "stay" not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (130, "")
