"""Settings that change during training, and parameters that are drawn: what a text means at each moment, and what is refused."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enn_ppo.settings.config import EnvConfig, OptimConfig, PPOConfig
from enn_ppo.settings.schedule import Schedule, parse_distribution, parse_schedule

VALUES = st.floats(-1e3, 1e3).map(lambda x: round(x, 3))
PROGRESS = st.floats(0, 1)
SHAPES = st.sampled_from(["->", "cos", "step"])


@st.composite
def schedules(draw: st.DrawFn) -> tuple[str, Schedule]:
    """A text, and the schedule that it writes."""
    times = sorted(draw(st.sets(st.integers(0, 100), min_size=1, max_size=5)))
    points = tuple((time / 100, draw(VALUES)) for time in times)
    joints = tuple(draw(SHAPES) for _ in times[1:])
    text = f"{points[0][1]!r}@{points[0][0]!r}"
    for joint, (time, value) in zip(joints, points[1:], strict=True):
        text += f" {joint} {value!r}@{time!r}"
    return text, Schedule(points, joints)  # type: ignore[arg-type]


def value(text: str | float, progress: float) -> float:
    return parse_schedule("optim.lr", text)(progress)


# --- What a text means ---


@pytest.mark.parametrize(
    ("text", "golden"),
    [
        ("0.001@0 -> 0@1", {0: 0.001, 0.25: 0.00075, 0.5: 0.0005, 1: 0}),
        ("1@0.2 -> 3@0.6", {0: 1, 0.2: 1, 0.3: 1.5, 0.4: 2, 0.6: 3, 0.9: 3}),
        ("0@0 -> 1@0.5 -> 0@1", {0: 0, 0.25: 0.5, 0.5: 1, 0.75: 0.5, 1: 0}),
        ("4@0 step 8@0.5", {0: 4, 0.499: 4, 0.5: 8, 1: 8}),
        ("4@0 cos 0@1", {0: 4, 1 / 3: 3, 0.5: 2, 2 / 3: 1, 1: 0}),  # 2 + 2 cos(60°) = 3
        ("1@0 -> 2@0.5 step 5@0.75 cos 3@1", {0.25: 1.5, 0.6: 2, 0.75: 5, 0.875: 4, 1: 3}),
        ("7@0.5", {0: 7, 0.5: 7, 1: 7}),
        ("-1@0 -> -2@1", {0: -1, 0.5: -1.5, 1: -2}),
        ("1e-3@0->2E-3@1", {0: 0.001, 1: 0.002}),
        ("  .5 @ 0  ->  1. @ 1.0  ", {0: 0.5, 1: 1}),
    ],
)
def test_a_schedule_moves_between_its_points_as_the_word_between_them_says(
    text: str, golden: dict[float, float]
) -> None:
    for progress, expected in golden.items():
        assert value(text, progress) == pytest.approx(expected, abs=1e-12)


@given(schedules())
def test_a_text_is_read_as_the_schedule_that_it_writes(written: tuple[str, Schedule]) -> None:
    text, schedule = written
    assert parse_schedule("x", text) == schedule
    assert parse_schedule("x", text.replace(" -> ", "->").replace(" cos ", "  cos ")) == schedule


@given(schedules(), PROGRESS)
def test_a_schedule_has_the_values_of_its_points_and_else_lies_between_its_neighbours(
    written: tuple[str, Schedule], progress: float
) -> None:
    _, schedule = written
    assert all(schedule(time) == expected for time, expected in schedule.points)
    assert schedule(0.0) == schedule.points[0][1] and schedule(1.0) == schedule.points[-1][1]
    passed = [value for time, value in schedule.points if time <= progress]
    ahead = [value for time, value in schedule.points if time > progress]
    ends = [*passed[-1:], *ahead[:1]]
    if passed and ahead and schedule.shapes[len(passed) - 1] == "step":
        ends = passed[-1:]  # steps take only the values that are written
    rounding = 1e-12 * max(map(abs, ends))
    assert min(ends) - rounding <= schedule(progress) <= max(ends) + rounding


# --- Mistakes ---


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("fast", "'fast' is no point"),
        ("", "'' is no point"),
        ("-> 0@1", "'' is no point"),
        ("0.1@0 cosine 0@1", "'0.1@0 cosine 0@1' is no point"),
        ("0.1@start -> 0@1", "'0.1@start' is no point"),
        ("0.1@0@1", "'0.1@0@1' is no point"),
        ("nan@0 -> 0@1", "'nan@0' is no point"),
        ("1e400@0 -> 0@1", "'1e400@0' is no point"),
        ("0.1@0 -> 0@2", "progress rising within [0, 1]"),
        ("0.1@-0.5 -> 0@1", "progress rising within [0, 1]"),
        ("0.1@0 -> 1@0.5 -> 0@0.5", "progress rising within [0, 1]"),
    ],
)
def test_a_text_that_is_no_schedule_is_refused_with_the_setting_the_text_and_how_to_write_one(
    text: str, reason: str
) -> None:
    with pytest.raises(ValueError) as refused:
        parse_schedule("optim.lr", text)
    message = str(refused.value)
    assert message.startswith("optim.lr must be ") and "`0.001@0 -> 0@1`" in message
    assert f"got {text!r}" in message and reason in message


@pytest.mark.parametrize("given_", [True, None, [0.1], math.nan, math.inf, -math.inf])
def test_what_is_neither_a_number_nor_a_text_is_refused(given_: object) -> None:
    with pytest.raises(ValueError, match=rf"^ppo\.clip must be a number or .*, got {re.escape(repr(given_))}$"):
        parse_schedule("ppo.clip", given_)


def test_every_value_of_a_schedule_must_be_allowed_and_the_message_has_the_whole_text() -> None:
    assert PPOConfig(gamma="0@0 -> 1@1").schedules["gamma"](0.5) == 0.5
    with pytest.raises(
        ValueError, match=r"ppo\.gamma must be a number, in \[-1, 1\], got 1\.1 \(in '0\.9@0 -> 1\.1@1'\)"
    ):
        PPOConfig(gamma="0.9@0 -> 1.1@1")
    with pytest.raises(ValueError, match=r"ppo\.clip must be a number, in \(0, 1\), got 0\.0 \(in '0\.2@0 -> 0@1'\)"):
        PPOConfig(clip="0.2@0 -> 0@1")


# --- In settings ---


def test_a_plain_number_is_constant_and_the_defaults_of_the_learning_rate_and_of_entropy_fall_in_a_line_to_0() -> None:
    assert [parse_schedule("x", np.float64(0.004))(progress) for progress in (0, 0.5, 1)] == [0.004] * 3
    assert [OptimConfig().schedule(progress) for progress in (0, 0.5, 0.75, 1)] == [0.002, 0.001, 0.0005, 0]
    assert [PPOConfig().schedules["ent_coef"](progress) for progress in (0, 0.5, 1)] == [0.05, 0.025, 0]


# --- Parameters of environments, `env.info` ---


def draw(distribution: object, progress: float = 0.0, num_envs: int = 400, seed: int = 1) -> list[Any]:
    return parse_distribution("env.info.x", distribution).draw(progress, num_envs, np.random.default_rng(seed))


@pytest.mark.parametrize(
    ("distribution", "expected"),
    [
        (5, {0: 5, 1: 5}),
        (0.5, {0: 0.5, 1: 0.5}),
        ("0.5@0 -> 1@1", {0: 0.5, 0.5: 0.75, 1: 1.0}),
        ("1@0 -> 3@1", {0: 1, 0.2: 1, 0.3: 2, 0.7: 2, 0.8: 3, 1: 3}),  # of whole numbers
    ],
)
def test_a_number_or_schedule_is_the_same_for_every_environment(
    distribution: object, expected: dict[float, Any]
) -> None:
    for progress, value in expected.items():
        drawn = draw(distribution, progress, num_envs=3)
        assert drawn == [value] * 3 and {type(each) for each in drawn} == {type(value)}


def test_of_a_list_each_environment_gets_one() -> None:
    values = draw([3, "tiny", None])
    assert all(100 < values.count(value) < 170 for value in (3, "tiny", None)) and len(values) == 400


def test_between_whole_numbers_both_ends_and_all_between_are_drawn() -> None:
    values = draw({"low": 1, "high": 4})
    assert {type(value) for value in values} == {int}
    assert [60 < values.count(value) < 140 for value in (1, 2, 3, 4)] == [True] * 4
    assert len(values) == 400


def test_between_other_numbers_any_is_drawn() -> None:
    values = draw({"low": 0.5, "high": 1})
    assert {type(value) for value in values} == {float}
    assert 0.5 <= min(values) < 0.52 and 0.98 < max(values) <= 1
    assert np.mean(values) == pytest.approx(0.75, abs=0.03)


def test_the_ends_may_be_schedules() -> None:
    curriculum = {"low": "1@0 step 5@0.5", "high": "2@0 -> 8@1"}
    assert [set(draw(curriculum, progress)) for progress in (0, 0.5, 1)] == [{1, 2}, {5}, {5, 6, 7, 8}]


@given(
    st.integers(-50, 50), st.integers(0, 50), st.integers(-50, 50), st.integers(0, 50),
    st.sampled_from(["->", "cos", "step"]), st.floats(0, 1), st.integers(0, 2**32),
)  # fmt: skip
def test_what_is_drawn_lies_between_the_ends_of_its_moment(
    low: int, wide: int, later: int, wider: int, shape: str, progress: float, seed: int
) -> None:
    ends = {"low": f"{low}@0 {shape} {later}@1", "high": f"{low + wide}@0 {shape} {later + wider}@1"}
    values = draw(ends, progress, 10, seed)
    assert len(values) == 10
    assert min(low, later) <= min(values) and max(values) <= max(low + wide, later + wider)


def test_what_was_checked_is_a_copy() -> None:
    assert EnvConfig().distributions == {}
    given_ = {"x": [1, 2]}
    config = EnvConfig(info=given_, kwargs=given_)
    given_["x"].append(3)
    assert config.info == config.kwargs == {"x": [1, 2]}


@pytest.mark.parametrize(
    ("distribution", "message"),
    [
        ([], "env.info.x must list at least one value to draw from, got []"),
        ("easy", "env.info.x must be a number or a schedule"),
        (float("inf"), "env.info.x must be a number or a schedule"),
        ("inf@0 -> 1@1", "'inf@0' is no point"),
        ({"low": 1}, "env.info.x must be a mapping of low and high, got {'low': 1}"),
        ({"low": 1, "high": 2, "step": 1}, "env.info.x must be a mapping of low and high, got {"),
        ({"low": 1, "high": "many"}, "env.info.x.high must be a number or a schedule"),
        ({"low": 2, "high": 1}, "env.info.x must have low at most high, got {'low': 2, 'high': 1}"),
        ({"low": "0@0 -> 5@0.5", "high": "1@0 -> 6@1"}, "env.info.x must have low at most high, got"),
    ],
)
def test_what_cannot_be_drawn_from_is_refused_with_the_parameter(distribution: object, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        EnvConfig(info={"x": distribution})
