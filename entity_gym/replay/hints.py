"""Hints for drawing a world, as its `draw()` returns them: checked, so that a misspelt name is no silent default."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from entity_gym.environment import DRAW_IS_A_HOOK
from entity_gym.errors import nearest
from entity_gym.spaces import GLOBAL_ENTITY, ObsSpace

SHAPES = ("circle", "square", "triangle", "diamond", "cross", "ring")
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
LONGEST_LABEL = 200  # characters
LONGEST_TRAIL = 10_000  # steps


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool | np.bool_)


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    return is_number and bool(np.isfinite(value))


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and 0 <= int(value) <= LONGEST_TRAIL


def _is_bounds(value: Any) -> bool:
    numbers = list(value) if isinstance(value, Sequence | np.ndarray) and not isinstance(value, str) else []
    return len(numbers) == 4 and all(map(_is_number, numbers)) and numbers[0] <= numbers[2] and numbers[1] <= numbers[3]


#: Check of a value, its conversion to JSON, and its description in messages.
_Rule = tuple[Callable[[Any], bool], Callable[[Any], Any], str]

_FLAG: _Rule = (_is_flag, bool, "True or False")
_WHOLE: _Rule = (_is_whole, int, f"a whole number from 0 to {LONGEST_TRAIL}")
_FEATURE: _Rule = (lambda value: isinstance(value, str), str, "the name of a feature")
_RULES: Mapping[str, _Rule] = {
    "grid": _FLAG,
    "y_up": _FLAG,
    "bounds": (
        _is_bounds,
        lambda value: list(map(float, value)),
        "four finite numbers: left, top, right, bottom, the smallest x and y and the largest, also with y_up",
    ),
}
_RULES_OF_TYPE: Mapping[str, _Rule] = {
    "position": (
        lambda value: isinstance(value, list | tuple) and len(value) == 2,
        list,
        "the names of two features, for x and y",
    ),
    "shape": (lambda value: value in SHAPES, str, f"one of {', '.join(map(repr, SHAPES))}"),
    "color": (
        lambda value: isinstance(value, str) and bool(re.fullmatch("#[0-9a-fA-F]{6}", value)),
        str,
        "like '#2a9d8f'",
    ),
    "color_by": _FEATURE,
    "size": (
        lambda value: _is_number(value) and value > 0,
        float,
        "a diameter greater than 0, in the units of the positions",
    ),
    "label": (
        lambda value: isinstance(value, str) and len(value) <= LONGEST_LABEL,
        str,
        f"a text of at most {LONGEST_LABEL} characters",
    ),
    "angle": _FEATURE,
    "trail": _WHOLE,
    "layer": _WHOLE,
}
#: Hint of a type -> the features that its value names.
_NAMED: Mapping[str, Callable[[Any], Iterable[Any]]] = {
    "position": list,
    "color_by": lambda name: [name],
    "angle": lambda name: [name],
    "label": _PLACEHOLDER.findall,
}


def check_hints(given: Any, obs_space: ObsSpace, where: str) -> dict[str, Any] | None:
    """Check the hints of one episode, and return them as JSON holds them; None, if they are None.

    Args:
        given: what `draw()` returned.
        obs_space: of the world.
        where: name of the environment, for messages.

    Raises:
        ValueError: a key is unknown, or a value is not what the format allows; names the key.
    """
    if given is None:
        return None
    at = f"{where}: draw()"
    if not isinstance(given, Mapping):
        raise ValueError(f"{at} returned {given!r:.200}; {DRAW_IS_A_HOOK}")
    checked = _checked({key: value for key, value in given.items() if key != "types"}, _RULES, at, ["types"])
    if "types" in given:
        features = {name: entity.features for name, entity in obs_space.entities.items()}
        features[GLOBAL_ENTITY] = obs_space.global_features
        at += "['types']"
        checked["types"] = {}
        for name, hints in _mapping(given["types"], features, at).items():
            of_type = checked["types"][name] = _checked(hints, _RULES_OF_TYPE, f"{at}[{name!r}]")
            for key in of_type.keys() & _NAMED.keys():
                for feature in _NAMED[key](of_type[key]):
                    if feature not in features[name]:
                        problem = f"names {feature!r:.200}, which is no feature; {nearest(feature, features[name])}"
                        raise ValueError(f"{at}[{name!r}][{key!r}] {problem}")
    return checked


def _mapping(given: Any, allowed: Iterable[str], at: str) -> Mapping[str, Any]:
    """Return `given`; raises a ValueError unless it is a mapping with some of the keys `allowed`."""
    if not isinstance(given, Mapping):
        raise ValueError(
            f"{at} is {given!r:.200}; it must be a dictionary with any of: {', '.join(map(repr, allowed))}"
        )
    for key in given:
        if key not in list(allowed):
            raise ValueError(f"{at} has the key {key!r:.200}; {nearest(key, allowed)}")
    return given


def _checked(given: Any, rules: Mapping[str, _Rule], at: str, others: Sequence[str] = ()) -> dict[str, Any]:
    """Return the hints of a mapping as JSON holds them; `others` are further keys that it may have, for messages."""
    checked = {}
    for key, value in _mapping(given, [*rules, *others], at).items():
        is_valid, convert, needed = rules[key]
        if not is_valid(value):
            raise ValueError(f"{at}[{key!r}] is {value!r:.200}; it must be {needed}")
        checked[key] = convert(value)
    return checked
