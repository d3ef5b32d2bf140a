"""The dashboard: what it shows, in terminals of any size, with and without colours."""

from __future__ import annotations

import re

import pytest

from enn_ppo.training.tracking.dashboard import Dashboard, History
from enn_ppo.training.tracking.logger import Row
from enn_ppo.training.tracking.status import Status
from tests.enn_ppo.terminals import Terminal

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


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def dashboard(*rows: Row, terminal: Terminal | None = None, run_dir: str = "outputs/run") -> Dashboard:
    made = Dashboard(terminal or Terminal(), "MineSweeper", run_dir, Clock())  # type: ignore[arg-type]
    for row in rows or (ROW,):
        made.update(STATUS, row)
    return made


def seen(lines: list[str]) -> list[str]:
    return [re.sub(r"\x1b\[[\d;]*m", "", line).rstrip() for line in lines]


def test_it_is_read_like_this() -> None:
    clock = Clock()
    made = Dashboard(Terminal(), "MineSweeper", "outputs/run", clock)  # type: ignore[arg-type]
    clock.now += 10.0
    for reward in (0.0, 0.25, 1.0, 0.5):
        made.update(STATUS, ROW | {"episodic_reward": reward})
    made.saved(20_480)
    clock.now += 5.0
    shown = seen(made.lines(80, 22))
    assert re.fullmatch(r"2,500 steps/s  00:30 left  00:15 so far  [\d,]+ MB memory", shown.pop(2))
    assert shown == [
        "MineSweeper" + "outputs/run".rjust(69),
        " 25% " + "━" * 60 + " 25,000/100,000",
        "env 25%  act 25%  update 50%  " + "█" * 40,
        "reward               0.500 ▁▃█▅         value loss          0.2500 ▁▁▁▁",
        "length                12.2 ▁▁▁▁         policy loss        -0.1250 ▁▁▁▁",
        "entropy              1.500 ▁▁▁▁         explained variance   0.750 ▁▁▁▁",
        "kl                  0.0041 ▁▁▁▁",
        "checkpoint of step 20,480, 00:05 ago",
    ]


@pytest.mark.parametrize("columns", [1, 40, 75, 76, 200])
@pytest.mark.parametrize("rows", [1, 8, 22])
def test_it_fits_into_any_terminal(columns: int, rows: int) -> None:
    made = dashboard(*[ROW] * 300, run_dir="outputs/" + "long/" * 60 + "end")
    lines = seen(made.lines(columns, rows))
    assert 1 <= len(lines) <= rows
    assert max(map(len, lines)) <= columns
    assert len(lines) == min(rows, 9 if columns >= 76 else 12)


def test_a_small_terminal_shows_what_matters_most() -> None:
    words = [line.split()[0] for line in seen(dashboard().lines(40, 8))]
    assert words == ["MineSweeper", "25%", "2,500", "env", "reward", "length", "entropy", "kl"]
    assert [line.split()[0] for line in seen(dashboard().lines(40, 2))] == ["25%", "2,500"]


def test_a_long_run_directory_shows_its_end() -> None:
    head = seen(dashboard(run_dir="outputs/" + "long/" * 60 + "end").lines(40, 12))[0]
    assert head.startswith("MineSweeper  …") and head.endswith("long/end") and len(head) == 40


def test_control_characters_of_names_are_not_sent_to_the_terminal() -> None:
    lines = dashboard(run_dir="a\x1b[2Jb\nc").lines(80, 12)
    assert "\x1b[2J" not in "".join(lines) and lines[0].rstrip("\x1b[0m").endswith("a?[2Jb?c")


def test_what_is_not_known_yet_is_a_dash_and_what_was_known_stays() -> None:
    first, second = ROW | {"episodic_reward": None}, ROW | {"entropy": None, "episodic_reward": None}
    lines = "\n".join(seen(dashboard(first, second).lines(40, 22)))
    assert re.search(r"^reward +-$", lines, re.M) and re.search(r"^entropy +1\.500 ", lines, re.M)
    empty = Status(step=0, total=0, rate=None, left=None, fraction=1.0)
    made = dashboard()
    made.update(empty, {"step": 0})
    assert "- steps/s  - left" in seen(made.lines(80, 22))[2]


def test_evaluations_and_self_play_have_a_line_once_they_are_known() -> None:
    row = ROW | {"eval/episodic_reward": 0.9, "self_play/win_rate": 0.6}
    assert not any("evaluation" in line for line in seen(dashboard().lines(40, 22)))
    lines = "\n".join(seen(dashboard(row, ROW).lines(40, 22)))
    assert re.search(r"^evaluation +0\.900 ", lines, re.M) and re.search(r"^won +0\.60 ", lines, re.M)


def test_no_color_leaves_out_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    colour = re.compile(r"\x1b\[[\d;]*?\b(3\d|4\d|9\d|10\d)[;m]")
    assert colour.search("".join(dashboard().lines(80, 22)))
    monkeypatch.setenv("NO_COLOR", "1")
    lines = dashboard().lines(80, 22)
    assert not colour.search("".join(lines))
    assert "█" * 10 + "▒" * 10 + "░" * 20 in lines[3]  # shares are told apart all the same


def test_a_history_of_any_length_is_drawn_from_its_beginning() -> None:
    for count in (1, 5, 31, 32, 33, 1_000, 4_097):
        history = History(size=16)
        for i in range(count):
            history.add(float(i))
        graph = history.sparkline(10)
        assert len(graph) == min(count, 10)
        assert list(graph) == sorted(graph) and (graph[0], graph[-1]) == ("▁", "█" if count > 1 else "▁")
        assert len(history._means) < 32


def test_an_empty_history_and_one_without_room_are_empty() -> None:
    history = History()
    assert history.sparkline(10) == ""
    history.add(1.0)
    assert history.sparkline(0) == ""


def test_it_shows_a_long_rollout_also_before_the_first_update() -> None:
    made = Dashboard(Terminal(), "MineSweeper", "outputs/run", Clock())  # type: ignore[arg-type]
    made.playing(STATUS._replace(played=0.375))
    shown = seen(made.lines(80, 22))
    assert shown[1].endswith(" 25,000/100,000")
    assert shown[2].startswith("2,500 steps/s  00:30 left  00:00 so far  38% of the rollout")
    made.update(STATUS, ROW)
    assert "rollout" not in "".join(seen(made.lines(80, 22)))
