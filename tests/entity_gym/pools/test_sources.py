"""Pools take each kind of environment; a mistake of a world is one sentence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from entity_gym import CategoricalActionMask, CategoricalActionSpace, Entity, Environment, Observation, ObsSpace
from entity_gym.pools.pool import ListEnv, ThreadedVecEnv
from entity_gym.registry import make
from tests.entity_gym.pools.processes.thread_workers import threads as threads
from tests.worlds import choose, making

# --- A last observation in which everything is closed


class Walker(Environment):
    """Takes one step, after which there is nothing left to choose; `last` replaces fields of that observation."""

    def __init__(self, last: Mapping[str, Any] | None = None, weight: float = 1.0) -> None:
        self.last, self.weight = last or {}, weight

    def obs_space(self) -> ObsSpace:
        return ObsSpace({"Walker": Entity(["weight"])})

    def action_space(self) -> Mapping[str, CategoricalActionSpace]:
        return {"walk": CategoricalActionSpace(["left", "right"])}

    def reset(self) -> Observation:
        return Observation(
            features={"Walker": [[self.weight]]}, ids={"Walker": [0]}, actions={"walk": CategoricalActionMask()}
        )

    def act(self, actions: Any) -> Observation:
        closed = CategoricalActionMask(mask=np.zeros((1, 2), np.bool_))
        last = replace(self.reset(), actions={"walk": closed}, done=True, truncated=True)
        for name, value in self.last.items():
            object.__setattr__(last, name, value)
        return last

    def state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        pass


def test_nobody_acts_in_a_last_observation_so_its_masks_are_not_checked() -> None:
    env = ListEnv(Walker, 2, final_observations="all")
    env.reset()
    obs = env.act(choose("walk", [[0], [1]]))
    assert obs.done.all()
    if obs.final is not None:
        assert obs.final.action_masks["walk"].actors.items() == 0
    episodes = ListEnv(Walker, 2, autoreset=False)
    episodes.reset()
    assert episodes.act(choose("walk", [[0], [1]])).done.all()


# --- Worlds that are wrong


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("features", None, "features is None; it must be a mapping"),
        ("end_of_episode_info", [1], r"end_of_episode_info is \[1\]; it must be a mapping from name to value, or None"),
        ("done", "yes", "done is 'yes'; it must be a bool"),
        ("metrics", 3, "metrics is 3; it must be a mapping"),
    ],
)
def test_a_field_that_is_wrong_is_named(field: str, value: Any, message: str) -> None:
    for autoreset in (True, False):
        env = ListEnv(lambda: Walker({field: value}), 1, final_observations="all", autoreset=autoreset)
        env.reset()
        with pytest.raises(ValueError, match=rf"Walker \(environment 0\): {message}"):
            env.act(choose("walk", [[0]]))


OTHER: dict[str, Any] = {
    "obs_space": ObsSpace({"Walker": Entity(["height"])}),
    "action_space": {"walk": CategoricalActionSpace(["up"])},
}


@pytest.mark.parametrize("method", OTHER)
def test_spaces_that_are_none_or_differ_are_refused(method: str) -> None:
    with pytest.raises(ValueError, match=rf"Wrong: {method}\(\) returned None; expected"):
        ListEnv(type("Wrong", (Walker,), {method: lambda self: None}), 1)
    odd = type("Odd", (Walker,), {method: lambda self: OTHER[method]})
    with pytest.raises(ValueError, match=rf"environment 1\): {method}\(\) returned .* must have the same spaces"):
        ListEnv(making(Walker(), odd()), 2)


def test_an_iterator_that_ends_inside_a_world_ends_no_loop_outside() -> None:
    class Ends(Walker):
        def act(self, actions: Any) -> Observation:
            raise StopIteration("no more levels")

    env = ListEnv(Ends, 1)
    env.reset()
    with pytest.raises(RuntimeError, match=r"Ends \(environment 0\) raised StopIteration\('no more levels'\) in act"):
        env.act(choose("walk", [[0]]))


# --- Parameters without a configure() of one's own


def test_by_default_parameters_are_arguments_of_the_constructor() -> None:
    env = ListEnv(Walker, 2)
    env.reset()
    with pytest.raises(ValueError, match=r"Walker has no parameter 'wieght'; allowed: .*did you mean 'weight'"):
        env.configure([{}, {"wieght": 2.0}])
    env.configure({"weight": [2.0, 3.0]})
    obs = env.act(choose("walk", [[0], [0]]))
    assert obs.features["Walker"].values.tolist() == [[2], [3]]


def test_such_parameters_are_saved() -> None:
    env, other = ListEnv(Walker, 2), ListEnv(Walker, 2)
    env.reset()
    before = env.state()
    env.reset(env_info={"weight": [2.0, 3.0]})
    after = env.state()
    for target in (env, other):
        target.load_state(before)
        assert target.act(choose("walk", [[0], [0]])).features["Walker"].values.tolist() == [[1], [1]]
        target.load_state(after)
        assert target.act(choose("walk", [[0], [0]])).features["Walker"].values.tolist() == [[2], [3]]


def test_numbers_of_entities_last_as_long_as_the_episode_and_are_saved() -> None:
    class Herd(Walker):
        """Shows one more entity with each step, the newest first."""

        def __init__(self) -> None:
            super().__init__()
            self.steps = 0

        def reset(self) -> Observation:
            self.steps = 0
            return self.show()

        def act(self, actions: Any) -> Observation:
            self.steps += 1
            return replace(self.show(), done=self.steps == 3)

        def show(self) -> Observation:
            names = [f"w{k}" for k in range(self.steps, -1, -1)]
            return Observation(
                features={"Walker": [[1.0]] * len(names)},
                ids={"Walker": names},
                actions={"walk": CategoricalActionMask(actor_ids=["w0"])},
            )

        def state(self) -> dict[str, Any]:
            return {"steps": self.steps}

        def load_state(self, state: Mapping[str, Any]) -> None:
            self.steps = state["steps"]

    env, other = (ListEnv(Herd, 1, final_observations="all") for _ in range(2))
    assert env.reset().ids["Walker"].values.ravel().tolist() == [0]
    assert env.act(choose("walk", [[0]])).ids["Walker"].values.ravel().tolist() == [1, 0]
    other.load_state(env.state())
    for each in (env, other):
        assert each.act(choose("walk", [[0]])).ids["Walker"].values.ravel().tolist() == [2, 1, 0]
        obs = each.act(choose("walk", [[0]]))
        assert obs.final is not None
        assert obs.final.ids["Walker"].values.ravel().tolist() == [3, 2, 1, 0]
        assert obs.ids["Walker"].values.ravel().tolist() == [0]


# --- Two slots, one object


THE_SAME = Walker()


def the_same() -> Walker:
    return THE_SAME


@pytest.mark.parametrize(
    "make_pool",
    [
        ListEnv,
        lambda env, n: ThreadedVecEnv(env, n, num_processes=1),
    ],
)
def test_a_factory_that_returns_the_same_object_twice_is_refused(make_pool: Callable[..., Any], threads: None) -> None:
    with pytest.raises(
        ValueError, match="create_env returned the same Walker object twice; .* make a new one for each"
    ):
        make_pool(the_same, 2)


class Emptying(Walker):
    """Takes what it needs out of the lists and mappings that it is given."""

    def __init__(self, weights: list[float], options: dict[str, Any], last: Any = None) -> None:
        super().__init__(weight=weights.pop() + options["inner"].pop("weight"))
        self.given = last


def test_every_environment_gets_lists_and_mappings_of_its_own() -> None:
    weights, options, last = [1.0, 2.0], {"inner": {"weight": 3.0}}, object()
    with make(Emptying, 3, weights=weights, options=options, last=last) as pool:
        assert pool.reset().features["Walker"].values.tolist() == [[5], [5], [5]]
        assert all(env.given is last for env in pool.slots.envs)
    assert (weights, options) == ([1.0, 2.0], {"inner": {"weight": 3.0}})
