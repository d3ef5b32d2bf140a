"""Targets: numbers about each frame that no policy sees, the same from every kind of world and pool."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import numpy as np
import pytest

from entity_gym import (
    CompiledEnvironment,
    Entity,
    ListEnv,
    Observation,
    ObsSpace,
    ThreadedVecEnv,
    VecEnv,
)
from entity_gym.batch.saving import spaces_difference, spaces_from_dict, spaces_to_dict
from entity_gym.compiled import Categorical, rand_int
from entity_gym.compiled import Entity as CompiledEntity
from tests.entity_gym.pools.kinds_of_pools import play_together
from tests.entity_gym.pools.processes.thread_workers import threads as threads
from tests.worlds import Script, making

LENGTH = 3


class Hidden(CompiledEnvironment):
    """Tells the number of its step, and a hidden number that changes with every step."""

    entities = {"Door": CompiledEntity(["step"], 1)}
    actions = {"wait": Categorical(["yes", "no"], actors="Door")}
    max_steps = LENGTH
    state = [("number", np.int64)]
    targets = ["steps", "number"]

    def reset(s: Any) -> None:
        s.number = rand_int(s, 10)

    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        s.number = rand_int(s, 10)
        return 0.0, False, False

    def observe(s: Any, obs: Any) -> None:
        obs.n.Door = 1
        obs.Door[0, 0] = s.steps


def arrays_of(pool: VecEnv, steps: int = 5) -> list[dict[str, list[Any]]]:
    """The targets of some steps; those of last observations too."""
    told = []
    with closing(pool):
        for obs in play_together(pool, steps - 1, pool.reset(3)):
            told.append({name: array.tolist() for name, array in obs.arrays.items()})
            if obs.final is not None:
                told.append({f"final {name}": array.tolist() for name, array in obs.final.arrays.items()})
    return told


@pytest.mark.parametrize("world", [Hidden().as_environment, Hidden], ids=["Python", "compiled"])
def test_every_pool_tells_the_same_targets(world: Any, threads: None) -> None:
    expected = arrays_of(ListEnv(world, 4, compile=False))
    assert arrays_of(ThreadedVecEnv(world, 4, num_threads=2, compile=False)) == expected
    assert arrays_of(ThreadedVecEnv(world, 4, num_processes=2, compile=False)) == expected
    assert any(name.startswith("final ") for step in expected for name in step)


def test_a_compiled_world_tells_the_fields_that_it_names() -> None:
    assert Hidden.obs_space().targets == {"steps": 1, "number": 1}
    told = arrays_of(ListEnv(Hidden, 2, compile=False), 4)
    steps = [step["target:steps"] for step in told if "target:steps" in step]
    assert steps == [[[0.0]] * 2, [[1.0]] * 2, [[2.0]] * 2, [[0.0]] * 2]
    plain = Hidden().as_environment().reset()
    assert plain.targets["steps"] == [0.0]


SPACE = ObsSpace({"Door": Entity(["step"])}, targets={"twice": 1, "place": 2})


def telling(told: dict[str, Any]) -> ListEnv:
    return ListEnv(making(Script([Observation(targets=told)], SPACE)), 1)


def test_targets_may_be_several_numbers_in_any_form() -> None:
    with closing(telling({"place": np.array([1, 2]), "twice": [4]})) as pool:
        obs = pool.reset()
    assert {name: array.tolist() for name, array in obs.arrays.items()} == {
        "target:twice": [[4.0]], "target:place": [[1.0, 2.0]]
    }  # fmt: skip


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({}, r"targets has \[\]; it must have all of the space's, \['twice', 'place'\]"),
        ({"twice": [1, 2], "place": [1, 2]}, r"targets\['twice'\] is \[1, 2\]; it must be 1 finite numbers"),
        ({"twice": [float("nan")], "place": [1, 2]}, r"targets\['twice'\] is \[nan\]; it must be 1 finite numbers"),
    ],
)
def test_targets_that_do_not_fit_are_refused(told: dict[str, Any], message: str) -> None:
    with closing(telling(told)) as pool, pytest.raises(ValueError, match=message):
        pool.reset()


def test_spaces_with_targets_are_saved_and_compared() -> None:
    saved = spaces_to_dict(SPACE, {})
    assert spaces_from_dict(saved)[0].targets == {"twice": 1, "place": 2}
    other = spaces_to_dict(ObsSpace(SPACE.entities), {})
    assert spaces_difference(saved, other) == "targets were {'twice': 1, 'place': 2} and are {}"
    with pytest.raises(ValueError, match=r"ObsSpace\.targets\['x'\] is 0; it must be a whole number of at least 1"):
        ObsSpace(targets={"x": 0})
