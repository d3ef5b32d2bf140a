"""Spaces, observations and actions in JSON; see docs/protocol.md.

Input is not trusted: `ProtocolError`s say what was given and what is allowed. Whether an observation fits the spaces is
checked in `entity_gym.batch.frame`, as for every environment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import KINDS, Action, ActionSpace
from entity_gym.actions.kind import check_json_ids
from entity_gym.batch.saving import spaces_from_dict
from entity_gym.bridges.remote.messages import Message, ProtocolError
from entity_gym.environment import Observation
from entity_gym.errors import check_parts, nearest
from entity_gym.spaces import LARGEST_FLOAT32, Angle, Category, Flag, ObsSpace

#: The parts of an observation, their types in Python, and the type's name in messages.
_PARTS: dict[str, tuple[type | tuple[type, ...], str]] = {
    "features": (dict, "an object"),
    "ids": (dict, "an object"),
    "actions": (dict, "an object"),
    "global_features": (list, "a list"),
    "visible": (dict, "an object"),
    "reward": ((int, float), "a number"),
    "done": (bool, "true or false"),
    "truncated": (bool, "true or false"),
    "metrics": (dict, "an object"),
    "end_of_episode_info": ((dict, type(None)), "an object"),
    "player_rewards": (list, "a list"),
}
_FEATURE_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in (Category, Angle, Flag)}


def spaces_from_json(given: Any) -> tuple[ObsSpace, dict[str, ActionSpace]]:
    """Return the spaces that are given in the form of docs/protocol.md.

    Raises:
        ProtocolError: they do not have that form; says where.
    """
    if not isinstance(given, dict):
        raise ProtocolError(f"the spaces are {given!r:.200}; they must be an object with 'entities' and 'actions'")
    try:
        check_parts(given, ("entities", "global_features", "global_kinds", "actions"), "'spaces'")
        for part in ("entities", "actions"):
            if not isinstance(given.get(part), list):
                raise ValueError(f"{part!r} is {given.get(part)!r:.200}; it must be a list of objects")
            names = [each["name"] for each in given[part]]
            if not all(isinstance(name, str) for name in names):
                raise ValueError(f"{part!r} has the names {names!r:.200}; they must be texts")
            if repeated := sorted(name for name, count in Counter(names).items() if count > 1):
                raise ValueError(f"{part!r} names {repeated} more than once")
        for entity in given["entities"]:
            where = f"entity {entity['name']!r}"
            check_parts(entity, ("name", "features", "kinds"), where)
            _check_feature_kinds(entity.get("kinds", []), where)
            _check_alone(where, entities=[entity])
        _check_feature_kinds(given.get("global_kinds", []), "'global_kinds'")
        if not given["entities"] and not given.get("global_features"):
            raise ValueError("there are neither entities nor global features")
        if not given["actions"]:
            raise ValueError("there is no action")
        for action in given["actions"]:
            where = f"action {action['name']!r}"
            _check_type(action, KINDS, where)
            _check_alone(where, actions=[action])
        return spaces_from_dict({"global_features": [], **given})
    except KeyError as error:
        raise ProtocolError(f"the spaces cannot be read: {error} is missing") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise ProtocolError(f"the spaces cannot be read: {error}") from None


def _check_feature_kinds(kinds: Any, where: str) -> None:
    if not isinstance(kinds, list):
        raise ValueError(f"{where}: the kinds are {kinds!r:.200}; they must be a list of objects")
    for kind in kinds:
        _check_type(kind, _FEATURE_KINDS, f"{where}: the kind of {kind['name']!r}")


def _check_type(given: Any, types: Mapping[str, type[Any]], where: str) -> None:
    """Raise a ValueError unless the type is known and has the given attributes."""
    kind = given.get("type")
    if kind not in types:
        raise ValueError(f"{where}: the type is {kind!r:.200}; {nearest(kind, types)}")
    check_parts(given, ("type", "name", *types[kind].__dataclass_fields__), where)


def _check_alone(where: str, **part: Any) -> None:
    """Make the spaces of one entity type or action alone, so that an error can name it."""
    try:
        spaces_from_dict({"entities": [], "global_features": [], "actions": [], **part})
    except (ValueError, TypeError) as error:
        raise ValueError(f"{where}: {error}") from None


def observation_from_json(given: Any, action_space: Mapping[str, ActionSpace]) -> Observation:
    """Return an observation. Parts that are left out have the defaults of `Observation`.

    Args:
        given: a JSON value; "type", "env" and "id" of a message are ignored.
        action_space: the actions by name.

    Raises:
        ProtocolError: a part is unknown, or has another type.
    """
    if not isinstance(given, dict):
        raise ProtocolError(f"the observation is {given!r:.200}; it must be an object")
    parts = {name: value for name, value in given.items() if name not in ("type", "env", "id")}
    try:
        check_parts(parts, _PARTS, "an observation")
        for name, value in parts.items():
            allowed, called = _PARTS[name]
            if not isinstance(value, allowed) or isinstance(value, bool) != (allowed is bool):
                raise ValueError(f"{name} is {value!r:.200}; it must be {called}")
        if not abs(parts.get("reward", 0)) <= LARGEST_FLOAT32:
            raise ValueError(f"reward is {parts['reward']!r:.200}; it must be a number that float32 can hold")
        features = parts.get("features", {})
        parts["features"] = {name: _numbers(rows, f"features of {name!r}") for name, rows in features.items()}
        if "global_features" in parts:
            parts["global_features"] = _numbers(parts["global_features"], "global_features")
        for name, ids in parts.get("ids", {}).items():
            check_json_ids(ids, f"ids of {name!r}")
        masks = parts.get("actions", {})
        for name in masks:
            if name not in action_space:
                raise ValueError(f"unknown action {name!r}; {nearest(name, action_space)}")
        parts["actions"] = {name: action_space[name].mask_from_json(name, mask) for name, mask in masks.items()}
        return Observation(**parts)
    except ValueError as error:
        raise ProtocolError(str(error)) from None


def _numbers(given: Any, what: str) -> NDArray[Any]:
    """Return an array of numbers alone: NumPy would also read the text "1.5" as a number, and null as NaN."""
    try:
        array = np.array(given if isinstance(given, Sequence) else [given])
    except ValueError:  # rows of different lengths
        array = np.array(None)
    if array.dtype.kind not in "biuf" or not isinstance(given, list):
        raise ValueError(f"{what} are {given!r:.200}; they must be numbers, and as many in every row")
    if array.dtype.kind == "f" and not (np.abs(array) <= LARGEST_FLOAT32).all():
        raise ValueError(f"{what} are {given!r:.200}; they must be numbers that float32 can hold")
    return array


def actions_to_json(actions: Mapping[str, Action], action_space: Mapping[str, ActionSpace]) -> Message:
    """Return the actions that a world receives as a JSON object."""
    return {name: action_space[name].action_to_json(action) for name, action in actions.items()}
