"""Hints for drawing: they reach a replay from every kind of world and pool, and a wrong one is named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from entity_gym import Entity, ObsSpace
from entity_gym.envs.minesweeper import MineSweeper
from entity_gym.pools.pool import ListEnv, ThreadedVecEnv
from entity_gym.replay.hints import check_hints
from tests.entity_gym.pools.processes.thread_workers import threads as threads
from tests.entity_gym.replay.worlds import Rooms

SPACE = ObsSpace({"Unit": Entity(["x", "y", "heading", "team"])}, ["time"])
IN_FULL = {
    "bounds": [-1, 0, 5, 5],
    "grid": False,
    "y_up": True,
    "types": {
        "Unit": {
            "position": ["x", "y"],
            "shape": "triangle",
            "color": "#0a0B0c",
            "color_by": "team",
            "size": 0.5,
            "label": "team {team}",
            "angle": "heading",
            "trail": 3,
            "layer": 2,
        },
        "__global__": {"label": "{time}"},
    },
}


def test_hints_in_full_are_allowed_and_become_plain_numbers() -> None:
    given = {**IN_FULL, "bounds": np.array([-1, 0, 5, 5], np.float32), "y_up": np.True_}
    checked = check_hints(given, SPACE, "World")
    assert checked == IN_FULL
    assert type(checked["y_up"]) is bool and {type(each) for each in checked["bounds"]} == {float}


@pytest.mark.parametrize("given", [None, {}, {"types": {}}, {"types": {"Unit": {}}}])
def test_everything_may_be_left_out(given: Mapping[str, Any] | None) -> None:
    assert check_hints(given, SPACE, "World") == given


def with_unit(**hints: Any) -> dict[str, Any]:
    return {"types": {"Unit": hints}}


@pytest.mark.parametrize(
    ("given", "key", "told"),
    [
        ("nonsense", "draw() returned", "draw() is called by replays, without arguments, and returns hints"),
        ({"gird": True}, "'gird'", "did you mean 'grid'?"),
        ({"bounds": [0, 0, 1]}, "['bounds']", "four finite numbers"),
        ({"bounds": [0, 5, 5, 0]}, "['bounds']", "the smallest x and y and the largest"),
        ({"types": {"unit": {}}}, "'unit'", "did you mean 'Unit'?"),
        ({"types": {"Unit": "red"}}, "['types']['Unit']", "must be a dictionary"),
        (with_unit(colour="#000000"), "'colour'", "did you mean 'color'?"),
        (with_unit(color="red"), "['color']", "'#2a9d8f'"),
        (with_unit(shape="circel"), "['shape']", "one of 'circle', 'square'"),
        (with_unit(position="x"), "['position']", "names of two features"),
        (with_unit(position=["x", "z"]), "['position']", "'z', which is no feature"),
        (with_unit(color_by="tema"), "['color_by']", "did you mean 'team'?"),
        (with_unit(label="{hp}"), "['label']", "'hp', which is no feature"),
        (with_unit(label="a" * 201), "['label']", "at most 200 characters"),
        (with_unit(size=0), "['size']", "greater than 0"),
        (with_unit(trail=-1), "['trail']", "whole number"),
    ],
)
def test_a_wrong_hint_is_refused_with_the_name_of_its_key(given: Any, key: str, told: str) -> None:
    with pytest.raises(ValueError, match="World") as caught:
        check_hints(given, SPACE, "World")
    message = str(caught.value)
    assert key in message and told in message and "\n" not in message


@pytest.mark.parametrize("num_rooms", [1, 3])
def test_a_python_world_is_asked_for_the_running_episode(num_rooms: int) -> None:
    pool = ListEnv(Rooms, 2)
    pool.reset(seed=0, env_info=[{"size": num_rooms}, {"size": 5}])
    first, second = pool.draw([0, 1])
    assert first == {"bounds": [0, 0, num_rooms, 1]} and second == {"bounds": [0, 0, 5, 1]}


def test_hints_cross_from_worker_processes(threads: None) -> None:
    with ThreadedVecEnv(MineSweeper(width=4, height=7), 3, num_processes=2) as pool:
        pool.reset(seed=0)
        assert [hints["bounds"] for hints in pool.draw([2, 0])] == [[0, 0, 3, 6]] * 2  # type: ignore[index]
