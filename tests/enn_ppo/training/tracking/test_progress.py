"""A dashboard or a live line in a terminal; elsewhere plain lines, few of them, and always the first and the last."""

import io
import sys

import pytest

from enn_ppo.training.tracking import live as live_module
from enn_ppo.training.tracking.live import LiveLines
from enn_ppo.training.tracking.logger import Row
from enn_ppo.training.tracking.progress import Progress, make_live_lines
from enn_ppo.training.tracking.status import clock_text
from tests.enn_ppo.terminals import Terminal


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


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


def live_lines(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> LiveLines:
    monkeypatch.setattr(live_module, "_size", lambda stream: (stream.columns, 24))
    return LiveLines(terminal, interval=0.0)  # type: ignore[arg-type]


def test_the_live_line_is_drawn_over_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, clock = Terminal(120), Clock()
    live = live_lines(terminal, monkeypatch)
    progress = Progress(20_000, style="line", live=live, clock=clock)
    for step in (5_000, 10_000, 20_000):
        clock.now += 1.0
        progress.update(row(step, None if step == 20_000 else 0.5))
    progress.close()
    progress.close()
    assert terminal.rows == [
        "100%|████████████| 20,000/20,000  6,667 steps/s  00:00 left  reward -  length -  entropy 1.500  kl 0.0041"
    ]


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        (80, " 50%|██████      | 50/100  - steps/s  - left  reward 0.500  length 12.2"),
        (70, " 50%|██████      | 50/100  - steps/s  - left  reward 0.500"),
        (40, " 50%|██████      | 50/100  - steps/s"),
        (12, " 50%|██████"),
    ],
)
def test_the_live_line_shows_the_whole_fields_that_fit(
    columns: int, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal(columns)
    live = live_lines(terminal, monkeypatch)
    progress = Progress(100, style="line", live=live, clock=Clock())
    progress.update(row(50))
    progress.close()
    assert terminal.rows == [shown]


def test_the_dashboard_shows_the_row_and_the_last_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal(80)
    live = live_lines(terminal, monkeypatch)
    progress = Progress(100, live=live, clock=Clock(), prefix="red: ", title="Walk", run_dir="out/red")
    progress.update(row(50))
    progress.write("a message")
    assert terminal.rows[0] == "a message"
    assert terminal.rows[1].startswith("red: Walk ") and terminal.rows[1].endswith(" out/red")
    assert terminal.rows[-1] == "no checkpoint since the run was resumed"
    progress.saved(48)
    progress.close()
    assert terminal.rows[-1] == "checkpoint of step 48, 00:00 ago"
    assert any(line.startswith("reward               0.500 ▁") for line in terminal.rows)


def test_several_policies_have_a_line_each(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal(60)
    live = live_lines(terminal, monkeypatch)
    both = [Progress(100, style="line", live=live, clock=Clock(), prefix=f"{name}: ") for name in ("red", "blue")]
    for step in (50, 100):
        for progress in both:
            progress.update(row(step))
    both[0].write("red: a message")
    for progress in both:
        progress.close()
    assert [line.split("|")[0] for line in terminal.rows] == ["red: a message", "red: 100%", "blue: 100%"]


def test_more_steps_than_planned_are_shown_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    progress = Progress(100, style="line", live=live_lines(terminal, monkeypatch), clock=Clock())
    progress.update(row(128))
    progress.close()
    assert terminal.rows[0].startswith("100%|████████████| 128/128 ")


def test_other_messages_get_their_own_line() -> None:
    stream = io.StringIO()
    progress = Progress(100, stream=stream, clock=Clock())
    progress.update(row(50))
    progress.write("finishing this update")
    progress.close()
    assert stream.getvalue().splitlines()[1:] == ["finishing this update"]


def test_off_shows_messages_alone() -> None:
    stream = io.StringIO()
    progress = Progress(100, style="off", stream=stream, clock=Clock())
    progress.update(row(50))
    progress.write("finishing this update")
    progress.close()
    assert stream.getvalue() == "finishing this update\n"


@pytest.mark.parametrize(
    ("style", "in_terminal", "is_live"),
    [
        ("auto", True, True),
        ("line", True, True),
        ("plain", True, False),
        ("off", True, False),
        ("auto", False, False),
        ("line", False, False),
    ],
)
def test_lines_are_redrawn_where_the_style_asks_for_it_and_a_terminal_can(
    style: str, in_terminal: bool, is_live: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, Terminal() if in_terminal else io.StringIO())
    monkeypatch.setenv("TERM", "xterm")
    live = make_live_lines(style)  # type: ignore[arg-type]
    assert (live is not None) == is_live
    assert live is None or live.stream is sys.stderr


def test_the_time_left_is_that_of_the_wall_clock_where_it_is_nearer() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress(20_000, max_seconds=10.0, stream=stream, clock=clock)
    clock.now += 4.0
    progress.update({"step": 1000, "seconds": 4.0})
    assert "00:06 left" in stream.getvalue()  # by steps alone, 76 seconds


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0.9, "00:00"), (61.0, "01:01"), (3_661.0, "1:01:01"), (90_061.0, "1d 01:01:01")],
)
def test_durations_are_read_like_clocks(seconds: float | None, text: str) -> None:
    assert clock_text(seconds) == text


def test_a_long_rollout_is_a_plain_line_of_its_own_between_those_of_updates() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress(1_000, stream=stream, plain_interval=5.0, clock=clock)
    for seconds in range(1, 13):
        clock.now += 1.0
        progress.playing(10 * seconds, float(seconds), seconds / 20)
    assert stream.getvalue().splitlines() == [
        "10/1,000 steps (1%)  10 steps/s  01:39 left  rollout 5%",
        "60/1,000 steps (6%)  10 steps/s  01:34 left  rollout 30%",
        "110/1,000 steps (11%)  10 steps/s  01:29 left  rollout 55%",
    ]


def test_a_row_that_was_held_back_comes_before_the_next_rollout() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress(1_000, stream=stream, plain_interval=5.0, clock=clock)
    progress.playing(10, 1.0, 0.5)
    clock.now += 1.0
    progress.update(row(20))
    clock.now += 5.0
    progress.playing(30, 7.0, 0.5)
    assert [line.split("/")[0] for line in stream.getvalue().splitlines()] == ["10", "20", "30"]


def test_the_limit_of_time_counts_the_rollout_that_is_being_played() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress(1_000_000, stream=stream, clock=clock, max_seconds=10.0)
    clock.now += 4.0
    progress.playing(100, 4.0, 0.5)
    assert "00:06 left" in stream.getvalue()


def test_the_live_line_shows_a_long_rollout_with_the_last_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, clock = Terminal(120), Clock()
    progress = Progress(100, style="line", live=live_lines(terminal, monkeypatch), clock=clock)
    clock.now += 1.0
    progress.playing(10, 1.0, 0.25)
    assert terminal.rows[0].startswith(" 10%|█           | 10/100  10 steps/s  00:09 left  rollout 25%  reward -")
    progress.update(row(50))
    progress.playing(60, 1.0, 0.25)
    assert "60/100  60 steps/s  00:00 left  rollout 25%  reward 0.500" in terminal.rows[0]
    progress.update(row(80))
    assert "rollout" not in terminal.rows[0]


def test_a_rollout_is_not_shown_where_progress_is_off() -> None:
    stream = io.StringIO()
    Progress(100, style="off", stream=stream, clock=Clock()).playing(10, 1.0, 0.5)
    assert stream.getvalue() == ""
