"""Observations and spaces as plain values, so that a checkpoint can hold them without running code when it is loaded."""

from __future__ import annotations

from collections.abc import KeysView, Mapping, Sequence, ValuesView
from dataclasses import fields
from typing import Any

import numpy as np

from entity_gym.actions import KINDS, ActionSpace
from entity_gym.environment import Observation
from entity_gym.spaces import Angle, Category, Entity, FeatureKind, Flag, ObsSpace

_KINDS: dict[str, type[FeatureKind]] = {kind.__name__: kind for kind in (Category, Angle, Flag)}
_MASKS: dict[str, type] = {kind.mask_type.__name__: kind.mask_type for kind in KINDS.values()}


def observation_to_state(obs: Observation) -> dict[str, Any]:
    """`obs` as dictionaries, lists, tuples, arrays and plain values, which share no memory with the environment's."""
    state = {field.name: plain_copy(getattr(obs, field.name)) for field in fields(obs)}
    state["actions"] = {
        name: {"type": type(mask).__name__, **plain_copy(vars(mask))} for name, mask in obs.actions.items()
    }
    return state


def observation_from_state(state: Mapping[str, Any]) -> Observation:
    """The observation that `observation_to_state` took apart."""
    actions = {}
    for name, saved in state["actions"].items():
        given = dict(saved)
        actions[name] = _MASKS[given.pop("type")](**given)
    return Observation(**{**state, "actions": actions})


def plain_copy(value: Any) -> Any:
    """Copy arrays, and what mappings and sequences hold, into dictionaries, lists and tuples; other values stay as they are."""
    if isinstance(value, np.ndarray):
        return value.copy("K")
    if isinstance(value, Mapping):
        return {key: plain_copy(item) for key, item in value.items()}
    if type(value) is tuple:
        return tuple(plain_copy(item) for item in value)
    if isinstance(value, Sequence | KeysView | ValuesView) and not isinstance(value, str | bytes | tuple):
        return [plain_copy(item) for item in value]
    return value


def spaces_to_dict(obs_space: ObsSpace, action_space: Mapping[str, ActionSpace]) -> dict[str, Any]:
    """Spaces as plain values that JSON can hold; `spaces_from_dict` puts them together again."""
    entities = []
    for name, entity in obs_space.entities.items():
        entities.append({"name": name, "features": list(entity.features), **_kinds_to_dict("kinds", entity.kinds)})
    return {
        "entities": entities,
        "global_features": list(obs_space.global_features),
        **_kinds_to_dict("global_kinds", obs_space.global_kinds),
        **({"targets": dict(obs_space.targets)} if obs_space.targets else {}),
        "actions": [{"name": name, **space.to_dict()} for name, space in action_space.items()],
    }


def spaces_from_dict(spaces: Mapping[str, Any]) -> tuple[ObsSpace, dict[str, ActionSpace]]:
    """The spaces that `spaces_to_dict` took apart.

    Raises:
        ValueError: `spaces` is something else; the message says what is missing or wrong.
    """
    entities: dict[str, Entity] = {}
    actions: dict[str, ActionSpace] = {}
    try:
        for entity in spaces["entities"]:
            entities[entity["name"]] = Entity(entity["features"], _kinds_from_list(entity.get("kinds", ())))
        for saved in spaces["actions"]:
            given = dict(saved)
            name = given.pop("name")
            actions[name] = KINDS[given["type"]].from_dict(given)
        global_kinds = _kinds_from_list(spaces.get("global_kinds", ()))
        return ObsSpace(entities, spaces["global_features"], global_kinds, spaces.get("targets", {})), actions
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the spaces cannot be read: {error!r}") from None


def _kinds_to_dict(key: str, kinds: Mapping[str, FeatureKind]) -> dict[str, Any]:
    """Return {key: saved kinds}, or {} if all features are plain numbers."""
    saved = [{"type": type(kind).__name__, **vars(kind)} for kind in kinds.values()]
    return {key: saved} if saved else {}


def _kinds_from_list(saved: Sequence[Mapping[str, Any]]) -> dict[str, FeatureKind]:
    kinds: dict[str, FeatureKind] = {}
    for each in saved:
        given = dict(each)
        kind = _KINDS[given.pop("type")]
        kinds[given["name"]] = kind(**given)
    return kinds


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
    for what in ("global_features", "global_kinds"):
        if saved.get(what) != now.get(what):
            return f"{what} were {saved.get(what, 'all plain numbers')} and are {now.get(what, 'all plain numbers')}"
    if saved.get("targets", {}) != now.get("targets", {}):
        return f"targets were {saved.get('targets', {})} and are {now.get('targets', {})}"
    return None
