"""Observations and spaces as plain values, so that a checkpoint can hold them without running code when it is loaded."""

from __future__ import annotations

from collections.abc import KeysView, Mapping, Sequence, ValuesView
from dataclasses import fields
from typing import Any

import numpy as np

from entity_gym.observation import (
    ActionMask,
    CategoricalActionMask,
    GlobalCategoricalActionMask,
    Observation,
    SelectEntityActionMask,
)
from entity_gym.spaces import (
    ActionSpace,
    CategoricalActionSpace,
    Entity,
    GlobalCategoricalActionSpace,
    ObsSpace,
    SelectEntityActionSpace,
)

_SPACES: dict[str, type[ActionSpace]] = {
    space.__name__: space for space in (CategoricalActionSpace, GlobalCategoricalActionSpace, SelectEntityActionSpace)
}
_MASKS: dict[str, type[ActionMask]] = {
    mask.__name__: mask for mask in (CategoricalActionMask, GlobalCategoricalActionMask, SelectEntityActionMask)
}


def observation_to_state(obs: Observation) -> dict[str, Any]:
    """`obs` as dictionaries, lists, tuples, arrays and plain values, which share no memory with the environment's."""
    state = {field.name: _plain(getattr(obs, field.name)) for field in fields(obs)}
    state["actions"] = {name: {"type": type(mask).__name__, **_plain(vars(mask))} for name, mask in obs.actions.items()}
    return state


def observation_from_state(state: Mapping[str, Any]) -> Observation:
    """The observation that `observation_to_state` took apart."""
    actions = {}
    for name, saved in state["actions"].items():
        given = dict(saved)
        actions[name] = _MASKS[given.pop("type")](**given)
    return Observation(**{**state, "actions": actions})


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.copy("K")
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if type(value) is tuple:
        return tuple(_plain(item) for item in value)
    if isinstance(value, Sequence | KeysView | ValuesView) and not isinstance(value, str | bytes | tuple):
        return [_plain(item) for item in value]
    return value


def spaces_to_dict(obs_space: ObsSpace, action_space: Mapping[str, ActionSpace]) -> dict[str, Any]:
    """Spaces as plain values that JSON can hold; `spaces_from_dict` puts them together again."""
    actions = {}
    for name, space in action_space.items():
        actions[name] = {"type": type(space).__name__, **{key: list(value) for key, value in vars(space).items()}}
    return {
        "entities": [{"name": name, "features": list(entity.features)} for name, entity in obs_space.entities.items()],
        "global_features": list(obs_space.global_features),
        "actions": [{"name": name, **action} for name, action in actions.items()],
    }


def spaces_from_dict(spaces: Mapping[str, Any]) -> tuple[ObsSpace, dict[str, ActionSpace]]:
    """The spaces that `spaces_to_dict` took apart."""
    entities = {entity["name"]: Entity(entity["features"]) for entity in spaces["entities"]}
    actions: dict[str, ActionSpace] = {}
    for saved in spaces["actions"]:
        given = dict(saved)
        name, kind = given.pop("name"), _SPACES[given.pop("type")]
        actions[name] = kind(**given)
    return ObsSpace(entities, spaces["global_features"]), actions


def spaces_difference(saved: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Say how two results of `spaces_to_dict` differ first; None if they do not."""
    for what in ("entities", "actions"):
        before = {item["name"]: item for item in saved[what]}
        after = {item["name"]: item for item in now[what]}
        for name in {**before, **after}:
            if before.get(name) != after.get(name):
                return f"{what}[{name!r}] was {before.get(name, 'not there')} and is {after.get(name, 'not there')}"
        if list(before) != list(after):
            return f"the order of {what} was {list(before)} and is {list(after)}"
    if saved["global_features"] != now["global_features"]:
        return f"global_features were {saved['global_features']} and are {now['global_features']}"
    return None
