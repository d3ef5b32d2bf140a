"""Spaces, observations and actions as JSON has them. See docs/protocol.md.

Nothing that has come from elsewhere is trusted: what cannot be is a `ProtocolError` that says what was given and what is
allowed. Whether an observation fits the spaces is checked where every environment's is, in `entity_gym.batch.frame`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import (
    KINDS,
    Action,
    ActionMask,
    ActionSpace,
    CategoricalAction,
    ContinuousAction,
    GlobalCategoricalAction,
)
from entity_gym.batch.saving import spaces_from_dict
from entity_gym.bridges.remote.messages import Message, ProtocolError, check_parts
from entity_gym.environment import Observation
from entity_gym.errors import nearest
from entity_gym.spaces import LARGEST_FLOAT32, Angle, Category, Flag, ObsSpace

#: The parts of an observation, and what each must be.
_PARTS: dict[str, type | tuple[type, ...]] = {
    "features": dict,
    "ids": dict,
    "actions": dict,
    "global_features": list,
    "visible": dict,
    "reward": (int, float),
    "done": bool,
    "truncated": bool,
    "metrics": dict,
    "end_of_episode_info": (dict, type(None)),
    "player_rewards": list,
}
_CALLED = {
    dict: "an object",
    list: "a list",
    bool: "true or false",
    (int, float): "a number",
    (dict, type(None)): "an object",
}
_SPACES_PARTS = ("entities", "global_features", "global_kinds", "actions")
_ENTITY_PARTS = ("name", "features", "kinds")
_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in (Category, Angle, Flag)}
_ACTIONS: dict[str, type[Any]] = dict(KINDS)
_ACTORS = ("actor_ids", "actor_types")
_MASK_PARTS = {
    "CategoricalActionMask": (*_ACTORS, "mask"),
    "GlobalCategoricalActionMask": ("mask",),
    "SelectEntityActionMask": (*_ACTORS, "actee_ids", "actee_types", "mask"),
    "ContinuousActionMask": _ACTORS,
}


class Spaces(NamedTuple):
    """What a world shows and what can be done in it."""

    obs_space: ObsSpace
    action_space: dict[str, ActionSpace]


def spaces_from_json(given: Any) -> Spaces:
    """Spaces in the form of a checkpoint's `spaces.json`.

    Raises:
        ProtocolError: what was given does not have that form; says where.
    """
    if not isinstance(given, dict):
        raise ProtocolError(f"the spaces are {given!r:.200}; they must be an object with 'entities' and 'actions'")
    check_parts(given, _SPACES_PARTS, "'spaces'")
    try:
        for part in ("entities", "actions"):
            if not isinstance(given.get(part), list):
                raise ValueError(f"{part!r} is {given.get(part)!r:.200}; it must be a list of objects")
            names = [each["name"] for each in given[part]]
            if not all(isinstance(name, str) for name in names):
                raise ValueError(f"{part!r} has the names {names!r:.200}; they must be texts")
            if repeated := {name for name in names if names.count(name) > 1}:
                raise ValueError(f"{part!r} names {sorted(repeated)} more than once")
        for entity in given["entities"]:
            where = f"entity {entity['name']!r}"
            check_parts(entity, _ENTITY_PARTS, where)
            _check_kinds(entity.get("kinds", []), where)
            _check_alone(where, entities=[entity])
        _check_kinds(given.get("global_kinds", []), "'global_kinds'")
        if not given["entities"] and not given.get("global_features"):
            raise ValueError("there are neither entities nor global features")
        if not given["actions"]:
            raise ValueError("there is no action")
        for action in given["actions"]:
            where = f"action {action['name']!r}"
            _check_type(action, _ACTIONS, where)
            choices = action.get("choices", [])
            if not isinstance(choices, list):
                raise ValueError(f"{where}: choices is {choices!r:.200}; it must be a list of names")
            _check_alone(where, actions=[action])
        return Spaces(*spaces_from_dict({"global_features": [], **given}))
    except KeyError as error:
        raise ProtocolError(f"the spaces cannot be read: {error} is missing") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise ProtocolError(f"the spaces cannot be read: {error}") from None


def _check_kinds(kinds: Any, where: str) -> None:
    if not isinstance(kinds, list):
        raise ValueError(f"{where}: the kinds are {kinds!r:.200}; they must be a list of objects")
    for kind in kinds:
        _check_type(kind, _KINDS, f"{where}: the kind of {kind['name']!r}")


def _check_type(given: Any, types: Mapping[str, type[Any]], where: str) -> None:
    """Refuse a type that is none, and parts that it does not have."""
    kind = given.get("type")
    if kind not in types:
        raise ValueError(f"{where}: the type is {kind!r:.200}; {nearest(kind, types)}")
    check_parts(given, ("type", "name", *types[kind].__dataclass_fields__), where)


def _check_alone(where: str, **part: Any) -> None:
    """Refuse what cannot be built, and say where it stands."""
    try:
        spaces_from_dict({"entities": [], "global_features": [], "actions": [], **part})
    except (ValueError, TypeError) as error:
        raise ValueError(f"{where}: {error}") from None


def observation_from_json(given: Any, action_space: Mapping[str, ActionSpace]) -> Observation:
    """An observation. Parts that are left out are as in `Observation`.

    Args:
        given: what came; a "type", "env" and "id" beside the parts are not looked at.
        action_space: the actions by name.

    Raises:
        ProtocolError: a part is none, or not what it must be.
    """
    if not isinstance(given, dict):
        raise ProtocolError(f"the observation is {given!r:.200}; it must be an object")
    parts = {name: value for name, value in given.items() if name not in ("type", "env", "id")}
    check_parts(parts, _PARTS, "an observation")
    for name, value in parts.items():
        allowed = _PARTS[name]
        is_bool = isinstance(value, bool)
        if not isinstance(value, allowed) or is_bool != (allowed is bool):
            raise ProtocolError(f"{name} is {value!r:.200}; it must be {_CALLED[allowed]}")
    if not abs(parts.get("reward", 0)) <= LARGEST_FLOAT32:
        raise ProtocolError(f"reward is {parts['reward']!r:.200}; it must be a number that float32 can hold")
    if "features" in parts:
        parts["features"] = {name: _numbers(rows, f"features of {name!r}") for name, rows in parts["features"].items()}
    if "global_features" in parts:
        parts["global_features"] = _numbers(parts["global_features"], "global_features")
    for name, ids in parts.get("ids", {}).items():
        _check_ids(ids, f"ids of {name!r}")
    parts["actions"] = {
        name: _mask_from_json(name, mask, action_space) for name, mask in parts.get("actions", {}).items()
    }
    try:
        return Observation(**parts)
    except ValueError as error:  # truncated and not done
        raise ProtocolError(str(error)) from None


def actions_to_json(actions: Mapping[str, Action]) -> Message:
    """What an environment is told to do."""
    return {name: _action_to_json(action) for name, action in actions.items()}


def _action_to_json(action: Action) -> Message:
    if isinstance(action, GlobalCategoricalAction):
        return {"choice": int(action.action), "label": action.label}
    if isinstance(action, CategoricalAction):
        return {"actors": list(action.actors), "choices": np.asarray(action.actions).tolist()}
    if isinstance(action, ContinuousAction):
        return {"actors": list(action.actors), "values": np.asarray(action.values).tolist()}
    return {"actors": list(action.actors), "actees": list(action.actees)}


def _mask_from_json(name: str, given: Any, action_space: Mapping[str, ActionSpace]) -> ActionMask:
    space = action_space.get(name)
    if space is None:
        raise ProtocolError(f"unknown action {name!r}; {nearest(name, action_space)}")
    mask_type = space.mask_type
    allowed = _MASK_PARTS[mask_type.__name__]
    if not isinstance(given, dict):
        raise ProtocolError(f"action {name!r} is {given!r:.200}; it must be an object with any of {list(allowed)}")
    check_parts(given, allowed, f"action {name!r}")
    for part, value in given.items():
        if value is None:
            continue
        if not isinstance(value, list):
            raise ProtocolError(f"{part} of action {name!r} is {value!r:.200}; it must be a list")
        if part.endswith("_ids"):
            _check_ids(value, f"{part} of action {name!r}")
        elif part.endswith("_types") and not all(isinstance(each, str) for each in value):
            raise ProtocolError(f"{part} of action {name!r} are {value!r:.200}; they must be names of entity types")
    try:
        mask: ActionMask = mask_type(**given)
    except ValueError as error:  # ids and types
        raise ProtocolError(f"action {name!r}: {error}") from None
    return mask


def _numbers(given: Any, what: str) -> NDArray[Any]:
    """Numbers alone: NumPy would read the text "1.5" as one, and nothing as not a number."""
    try:
        array = np.array(given if isinstance(given, Sequence) else [given])
    except ValueError:  # rows of different lengths
        array = np.array(None)
    if array.dtype.kind not in "biuf" or not isinstance(given, list):
        raise ProtocolError(f"{what} are {given!r:.200}; they must be numbers, and as many in every row")
    if array.dtype.kind == "f" and not (np.abs(array) <= LARGEST_FLOAT32).all():
        raise ProtocolError(f"{what} are {given!r:.200}; they must be numbers that float32 can hold")
    return array


def _check_ids(given: Any, what: str) -> None:
    if not isinstance(given, list) or not all(type(each) in (str, int) for each in given):
        raise ProtocolError(f"{what} are {given!r:.200}; they must be a list of texts or whole numbers")
