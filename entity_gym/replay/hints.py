"""Hints for drawing a world, as its `draw()` returns them: checked, so that a misspelt name is no silent default."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from entity_gym.errors import nearest
from entity_gym.spaces import GLOBAL_ENTITY, ObsSpace

SHAPES = ("circle", "square", "triangle", "diamond", "cross", "ring")
_COLOR = re.compile(r"#[0-9a-fA-F]{6}")
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
LONGEST_LABEL = 200  # characters
LONGEST_TRAIL = 10_000  # steps


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
    hints = _object(given, ("bounds", "grid", "y_up", "types"), at)
    checked: dict[str, Any] = {}
    for key in ("grid", "y_up"):
        if key in hints:
            checked[key] = _flag(hints[key], f"{at}[{key!r}]")
    if "bounds" in hints:
        checked["bounds"] = _bounds(hints["bounds"], f"{at}['bounds']")
    if "types" in hints:
        features = {name: entity.features for name, entity in obs_space.entities.items()}
        features[GLOBAL_ENTITY] = obs_space.global_features
        types = _object(hints["types"], features, f"{at}['types']")
        checked["types"] = {
            name: _type(type_, features[name], f"{at}['types'][{name!r}]") for name, type_ in types.items()
        }
    return checked


def _type(given: Any, features: Sequence[str], at: str) -> dict[str, Any]:
    hints = _object(given, _CHECKS, at)
    return {key: _CHECKS[key](value, features, f"{at}[{key!r}]") for key, value in hints.items()}


def _object(given: Any, allowed: Any, at: str) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise ValueError(
            f"{at} is {given!r:.200}; it must be a dictionary with any of: {', '.join(map(repr, allowed))}"
        )
    for key in given:
        if key not in allowed:
            raise ValueError(f"{at} has the key {key!r:.200}; {nearest(key, allowed)}")
    return given


def _bounds(given: Any, at: str) -> list[float]:
    numbers = list(given) if isinstance(given, Sequence | np.ndarray) and not isinstance(given, str) else []
    if len(numbers) != 4 or not all(map(_is_number, numbers)):
        raise ValueError(f"{at} is {given!r:.200}; it must be four finite numbers: left, top, right, bottom")
    left, top, right, bottom = map(float, numbers)
    if left > right or top > bottom:
        raise ValueError(
            f"{at} is {given!r:.200}; left must not be above right, nor top above bottom: they are the smallest x and y and the "
            "largest, also with y_up"
        )
    return [left, top, right, bottom]


def _flag(given: Any, at: str) -> bool:
    if not isinstance(given, bool | np.bool_):
        raise ValueError(f"{at} is {given!r:.200}; it must be True or False")
    return bool(given)


def _is_number(value: Any) -> bool:
    return (
        isinstance(value, int | float | np.integer | np.floating)
        and not isinstance(value, bool)
        and bool(np.isfinite(value))
    )


def _feature(given: Any, features: Sequence[str], at: str) -> str:
    if given not in list(features):
        raise ValueError(f"{at} is {given!r:.200}, which is no feature; {nearest(given, features)}")
    return str(given)


def _position(given: Any, features: Sequence[str], at: str) -> list[str]:
    if not isinstance(given, list | tuple) or len(given) != 2:
        raise ValueError(f"{at} is {given!r:.200}; it must be the names of two features, for x and y")
    return [_feature(name, features, at) for name in given]


def _shape(given: Any, features: Sequence[str], at: str) -> str:
    if given not in SHAPES:
        raise ValueError(f"{at} is {given!r:.200}; {nearest(given, SHAPES)}")
    return str(given)


def _color(given: Any, features: Sequence[str], at: str) -> str:
    if not isinstance(given, str) or not _COLOR.fullmatch(given):
        raise ValueError(f"{at} is {given!r:.200}; it must look like '#2a9d8f'")
    return given


def _size(given: Any, features: Sequence[str], at: str) -> float:
    if not _is_number(given) or not given > 0:
        raise ValueError(f"{at} is {given!r:.200}; it must be a diameter greater than 0, in the units of the positions")
    return float(given)


def _label(given: Any, features: Sequence[str], at: str) -> str:
    if not isinstance(given, str) or len(given) > LONGEST_LABEL:
        raise ValueError(f"{at} is {given!r:.200}; it must be a text of at most {LONGEST_LABEL} characters")
    for name in _PLACEHOLDER.findall(given):
        _feature(name, features, f"{at}: the name in braces")
    return given


def _whole(given: Any, features: Sequence[str], at: str) -> int:
    if not isinstance(given, int | np.integer) or isinstance(given, bool) or not 0 <= given <= LONGEST_TRAIL:
        raise ValueError(f"{at} is {given!r:.200}; it must be a whole number from 0 to {LONGEST_TRAIL}")
    return int(given)


#: Key of a type's hints -> check of its value, given the features of the type and the name of the value for messages.
_CHECKS: Mapping[str, Callable[[Any, Sequence[str], str], Any]] = {
    "position": _position,
    "shape": _shape,
    "color": _color,
    "color_by": _feature,
    "size": _size,
    "label": _label,
    "angle": _feature,
    "trail": _whole,
    "layer": _whole,
}
