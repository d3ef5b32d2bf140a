"""One live line on a terminal; elsewhere plain lines, few of them, and always the first and the last."""

import fcntl
import io
import os
import pty
import struct
import sys
import termios

import pytest

from enn_ppo.training.tracking.logger import Row
from enn_ppo.training.tracking.progress import Progress


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def row(step: int, reward: float | None = 0.5) -> Row:
    return {
        "step": step,
        "episodic_reward": reward,
        "episode_length": None if reward is None else 12.25,
        "entropy": 1.5,
        "approx_kl": 0.00412,
    }


def test_a_plain_line_holds_everything_one_wants_to_know() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress(20_000, stream=stream, clock=clock)
    clock.now += 2.0
    progress.update(row(5_000))
    assert stream.getvalue() == (
        "5,000/20,000 steps (25%)  2,500 steps/s  00:06 left  reward 0.500  length 12.2  entropy 1.500  kl 0.0041\n"
    )


def test_what_is_unknown_is_a_dash() -> None:
    stream = io.StringIO()
    Progress(100, stream=stream, clock=Clock()).update({"step": 0, "episodic_reward": None})
    assert stream.getvalue() == "0/100 steps (0%)  - steps/s  - left  reward -  length -  entropy -  kl -\n"


def test_the_rate_of_a_resumed_run_counts_only_its_own_steps() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress(20_000, 10_000, stream=stream, clock=clock)
    clock.now += 1.0
    progress.update(row(10_100))
    assert "10,100/20,000 steps (50%)  100 steps/s  01:39 left" in stream.getvalue()


def test_plain_lines_are_the_first_one_every_interval_and_the_last() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress(100, stream=stream, plain_interval=5.0, clock=clock)
    for step in range(1, 13):  # a row every second
        clock.now += 1.0
        progress.update(row(step))
    progress.close()
    progress.close()
    assert [line.split("/")[0] for line in stream.getvalue().splitlines()] == ["1", "6", "11", "12"]


def test_a_last_line_that_is_shown_already_is_not_repeated() -> None:
    stream = io.StringIO()
    progress = Progress(100, stream=stream, clock=Clock())
    progress.update(row(100))
    progress.close()
    assert len(stream.getvalue().splitlines()) == 1


def test_a_run_without_a_single_update_prints_nothing() -> None:
    stream = io.StringIO()
    Progress(100, stream=stream, clock=Clock()).close()
    assert stream.getvalue() == ""


def test_a_terminal_gets_one_live_line() -> None:
    stream, clock = Terminal(), Clock()
    progress = Progress(20_000, stream=stream, clock=clock)
    for step in (5_000, 10_000, 20_000):
        clock.now += 1.0
        progress.update(row(step, None if step == 20_000 else 0.5))
    progress.close()
    progress.close()
    output = stream.getvalue()
    assert output.count("\n") == 1 and output.endswith("\n")
    last = output.split("\r")[-1].strip()
    assert last.startswith("100%|") and "20,000/20,000  6,667 steps/s  00:00 left  reward -  length -" in last
    assert "entropy 1.500  kl 0.0041" in last


@pytest.mark.parametrize("columns", [0, 100, 200])
def test_a_real_terminal_of_any_width_shows_the_line(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    main, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 24 if columns else 0, columns, 0, 0))
    with os.fdopen(side, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)  # tqdm asks the size of the standard streams only
        progress = Progress(100, stream=stream, clock=Clock())
        progress.update(row(100))
        progress.close()
        output = b""
        while not output.endswith(b"\n"):  # a pseudo-terminal hands over what has arrived so far
            output += os.read(main, 10_000)
    os.close(main)
    last = output.decode().rstrip().split("\r")[-1]
    assert last.startswith("100%|") and "100/100" in last
    assert len(last) <= (columns or 120)


def test_more_steps_than_planned_are_shown_as_they_are() -> None:
    stream = Terminal()
    progress = Progress(100, stream=stream, clock=Clock())
    progress.update(row(128))
    progress.close()
    assert "100%" in stream.getvalue() and "128/128" in stream.getvalue()


@pytest.mark.parametrize("terminal", [False, True])
def test_other_messages_get_their_own_line(terminal: bool) -> None:
    stream = Terminal() if terminal else io.StringIO()
    progress = Progress(100, stream=stream, clock=Clock())
    progress.update(row(50))
    progress.write("finishing this update")
    progress.close()
    assert "finishing this update\n" in stream.getvalue().replace("\r", "\n")


@pytest.mark.parametrize(
    ("stdout_is_terminal", "stderr_is_terminal", "lines_go_to"),
    [(True, True, "stderr"), (False, True, "stdout"), (True, False, "stdout"), (False, False, "stdout")],
)
def test_output_that_is_redirected_gets_plain_lines_on_stdout(
    monkeypatch: pytest.MonkeyPatch, stdout_is_terminal: bool, stderr_is_terminal: bool, lines_go_to: str
) -> None:
    streams = {
        "stdout": Terminal() if stdout_is_terminal else io.StringIO(),
        "stderr": Terminal() if stderr_is_terminal else io.StringIO(),
    }
    monkeypatch.setattr(sys, "stdout", streams["stdout"])
    monkeypatch.setattr(sys, "stderr", streams["stderr"])
    progress = Progress(100, clock=Clock())
    progress.update(row(50))
    progress.close()
    assert [name for name, stream in streams.items() if stream.getvalue()] == [lines_go_to]
    assert ("\r" in streams[lines_go_to].getvalue()) == (lines_go_to == "stderr")


def test_the_time_left_is_that_of_the_wall_clock_where_it_is_nearer() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress(20_000, max_seconds=10.0, stream=stream, clock=clock)
    clock.now += 4.0
    progress.update({"step": 1000, "seconds": 4.0})
    assert "00:06 left" in stream.getvalue()  # by steps alone, 76 seconds
