"""The dashboard: what it shows in terminals of any size, what is printed above it, and how it leaves the terminal."""

from __future__ import annotations

import io
import re
import sys
import time
from collections.abc import Callable

import pytest
from rich.console import Console
from rich.live import Live

from enn_ppo.training.tracking.dashboard import Dashboard, History, make_live
from enn_ppo.training.tracking.logger import Row
from enn_ppo.training.tracking.progress import Progress
from enn_ppo.training.tracking.status import Status

STATUS = Status(step=25_000, total=100_000, rate=2_500.0, left=30.0, fraction=0.25)
ROW: Row = {
    "step": 25_000,
    "share_env": 0.25,
    "share_act": 0.25,
    "share_update": 0.5,
    "episodic_reward": 0.5,
    "episode_length": 12.25,
    "entropy": 1.5,
    "approx_kl": 0.00412,
    "value_loss": 0.25,
    "policy_loss": -0.125,
    "explained_variance": 0.75,
}


class Terminal(io.StringIO):
    """A terminal as far as libraries can ask."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def now(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "LINES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    seconds = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: seconds[0])
    return lambda passed: seconds.__setitem__(0, seconds[0] + passed)


def dashboard(*rows: Row, run_dir: str = "outputs/run") -> Dashboard:
    made = Dashboard("MineSweeper", run_dir)
    for row in rows or (ROW,):
        made.update(STATUS, row)
    return made


def drawn(made: Dashboard, columns: int = 80) -> str:
    console = Console(file=Terminal(), width=columns)
    with console.capture() as capture:
        console.print(made)
    return capture.get()


def seen(made: Dashboard, columns: int = 80) -> list[str]:
    return [re.sub(r"\x1b\[[\d;]*m", "", line).rstrip() for line in drawn(made, columns).splitlines()]


def test_it_is_read_like_this(now: Callable[[float], None]) -> None:
    made = Dashboard("MineSweeper", "outputs/run")
    now(10.0)
    for reward in (0.0, 0.25, 1.0, 0.5):
        made.update(STATUS, ROW | {"episodic_reward": reward})
    made.saved(20_480)
    now(5.0)
    shown = seen(made)
    assert re.fullmatch(r"2,500 steps/s  00:30 left  00:15 so far  [\d,]+ MB memory", shown.pop(2))
    assert shown == [
        "MineSweeper" + "outputs/run".rjust(69),
        " 25% " + "━" * 15 + "╺" + "━" * 44 + " 25,000/100,000",
        "env 25%  act 25%  update 50%",
        "reward               0.500 ▁▃█▅         value loss          0.2500 ▁▁▁▁",
        "length                12.2 ▁▁▁▁         policy loss        -0.1250 ▁▁▁▁",
        "entropy              1.500 ▁▁▁▁         explained variance   0.750 ▁▁▁▁",
        "kl                  0.0041 ▁▁▁▁",
        "checkpoint of step 20,480, 00:05 ago",
    ]


@pytest.mark.parametrize("columns", [1, 40, 75, 80, 200])
def test_it_fits_into_any_width_and_no_name_reaches_the_terminal_as_a_sequence(columns: int) -> None:
    made = dashboard(*[ROW] * 300, run_dir="outputs/\x1b[2J" + "long/" * 60 + "end")
    assert "\x1b[2J" not in drawn(made, columns)
    assert max(map(len, seen(made, columns))) <= columns


def test_unknown_values_are_dashes_and_known_ones_stay() -> None:
    first, second = ROW | {"episodic_reward": None}, ROW | {"entropy": None, "episodic_reward": None}
    lines = "\n".join(seen(dashboard(first, second), 40))
    assert re.search(r"^reward +-$", lines, re.M) and re.search(r"^entropy +1\.500 ", lines, re.M)
    made = dashboard()
    made.update(Status(step=0, total=0, rate=None, left=None, fraction=1.0), {"step": 0})
    assert seen(made)[2].startswith("- steps/s  - left")


def test_evaluations_and_self_play_have_a_line_once_they_are_known() -> None:
    row = ROW | {"eval/episodic_reward": 0.9, "self_play/win_rate": 0.6}
    assert not any("evaluation" in line for line in seen(dashboard(), 40))
    lines = "\n".join(seen(dashboard(row, ROW), 40))
    assert re.search(r"^evaluation +0\.900 ", lines, re.M) and re.search(r"^won +0\.60 ", lines, re.M)


def test_it_shows_a_long_rollout_also_before_the_first_update() -> None:
    made = Dashboard("MineSweeper", "outputs/run")
    made.playing(STATUS._replace(played=0.375))
    shown = seen(made, 100)
    assert shown[1].endswith(" 25,000/100,000")
    assert shown[2].startswith("2,500 steps/s  00:30 left  00:00 so far  38% of the rollout")
    made.update(STATUS, ROW)
    assert "rollout" not in "".join(seen(made))


def test_a_history_of_any_length_is_drawn_from_its_beginning() -> None:
    for count in (0, 1, 5, 31, 32, 33, 1_000, 4_097):
        history = History(size=16)
        for i in range(count):
            history.add(float(i))
        graph = history.sparkline(10)
        assert len(graph) == min(count, 10)
        assert list(graph) == sorted(graph)
        assert graph[:1] + graph[-1:] == ("▁█" if count > 1 else "▁▁" * count)
        assert len(history._means) < 32


def terminals(monkeypatch: pytest.MonkeyPatch, encoding: str = "utf-8") -> Terminal:
    terminal = Terminal()
    monkeypatch.setattr(terminal, "encoding", encoding, raising=False)
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, terminal)
    return terminal


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
def test_a_terminal_that_can_show_it_has_a_dashboard(
    stdout: bool, stderr: bool, term: str, encoding: str, is_live: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminals(monkeypatch, encoding)
    for name, is_terminal in (("stdout", stdout), ("stderr", stderr)):
        if not is_terminal:
            monkeypatch.setattr(sys, name, io.StringIO())
    monkeypatch.setenv("TERM", term)
    assert isinstance(make_live(), Live) == is_live


def test_messages_and_prints_stand_above_the_dashboards_of_all_policies(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminals(monkeypatch)
    live = make_live()
    both = [
        Progress(100, live=live, prefix=f"{name}: ", title="Walk", run_dir=f"out/{name}") for name in ("red", "blue")
    ]
    both[0].write("before")
    assert terminal.getvalue() == "before\n"
    for progress in both:
        progress.update(ROW | {"step": 50})
    begun = len(terminal.getvalue())
    both[0].write("red: [bold]a message[/bold]")
    print("of a world", file=sys.stderr)
    print("unfinished", end="")
    both[1].saved(48)
    for progress in both:
        progress.close()
    assert sys.stdout is sys.stderr is terminal
    lines = re.sub(r"\x1b\[\??[\d;]*[a-zA-Z]", "", terminal.getvalue()[begun:]).replace("\r", "").splitlines()
    said = [lines.index(text) for text in ("red: [bold]a message[/bold]", "of a world", "unfinished")]
    assert said == sorted(said)
    last = [line.split()[:2] for line in lines[said[-1] + 1 :]]
    assert [line[0] for line in last if line[1:] == ["Walk"]] == ["red:", "blue:"]
    assert any(line == "checkpoint of step 48, 00:00 ago" for line in map(str.rstrip, lines))
    assert terminal.getvalue().endswith("\x1b[?25h")


def test_a_killed_process_leaves_the_cursor_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminals(monkeypatch)
    progress = Progress(100, live=make_live(), title="Walk")
    progress.update(ROW)
    shown = re.findall(r"\x1b\[\?25[lh]", terminal.getvalue())
    progress.close()
    assert shown[-1] == "\x1b[?25h"
