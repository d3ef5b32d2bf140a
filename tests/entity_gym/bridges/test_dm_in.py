"""dm_env environments in pools; what `Walk` shows and pays is worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

dm_env = pytest.importorskip("dm_env")

from dm_env import specs  # noqa: E402

from entity_gym import (  # noqa: E402
    CategoricalActionSpace,
    Category,
    ContinuousActionSpace,
    Entity,
    SelectEntitiesActionSpace,
)
from entity_gym.batch.ragged import RaggedBuffer  # noqa: E402
from entity_gym.bridges.dm_env.incoming import from_dm_env  # noqa: E402


class Walk(dm_env.Environment):  # type: ignore[misc]
    """A place that begins at the seed; +1 and -1. Ends below 0 by its own rules, and is cut after two steps."""

    def __init__(self, seed: int = 50) -> None:
        self.first = seed
        self.actions: list[Any] = []

    def reset(self) -> Any:
        self.place, self.steps = self.first, 0
        return dm_env.restart(self.shown())

    def step(self, action: Any) -> Any:
        self.actions.append(action)
        self.place += 1 if action else -1
        self.steps += 1
        if self.place < 0:
            return dm_env.termination(float(self.place), self.shown())
        if self.steps == 2:
            return dm_env.truncation(float(self.place), self.shown())
        return dm_env.transition(float(self.place), self.shown())

    def shown(self) -> Any:
        return {"place": np.array([self.place], np.float32), "body": {"gear": np.array(self.steps)}}

    def observation_spec(self) -> Any:
        return {"place": specs.Array((1,), np.float32), "body": {"gear": specs.DiscreteArray(3)}}

    def action_spec(self) -> Any:
        return specs.DiscreteArray(2)


class Push(Walk):
    """Takes a push with real numbers, and a whole number of steps."""

    def step(self, action: Any) -> Any:
        self.actions.append(action)
        return dm_env.transition(0.0, self.shown())

    def action_spec(self) -> Any:
        return {
            "push": specs.BoundedArray((2,), np.float64, [-1, -2], [1, 2]),
            "far": specs.BoundedArray((), np.int32, 1, 3),
        }


class Lift(Push):
    """Lifts some of three weights."""

    def shown(self) -> Any:
        return np.array([[1], [2], [3]], np.float32)

    def observation_spec(self) -> Any:
        return specs.Array((3, 1), np.float32)

    def action_spec(self) -> Any:
        return specs.BoundedArray((3,), np.bool_, False, True)


def choose(*choices: int) -> dict[str, RaggedBuffer[np.int64]]:
    return {"action": RaggedBuffer.from_array(np.array(choices).reshape(-1, 1, 1))}


def test_specs_are_the_spaces_that_they_are_like() -> None:
    with from_dm_env(Walk) as pool:  # type: ignore[union-attr]
        assert pool.obs_space().entities == {"Agent": Entity(["place.0"]), "body": Entity([Category("gear", 3)])}
        assert pool.action_space() == {"action": CategoricalActionSpace(["0", "1"])}


def test_environment_i_is_made_anew_with_the_seed_plus_i() -> None:
    with from_dm_env(Walk, 3, seed=7) as pool:  # type: ignore[union-attr]
        assert pool.reset().features["Agent"].values.tolist() == [[7], [8], [9]]
        assert pool.reset(seed=1).features["Agent"].values.tolist() == [[1], [2], [3]]


def test_dm_controls_suite_takes_the_seed_among_the_arguments_of_the_task() -> None:
    def load(domain: str, task_kwargs: dict[str, int] | None = None) -> Walk:
        return Walk(task_kwargs["random"] + task_kwargs["far"] if task_kwargs and "random" in task_kwargs else 50)

    with from_dm_env(load, 2, seed=7, domain="cartpole", task_kwargs={"far": 100}) as pool:  # type: ignore[union-attr]
        assert pool.reset().features["Agent"].values.tolist() == [[107], [108]]


def test_a_discount_of_zero_is_an_end_and_another_one_a_cut() -> None:
    with from_dm_env(Walk, 2, seed=0) as pool:  # type: ignore[union-attr]
        pool.reset()
        obs = pool.act(choose(0, 1))
        assert (obs.reward.tolist(), obs.done.tolist(), obs.truncated.tolist()) == (
            [-1, 2],
            [True, False],
            [False, False],
        )
        obs = pool.act(choose(1, 1))
        assert (obs.reward.tolist(), obs.done.tolist(), obs.truncated.tolist()) == (
            [1, 3],
            [False, True],
            [False, True],
        )
        assert obs.final is not None and obs.final.features["Agent"].values.tolist() == [[3]]
        assert obs.final.features["body"].values.tolist() == [[2]]


def test_actions_arrive_with_the_types_of_their_specs() -> None:
    made: list[Push] = []

    def make() -> Push:
        made.append(Push())
        return made[-1]

    with pytest.warns(
        UserWarning, match=r"Push cannot be seeded: its constructor has none of the parameters seed, random"
    ):
        pool = from_dm_env(make)
        pool.reset()
    assert pool.action_space()["push"] == ContinuousActionSpace([-1, -2], [1, 2])
    pool.act(  # type: ignore[union-attr]
        {
            "push": RaggedBuffer.from_array(np.array([[[0.5, -2.0]]], np.float32)),
            "far": RaggedBuffer.from_array(np.array([[[2]]])),
        }
    )
    (action,) = made[-1].actions
    assert action["push"].dtype == np.float64 and action["push"].tolist() == [0.5, -2.0]
    assert action["far"].dtype == np.int32 and action["far"] == 3


def changed(**methods: Any) -> type[Walk]:
    """A walk that returns other things."""
    return type("Changed", (Walk,), {name: lambda self, *_, given=given: given for name, given in methods.items()})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            changed(observation_spec={"name": specs.StringArray(())}),
            r"spec of observation\.name is StringArray.*expected numbers of a known shape.*: leave others out in a wrapper",
        ),
        (changed(action_spec=specs.Array((2,), np.int32)), r"spec of action is Array.*whole numbers need bounds"),
        (dict, r"dict is no dm_env environment: it has no reset\(\)"),
        (5, r"the dm_env environment is 5; expected a class or function that makes one, or its name"),
    ],
)
def test_what_has_no_form_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_dm_env(make)


def test_flags_select_a_set_of_the_rows_of_a_view() -> None:
    made: list[Lift] = []

    def make(seed: int = 0) -> Lift:
        made.append(Lift())
        return made[-1]

    view = {"entities": {"Weight": {"features": ["kg"]}}, "select": "Weight"}
    with from_dm_env(make, view=view) as pool:  # type: ignore[union-attr]
        assert pool.action_space() == {"action": SelectEntitiesActionSpace()}
        pool.reset()
        pool.act({"action": RaggedBuffer.from_array(np.array([[[1], [0], [1]]]))})
    (action,) = made[-1].actions
    assert action.dtype == np.bool_ and action.tolist() == [True, False, True]
