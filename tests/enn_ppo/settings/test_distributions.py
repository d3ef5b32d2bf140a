"""Parameters of environments: what `env.info` may say, and what is drawn from it."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enn_ppo.settings.config import EnvConfig
from enn_ppo.settings.schedule import parse_distribution


def draw(distribution: object, progress: float = 0.0, num_envs: int = 400, seed: int = 1) -> list[Any]:
    return parse_distribution("env.info.x", distribution).draw(progress, num_envs, np.random.default_rng(seed))


# --- What is drawn ---


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


# --- What may be said ---


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
        ({"low": 2, "high": 1}, "env.info.x must have low at most high at all times, got {'low': 2, 'high': 1}"),
        # The same at every point, and not between: a step that comes late, and a cosine above a line.
        ({"low": "0@0 -> 5@1", "high": "0@0 step 5@1"}, "low at most high at all times"),
        ({"low": "0@0 cos 1@1", "high": "0@0 -> 1@1"}, "low at most high at all times"),
    ],
)
def test_what_cannot_be_drawn_from_is_refused_with_the_parameter(distribution: object, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        EnvConfig(info={"x": distribution})


def test_parameters_are_a_mapping_with_texts_as_names() -> None:
    with pytest.raises(ValueError, match=r"env\.info must be a mapping, got \[3\]"):
        EnvConfig(info=[3])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"env\.info must have texts as names, got 1"):
        EnvConfig(info={1: 2})  # type: ignore[dict-item]
