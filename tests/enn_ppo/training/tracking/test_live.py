"""Lines that are redrawn at the bottom of a terminal: what is above them, changes of size, and how they end."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
from collections.abc import Iterator

import pytest

from enn_ppo.training.tracking import live as live_module
from enn_ppo.training.tracking.live import LiveLines, live_terminal
from tests.enn_ppo.terminals import Terminal


class Lines:
    """A block of numbered lines, as wide as the terminal."""

    def __init__(self, name: str = "a", height: int = 3) -> None:
        self.name, self.height, self.drawn = name, height, 0
        self.room: list[tuple[int, int]] = []

    def __call__(self, columns: int, rows: int) -> list[str]:
        self.drawn += 1
        self.room.append((columns, rows))
        return [f"{self.name}{i} {self.drawn} ".ljust(columns, ".") for i in range(min(self.height, rows))]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    terminal = Terminal(20)
    monkeypatch.setattr(live_module, "_size", lambda stream: (stream.columns, 24))
    return terminal


@pytest.fixture
def lines() -> Lines:
    return Lines()


@pytest.fixture
def live(terminal: Terminal, lines: Lines) -> Iterator[LiveLines]:
    live = LiveLines(terminal, interval=0.0)  # type: ignore[arg-type]
    live.add(lines)
    yield live
    live.close()


def names(terminal: Terminal) -> list[str]:
    return [row.rstrip(".").rstrip() for row in terminal.rows]


def test_lines_are_drawn_over_the_ones_before(live: LiveLines, terminal: Terminal) -> None:
    for _ in range(3):
        live.refresh()
    assert names(terminal) == ["a0 3", "a1 3", "a2 3"]


def test_fewer_lines_leave_nothing_behind(live: LiveLines, terminal: Terminal, lines: Lines) -> None:
    live.refresh()
    lines.height = 1
    live.refresh()
    assert names(terminal) == ["a0 2"]


def test_messages_and_prints_stand_above_in_their_order(live: LiveLines, terminal: Terminal) -> None:
    live.write("before the first drawing")
    live.refresh()
    live.write("a message that is longer than a row of it")
    print("printed")
    print("an error", file=sys.stderr)
    print("unfinished", end="")
    live.refresh()
    shown = names(terminal)
    assert shown[:7] == [
        "before the first dra",
        "wing",
        "a message that is lo",
        "nger than a row of i",
        "t",
        "printed",
        "an error",
    ]
    assert shown[7:] == ["a0 2", "a1 2", "a2 2"]
    live.close()
    assert "unfinished" in names(terminal)[-4]


def test_a_line_that_is_printed_over_itself_shows_its_last_state(live: LiveLines, terminal: Terminal) -> None:
    live.refresh()
    sys.stderr.write("\r10 %")
    sys.stderr.write("\r20 %\rdone\n")
    assert names(terminal)[0] == "done"


def test_a_message_does_not_ask_the_blocks_again(live: LiveLines, lines: Lines) -> None:
    live.refresh()
    live.write("a")
    assert lines.drawn == 1


def test_drawings_are_an_interval_apart_and_the_last_state_is_drawn(terminal: Terminal, lines: Lines) -> None:
    now = [10.0]
    live = LiveLines(terminal, interval=0.25, clock=lambda: now[0])  # type: ignore[arg-type]
    live.add(lines)
    for _ in range(100):
        now[0] += 0.01
        live.refresh()
    assert lines.drawn == 4
    live.close()
    live.close()
    assert lines.drawn == 5
    assert terminal.getvalue().endswith("\n\x1b[?2026l")


@pytest.mark.parametrize("columns", [5, 11, 19, 40])
def test_another_width_leaves_no_rest_of_the_old_lines(
    columns: int, live: LiveLines, terminal: Terminal, lines: Lines
) -> None:
    live.write("above")
    live.refresh()
    terminal.resize(columns)
    os.kill(os.getpid(), signal.SIGWINCH)
    assert lines.room[-1] == (columns, 22)
    assert names(terminal) == ["above", "a0 2"[:columns], "a1 2"[:columns], "a2 2"[:columns]]


def test_blocks_share_the_rows_and_one_is_left_for_messages(
    live: LiveLines, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = Lines("b", 30)
    live.add(second)
    monkeypatch.setattr(live_module, "_size", lambda stream: (20, 10))
    live.refresh()
    assert names(terminal) == ["a0 1", "a1 1", "a2 1", "b0 1", "b1 1", "b2 1", "b3 1"]


def test_streams_and_the_signal_are_given_back(live: LiveLines, terminal: Terminal) -> None:
    before = sys.stdout, sys.stderr, signal.getsignal(signal.SIGWINCH)
    live.refresh()
    assert sys.stdout is not before[0] and sys.stdout.encoding == before[0].encoding
    live.close()
    assert (sys.stdout, sys.stderr, signal.getsignal(signal.SIGWINCH)) == before
    live.refresh()
    live.write("after")
    assert names(terminal) == ["a0 2", "a1 2", "a2 2", "after"]


def test_a_stream_that_somebody_else_has_replaced_stays(live: LiveLines, monkeypatch: pytest.MonkeyPatch) -> None:
    live.refresh()
    other = io.StringIO()
    original = sys.stdout.stream  # type: ignore[attr-defined]
    sys.stdout = other
    live.close()
    assert sys.stdout is other
    sys.stdout = original


def test_a_message_of_a_signal_handler_during_a_drawing_is_printed_after_it(
    terminal: Terminal, live: LiveLines
) -> None:
    def block(columns: int, rows: int) -> list[str]:
        if not said:
            said.append(True)
            live.write("Ctrl-C")  # as in a handler: the drawing goes on when it returns
        return ["block"]

    said: list[bool] = []
    live.add(block)
    live.refresh()
    assert names(terminal) == ["Ctrl-C", "a0 1", "a1 1", "a2 1", "block"]


def test_messages_of_several_threads_are_all_printed(live: LiveLines, terminal: Terminal) -> None:
    live.refresh()

    def work(name: str) -> None:
        for i in range(50):
            live.write(f"{name} {i}")

    threads = [threading.Thread(target=work, args=(name,)) for name in "xyz"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(names(terminal)[:-3]) == sorted(f"{name} {i}" for name in "xyz" for i in range(50))


def test_a_forked_child_writes_to_the_stream_itself(live: LiveLines, monkeypatch: pytest.MonkeyPatch) -> None:
    original = io.StringIO()
    monkeypatch.setattr(sys, "stdout", original)
    live.refresh()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    print("child")
    assert original.getvalue() == "child\n"


@pytest.mark.parametrize(
    ("stdout", "stderr", "term", "encoding", "is_live"),
    [
        (True, True, "xterm", "utf-8", True),
        (False, True, "xterm", "utf-8", False),
        (True, False, "xterm", "utf-8", False),
        (True, True, "dumb", "utf-8", False),
        (True, True, "xterm", "ascii", False),
    ],
)
def test_lines_are_live_in_a_terminal_that_can_show_them(
    stdout: bool, stderr: bool, term: str, encoding: str, is_live: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    terminal.encoding = encoding
    monkeypatch.setattr(sys, "stdout", Terminal() if stdout else io.StringIO())
    monkeypatch.setattr(sys, "stderr", terminal if stderr else io.StringIO())
    monkeypatch.setenv("TERM", term)
    assert live_terminal() is (terminal if is_live else None)
