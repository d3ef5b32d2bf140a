"""Where there is no terminal: plain lines, few of them, and always the first and the last."""

from __future__ import annotations

import pytest

from enn_ppo.training.tracking.logger import Row
from enn_ppo.training.tracking.progress import Progress
from enn_ppo.training.tracking.status import clock_text


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def row(step: int) -> Row:
    return {"step": step, "episodic_reward": 0.5, "episode_length": 12.25, "entropy": 1.5, "approx_kl": 0.00412}


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_a_line_holds_everything_one_wants_to_know(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(20_000, clock=clock)
    progress.update({"step": 0, "episodic_reward": None})
    clock.now += 5.0
    progress.update(row(5_000) | {"self_play/win_rate": 0.25})
    progress.write("finishing this update")
    progress.close()
    assert lines(capsys) == [
        "0/20,000 steps (0%)  - steps/s  - left  reward -  length -  entropy -  kl -",
        "5,000/20,000 steps (25%)  1,000 steps/s  00:15 left  reward 0.500  length 12.2  entropy 1.500  kl 0.0041  won 0.25",
        "finishing this update",
    ]


def test_the_rate_of_a_resumed_run_counts_only_its_own_steps(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(20_000, 10_000, clock=clock)
    clock.now += 1.0
    progress.update(row(10_100))
    assert lines(capsys)[0].startswith("10,100/20,000 steps (50%)  100 steps/s  01:39 left")


def test_lines_are_the_first_one_every_interval_and_the_last(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(100, clock=clock)
    for step in range(1, 13):  # a row every second
        clock.now += 1.0
        progress.update(row(step))
    progress.close()
    progress.close()
    assert [line.split("/")[0] for line in lines(capsys)] == ["1", "6", "11", "12"]
    Progress(100, clock=clock).close()
    assert lines(capsys) == []


def test_the_time_left_is_that_of_the_wall_clock_where_it_is_nearer(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    both = [Progress(20_000, max_seconds=10.0, clock=clock) for _ in range(2)]
    clock.now += 4.0
    both[0].update({"step": 1000, "seconds": 4.0})
    both[1].playing(1000, 4.0, 0.5)
    assert [line.split("  ")[2] for line in lines(capsys)] == ["00:06 left"] * 2  # by steps alone, 76 seconds


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0.9, "00:00"), (61.0, "01:01"), (3_661.0, "1:01:01"), (90_061.0, "1d 01:01:01")],
)
def test_durations_are_read_like_clocks(seconds: float | None, text: str) -> None:
    assert clock_text(seconds) == text


def test_a_long_rollout_has_lines_of_its_own_after_a_row_that_was_held_back(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = Progress(1_000, clock=clock)
    for seconds in range(1, 13):
        clock.now += 1.0
        progress.playing(10 * seconds, float(seconds), seconds / 20)
        if seconds == 8:
            progress.update(row(80))
    assert [line.split("  reward")[0] for line in lines(capsys)] == [
        "10/1,000 steps (1%)  10 steps/s  01:39 left  rollout 5%",
        "60/1,000 steps (6%)  10 steps/s  01:34 left  rollout 30%",
        "80/1,000 steps (8%)  10 steps/s  01:32 left",
        "110/1,000 steps (11%)  10 steps/s  01:29 left  rollout 55%",
    ]
