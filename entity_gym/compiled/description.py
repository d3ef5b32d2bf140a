"""The class of a compiled environment as data: its declaration, and the values of its parameters."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from entity_gym import spaces
from entity_gym.actions import ActionSpace
from entity_gym.compiled.actions import Action
from entity_gym.compiled.declare import Entity
from entity_gym.errors import nearest

Value = int | float | bool


class Description:
    """The base of `CompiledEnvironment`, whose docstring explains the attributes: all but what runs it."""

    entities: ClassVar[Mapping[str, Entity]] = {}
    actions: ClassVar[Mapping[str, Action]] = {}
    global_features: ClassVar[Sequence[spaces.Feature]] = ()
    parameters: ClassVar[Mapping[str, Value]] = {}
    max_steps: ClassVar[int | None] = None
    state: ClassVar[Sequence[tuple[Any, ...]]] = ()
    info: ClassVar[Sequence[str] | Mapping[str, str]] = ()
    metrics: ClassVar[Sequence[str] | Mapping[str, str]] = ()
    player_rewards: ClassVar[Sequence[str]] = ()
    targets: ClassVar[Sequence[str] | Mapping[str, str]] = ()
    reward_threshold: ClassVar[float | None] = None

    reset: ClassVar[Callable[..., None]]
    step: ClassVar[Callable[..., tuple[float, bool, bool]]]
    observe: ClassVar[Callable[..., None]]
    render: ClassVar[Callable[..., NDArray[np.uint8]] | None] = None
    draw: ClassVar[Callable[..., Mapping[str, Any]] | None] = None

    def __init__(self, **parameters: Any) -> None:
        self.values: Mapping[str, Value] = self.defaults()
        self.values = self.with_values(parameters).values

    def __repr__(self) -> str:
        values = {**self.values, "max_steps": self.values["max_steps"] or None}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in values.items())})"

    @classmethod
    def defaults(cls) -> dict[str, Value]:
        """Every parameter with its default, `max_steps` (0: no limit) included."""
        limit = _like(0, cls.max_steps, f"{cls.__name__}: max_steps", none_is_zero=True)
        return {"max_steps": limit, **cls.parameters}

    def with_values(self, given: Mapping[str, Any]) -> Self:
        """Return the same description with other values of some parameters.

        Raises:
            ValueError: for a value that is unknown, of the wrong type, or refused by `check_parameters`.
        """
        name, values, twin = type(self).__name__, dict(self.values), copy.copy(self)
        for key, value in given.items():
            if key not in values:
                raise ValueError(f"{name} has no parameter {key!r}; {nearest(key, values)}")
            values[key] = _like(values[key], value, f"{name}: {key}", none_is_zero=key == "max_steps")
        type(self).check_parameters(SimpleNamespace(**values))
        twin.values = values
        return twin

    @staticmethod
    def check_parameters(p: Any) -> None:
        """Refuse parameters that do not go together; `p.<name>` is the value. To be overridden.

        Raises:
            ValueError: naming the parameter, its value and what is allowed.
        """

    @classmethod
    def obs_space(cls) -> spaces.ObsSpace:
        """Return what it may show."""
        entities = {name: spaces.Entity(entity.features, entity.kinds) for name, entity in cls.entities.items()}
        return spaces.ObsSpace(entities, cls.global_features, targets=dict.fromkeys(cls.targets, 1))

    @classmethod
    def action_space(cls) -> dict[str, ActionSpace]:
        """Its actions by name."""
        return {name: action.space for name, action in cls.actions.items()}


def _like(default: Value, value: Any, where: str, *, none_is_zero: bool) -> Value:
    """`value` in the type of `default`."""
    if none_is_zero:
        if value is None:
            return 0
        if _is_whole(value) and value >= 1:
            return int(value)
        raise ValueError(f"{where} is {value!r}; it must be a whole number of at least 1, or None for no limit")
    if isinstance(default, bool):
        if isinstance(value, bool | np.bool_):
            return bool(value)
        raise ValueError(f"{where} is {value!r}; it must be True or False")
    if isinstance(default, int):
        if _is_whole(value):
            return int(value)
        raise ValueError(f"{where} is {value!r}; it must be a whole number of 64 bits")
    if _is_whole(value) or (isinstance(value, float | np.floating) and np.isfinite(value)):
        return float(value)
    raise ValueError(f"{where} is {value!r}; it must be a finite number")


def _is_whole(value: Any) -> bool:
    """Whether the record can hold it as a whole number."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and -(2**63) <= int(value) < 2**63
