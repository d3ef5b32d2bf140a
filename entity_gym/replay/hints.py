"""Hints for drawing a world, as its `draw()` returns them: checked, so that a misspelt name is no silent default."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from entity_gym.environment import DRAW_IS_A_HOOK
from entity_gym.errors import nearest
from entity_gym.spaces import GLOBAL_ENTITY, ObsSpace

SHAPES = ("circle", "square", "triangle", "diamond", "cross", "ring")
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
LONGEST_LABEL = 200  # characters
LONGEST_TRAIL = 10_000  # steps


#: Check of a value, its conversion to JSON, and its description in messages.
_Rule = tuple[Callable[[Any], bool], Callable[[Any], Any], str]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool) and math.isfinite(value)


def _is_bounds(value: Any) -> bool:
    is_four = isinstance(value, Sequence | np.ndarray) and len(value) == 4 and all(map(_is_number, value))
    return is_four and value[0] <= value[2] and value[1] <= value[3]


_FLAG: _Rule = (lambda value: isinstance(value, bool | np.bool_), bool, "True or False")
_WHOLE: _Rule = (
    lambda value: (
        isinstance(value, int | np.integer) and not isinstance(value, bool) and 0 <= int(value) <= LONGEST_TRAIL
    ),
    int,
    f"a whole number from 0 to {LONGEST_TRAIL}",
)
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
    features = {name: entity.features for name, entity in obs_space.entities.items()}
    features[GLOBAL_ENTITY] = obs_space.global_features
    types = {name: (lambda value: isinstance(value, Mapping), dict, "a dictionary") for name in features}
    is_types = (
        lambda value: isinstance(value, Mapping),
        lambda value: _checked(value, types, f"{at}['types']"),
        "a dictionary",
    )
    checked = _checked(given, {**_RULES, "types": is_types}, at)
    for name, hints in checked.get("types", {}).items():
        of_type = checked["types"][name] = _checked(hints, _RULES_OF_TYPE, f"{at}['types'][{name!r}]")
        named: dict[str, list[Any]] = {key: [of_type[key]] for key in ("color_by", "angle") if key in of_type}
        named |= {"position": of_type.get("position", []), "label": _PLACEHOLDER.findall(of_type.get("label", ""))}
        for key, feature in [(key, feature) for key, listed in named.items() for feature in listed]:
            if feature not in features[name]:
                problem = f"names {feature!r:.200}, which is no feature; {nearest(feature, features[name])}"
                raise ValueError(f"{at}['types'][{name!r}][{key!r}] {problem}")
    return checked


def _checked(given: Mapping[str, Any], rules: Mapping[str, _Rule], at: str) -> dict[str, Any]:
    """Return the hints of a mapping as JSON holds them."""
    checked = {}
    for key, value in given.items():
        if key not in rules:
            raise ValueError(f"{at} has the key {key!r:.200}; {nearest(key, rules)}")
        is_valid, convert, needed = rules[key]
        if not is_valid(value):
            raise ValueError(f"{at}[{key!r}] is {value!r:.200}; it must be {needed}")
        checked[key] = convert(value)
    return checked
