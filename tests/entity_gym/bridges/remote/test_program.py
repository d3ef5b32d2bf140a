"""Worlds of another program: what a pool of them shows, and what is said when the program misbehaves."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from entity_gym.batch.ragged import RaggedBuffer
from entity_gym.bridges.remote import ProgramError, ProgramWorlds
from tests.entity_gym.bridges.remote.counting import both_add, counters, counting, pool


def test_the_worlds_of_a_program_are_a_pool_like_any_other() -> None:
    with pool(3) as env:
        first = env.reset(seed=5)
        assert list(env.obs_space().entities) == ["Counter", "Actor"]
        start = counters(first)
        obs = env.act(both_add(0, 1, 2))
        assert counters(obs) == [start[0], start[1] + 2, start[2] + 4]
        assert obs.reward.tolist() == [0, 2, 4]
        assert obs.metrics["value"].count == 3
        env.act(both_add(1, 1, 1))
        obs = env.act(both_add(1, 1, 1))
        assert obs.done.all() and obs.reward.tolist() == [2, 2, 2]
        assert env.act(both_add(2, 0, 0)).reward.tolist() == [4, 0, 0]  # of the next episode


def test_a_program_is_told_sets_as_lists_of_ids() -> None:
    with pool(1, "sets") as env:
        offsets = env.reset(seed=0).action_masks["add"].pair_offsets
        for places, added in (([2, 1, 0, 0], 21), ([0, 0, 1, 2], 12), ([1, 0, 0, 1], 3)):
            assert env.act({"add": RaggedBuffer(np.array(places)[:, None], offsets)}).reward.tolist() == [added]


def test_parameters_that_the_program_knows_reach_its_episodes() -> None:
    with pool(2) as env:
        obs = env.reset(seed=0, env_info=[{"start": 7}, {"start": 9}])
        assert counters(obs) == [7, 9]
        with pytest.raises(ValueError, match="takes no parameter 'strt'; allowed: 'start'; did you mean 'start'"):
            env.reset(seed=0, env_info=[{"strt": 7}, {}])


def test_a_program_that_is_not_there_is_named() -> None:
    with pytest.raises(
        ProgramError, match="program `nodee world.mjs` cannot be started: .*No such file or directory.*'nodee' must be"
    ):
        ProgramWorlds(command=["nodee", "world.mjs"]).as_environment()


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({}, "give one: command="),
        ({"command": ["node"], "listen": "127.0.0.1:1"}, "give one: command="),
        ({"command": "node world.mjs"}, r"must be a list of words, such as \[node,world.mjs\]"),
        ({"command": ["node"], "answer_seconds": 0}, "answer_seconds is 0; it must be a number of seconds above 0"),
        ({"listen": "127.0.0.1:70000"}, "a port from 1 to 65535"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        ProgramWorlds(**settings)


def test_what_makes_the_worlds_and_its_errors_can_travel_to_worker_processes_and_back() -> None:
    worlds = counting()
    assert pickle.loads(pickle.dumps(worlds)) == worlds
    error = pickle.loads(pickle.dumps(ProgramError("no room for a counter")))
    assert type(error) is ProgramError and str(error) == "no room for a counter"
