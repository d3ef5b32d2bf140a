"""Spaces, observations and actions in JSON; see docs/protocol.md.

Input is not trusted: `ProtocolError`s say what was given and what is allowed. Whether an observation fits the spaces is
checked in `entity_gym.batch.frame`, as for every environment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import (
    KINDS,
    Action,
    ActionMask,
    ActionSpace,
    ContinuousAction,
    GlobalCategoricalAction,
    SelectEntityAction,
)
from entity_gym.batch.saving import spaces_from_dict
from entity_gym.bridges.remote.messages import FLAG, LIST, NUMBER, OBJECT, TEXT, Message, Parts, ProtocolError, check
from entity_gym.environment import Observation
from entity_gym.errors import check_parts, nearest
from entity_gym.spaces import LARGEST_FLOAT32, Angle, Category, Flag, ObsSpace

_SPACES: Parts = {
    "entities": LIST,
    "global_features": LIST,
    "global_kinds": LIST,
    "targets": OBJECT,
    "actions": LIST,
}
_ENTITY: Parts = {"name": TEXT, "features": LIST, "kinds": LIST}
_OBSERVATION: Parts = {
    "features": OBJECT,
    "ids": OBJECT,
    "actions": OBJECT,
    "global_features": LIST,
    "visible": OBJECT,
    "reward": NUMBER,
    "done": FLAG,
    "truncated": FLAG,
    "metrics": OBJECT,
    "end_of_episode_info": ((dict, type(None)), "an object"),
    "player_rewards": LIST,
    "targets": OBJECT,
}
#: Types of the items of a list, and their names in messages.
_IDS, _NAMES, _ANY = ((str, int), " of texts or whole numbers"), ((str,), " of names of entity types"), ((object,), "")
_FEATURE_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in (Category, Angle, Flag)}


def spaces_from_json(given: Any) -> tuple[ObsSpace, dict[str, ActionSpace]]:
    """Return the spaces that are given in the form of docs/protocol.md.

    Raises:
        ProtocolError: they do not have that form; says where.
    """
    check(given, _SPACES, "'spaces'", ("entities", "actions"))
    for each in given["entities"]:
        where = _named(each, "entity")
        check(each, _ENTITY, where, ("features",))
        _check_types(each.get("kinds", []), _FEATURE_KINDS, f"{where}: kind")
        _made({"entities": [each]}, f"{where}: ")
    _check_types(given.get("global_kinds", []), _FEATURE_KINDS, "'global_kinds': kind")
    _check_types(given["actions"], KINDS, "action")
    for each in given["actions"]:
        _made({"actions": [each]}, f"{_named(each, 'action')}: ")
    for part in ("entities", "actions"):
        if repeated := [name for name, n in Counter(each["name"] for each in given[part]).items() if n > 1]:
            raise ProtocolError(f"{part} of 'spaces' names {repeated} more than once")
    if not given["actions"] or not (given["entities"] or given.get("global_features")):
        raise ProtocolError("the spaces must have an action, and an entity type or global features")
    return _made(given, "")


def _named(given: Any, what: str) -> str:
    """Return the name of an entity, an action or a kind for messages."""
    if not isinstance(given, dict) or not isinstance(given.get("name"), str):
        raise ProtocolError(f"{what} {given!r:.200}: it must be an object with a 'name', a text")
    return f"{what} {given['name']!r}"


def _check_types(given: Sequence[Any], types: Mapping[str, type[Any]], what: str) -> None:
    """Raise a ProtocolError unless each has a known type, and only attributes of this type."""
    for each in given:
        where = _named(each, what)
        kind = each.get("type")
        if not isinstance(kind, str) or kind not in types:
            raise ProtocolError(f"{where}: the type is {kind!r:.200}; {nearest(kind, types)}")
        try:
            check_parts(each, dict.fromkeys(("type", "name", *types[kind].__dataclass_fields__)), where)
        except ValueError as error:
            raise ProtocolError(str(error)) from None


def _made(spaces: Mapping[str, Any], where: str) -> tuple[ObsSpace, dict[str, ActionSpace]]:
    """Make spaces, of one entity or action alone so that an error can name it."""
    try:
        return spaces_from_dict({"entities": [], "global_features": [], "actions": [], **spaces})
    except (ValueError, TypeError) as error:
        raise ProtocolError(f"{where}{error}") from None


def observation_from_json(given: Any, action_space: Mapping[str, ActionSpace]) -> Observation:
    """Return an observation. Parts that are left out have the defaults of `Observation`.

    Args:
        given: a JSON value; "type", "env" and "id" of a message are ignored.
        action_space: the actions by name.

    Raises:
        ProtocolError: a part is unknown, or has another type.
    """
    if isinstance(given, dict):
        given = {name: value for name, value in given.items() if name not in ("type", "env", "id")}
    check(given, _OBSERVATION, "the observation")
    try:
        if not abs(given.get("reward", 0)) <= LARGEST_FLOAT32:
            raise ValueError(f"reward is {given['reward']!r:.200}; it must be a number that float32 can hold")
        for part in ("features", "targets"):
            if part in given:
                given[part] = {name: _numbers(rows, f"{part} of {name!r}") for name, rows in given[part].items()}
        if "global_features" in given:
            given["global_features"] = _numbers(given["global_features"], "global_features")
        for name, ids in given.get("ids", {}).items():
            _check_list(ids, f"ids of {name!r}", *_IDS)
        masks = given.get("actions", {})
        for name in masks:
            if name not in action_space:
                raise ValueError(f"unknown action {name!r}; {nearest(name, action_space)}")
        given["actions"] = {name: mask_from_json(name, mask, action_space[name]) for name, mask in masks.items()}
        return Observation(**given)
    except ValueError as error:
        raise ProtocolError(str(error)) from None


def _numbers(given: Any, what: str) -> NDArray[Any]:
    """Return an array of numbers alone: NumPy would also read the text "1.5" as a number, and null as NaN."""
    try:
        array = np.array(given if isinstance(given, list) else None)
    except ValueError:  # rows of different lengths
        array = np.array(None)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{what} are {given!r:.200}; they must be numbers, and as many in every row")
    if array.dtype.kind == "f" and not (np.abs(array) <= LARGEST_FLOAT32).all():
        raise ValueError(f"{what} are {given!r:.200}; they must be numbers that float32 can hold")
    return array


def mask_from_json(name: str, given: Any, space: ActionSpace) -> ActionMask:
    """Make the mask of action `name` from a JSON object with any of the mask's attributes."""
    known, where = [each.name for each in fields(space.mask_type)], f"action {name!r}"
    if not isinstance(given, dict):
        raise ValueError(f"{where} is {given!r:.200}; it must be an object with any of {known}")
    check_parts(given, known, where)
    for part, value in given.items():
        kinds = _IDS if part.endswith("_ids") else _NAMES if part.endswith("_types") else _ANY
        if value is not None:
            _check_list(value, f"{part} of {where}", *kinds)
    try:
        mask: ActionMask = space.mask_type(**given)
    except ValueError as error:  # both ids and types
        raise ValueError(f"{where}: {error}") from None
    return mask


def _check_list(given: Any, what: str, types: tuple[type, ...], allowed: str) -> None:
    if not isinstance(given, list) or not all(object in types or type(each) in types for each in given):
        raise ValueError(f"{what} are {given!r:.200}; they must be a list{allowed}")


def actions_to_json(actions: Mapping[str, Action]) -> Message:
    """Return the actions that a world receives as a JSON object."""
    return {name: _action_to_json(action) for name, action in actions.items()}


def _action_to_json(action: Action) -> Message:
    if isinstance(action, GlobalCategoricalAction):
        return {"choice": int(action.action), "label": action.label}
    if isinstance(action, ContinuousAction):
        return {"actors": list(action.actors), "values": np.asarray(action.values).tolist()}
    if isinstance(action, SelectEntityAction):  # actors that select nobody are not listed
        pairs = [(actor, actee) for actor, actee in zip(action.actors, action.actees, strict=True) if actee is not None]
        return {"actors": [actor for actor, _ in pairs], "actees": [actee for _, actee in pairs]}
    return {"actors": list(action.actors), "choices": np.asarray(action.actions).tolist()}
