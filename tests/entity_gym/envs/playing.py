"""Worlds with one actor, or none, played by the names of choices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from entity_gym.actions import Action, CategoricalAction, GlobalCategoricalAction
from entity_gym.compiled import CompiledEnvironment
from entity_gym.environment import Observation
from tests.entity_gym.compiled.view import CompiledView

Policy = Callable[[Observation], dict[str, str]]


def started(env: CompiledEnvironment | type[CompiledEnvironment], seed: int = 0, **state: Any) -> CompiledView:
    """Return an un-jitted world in the first observation of an episode, with `state` written over its record."""
    view = CompiledView(env() if isinstance(env, type) else env)
    view.rng = np.random.default_rng(seed)
    view.reset()
    for name, value in state.items():
        if np.ndim(value):
            view.record[name].flat[: np.size(value)] = np.ravel(value)  # what lies behind stays
        else:
            view.record[name] = value
    view.observe()
    return view


def act(env: CompiledView, **choices: str) -> Observation:
    """One step: each action's choice, by its name, for the only entity that can act."""
    actions: dict[str, Action] = {}
    for name, choice in choices.items():
        action = env.env.actions[name]
        number = action.space.labels.index(choice)
        if action.space.is_global:
            actions[name] = GlobalCategoricalAction(number, choice)
        else:
            assert action.actors is not None
            actions[name] = CategoricalAction([(action.actors[0], 0)], np.array([number]))
    return env.act(actions)


def episode(env: CompiledView, policy: Policy) -> list[Observation]:
    """Return the observations of one episode, the first and the last included."""
    seen = [env.reset()]
    while not seen[-1].done:
        seen.append(act(env, **policy(seen[-1])))
    return seen


def resets(env: CompiledEnvironment | type[CompiledEnvironment], number: int, seed: int = 0) -> Iterator[CompiledView]:
    """The starts of so many episodes, one after the other in the same environment."""
    view = started(env, seed)
    for _ in range(number):
        yield view
        view.reset()


def rows(obs: Observation, entity: str) -> list[list[float]]:
    """The features of one type as lists."""
    return np.asarray(obs.features[entity]).tolist()
