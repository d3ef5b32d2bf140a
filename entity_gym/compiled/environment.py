"""Environments written as three plain functions over a record, and compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from entity_gym import spaces
from entity_gym.actions import ActionSpace
from entity_gym.compiled.declare import Action, Array, Entity
from entity_gym.errors import nearest

if TYPE_CHECKING:
    from entity_gym.compiled.view import CompiledView

Value = int | float | bool


class CompiledEnvironment:
    """A world as three plain functions over one record `s`; thousands of them are stepped by compiled code.

    A subclass declares the attributes below and writes `reset(s)`, `step(s, act)` and `observe(s, obs)`, without `self`.
    An instance is a description, the class and its parameters: give it to a `ThreadedVecEnv`, or ask it for a plain
    environment with `as_environment()`.

    `s` holds every parameter (read-only), the declared state, `s.steps` (of this episode; `step` finds the present one
    counted) and `s.max_steps`; the state keeps its values over `reset` unless that writes them. Random numbers come from
    `rand_int(s, n)`, `rand_float(s)` and `rand_normal(s)`, in `reset` and `step` only.

    Attributes:
        entities: name -> `Entity`. Their order is the order of entities in a frame.
        actions: name -> `Categorical`, `GlobalCategorical`, `SelectEntity` or `Continuous`.
        global_features: names of the numbers in `obs.global_features`, or a `Category`, `Angle` or `Flag`.
        parameters: name -> default; keywords of the constructor, of the default's type (int, float or bool).
        max_steps: steps after which an episode is truncated, None for no limit; a keyword of the constructor too.
        state: (name, dtype) or (name, dtype, shape) of every field.
        info: state fields that are reported when an episode ends; or a mapping from the reported name to the field. NaN:
            nothing to report.
        metrics: state fields that are reported with every step, in the same forms.
        arrays: `obs:...` or `info:...` -> `Array`, beside the entities; written as `obs.arrays.<name>`.
        player_rewards: in worlds with several players (`entity_gym.pools.players`), the state fields that say what each player
            earned with a step, in the order of players. NaN: there is no such player. Empty: all share the reward.
        max_num_players: the most rows of an array with a leading -1.
        reward_threshold: mean episodic reward at which the environment counts as solved.

    Names become attributes with "_" for whatever cannot stand in an identifier: `act.Fire_Orbital_Cannon`.

    Args:
        max_steps: replaces the class's.
        parameters: replace the defaults.

    Raises:
        ValueError: for unknown parameters, or values of another type or that `check_parameters` refuses.
    """

    entities: ClassVar[Mapping[str, Entity]] = {}
    actions: ClassVar[Mapping[str, Action]] = {}
    global_features: ClassVar[Sequence[spaces.Feature]] = ()
    parameters: ClassVar[Mapping[str, Value]] = {}
    max_steps: ClassVar[int | None] = None
    state: ClassVar[Sequence[tuple[Any, ...]]] = ()
    info: ClassVar[Sequence[str] | Mapping[str, str]] = ()
    metrics: ClassVar[Sequence[str] | Mapping[str, str]] = ()
    arrays: ClassVar[Mapping[str, Array]] = {}
    player_rewards: ClassVar[Sequence[str]] = ()
    max_num_players: ClassVar[int] = 1
    reward_threshold: ClassVar[float | None] = None

    reset: ClassVar[Callable[..., None]]
    step: ClassVar[Callable[..., tuple[float, bool, bool]]]
    observe: ClassVar[Callable[..., None]]
    render: ClassVar[Callable[..., NDArray[np.uint8]] | None] = None

    def __init__(self, **parameters: Any) -> None:
        from entity_gym.compiled.layout import layout_of

        layout_of(type(self))  # type: ignore[arg-type]  # checks the declaration
        self.values = self.check_values(parameters)

    def __repr__(self) -> str:
        values = {**self.values, "max_steps": self.values["max_steps"] or None}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in values.items())})"

    @classmethod
    def defaults(cls) -> dict[str, Value]:
        """Every parameter with its default, `max_steps` (0: no limit) included."""
        limit = _like(0, cls.max_steps, f"{cls.__name__}: max_steps", none_is_zero=True)
        return {"max_steps": limit, **cls.parameters}

    def check_values(self, given: Mapping[str, Any]) -> dict[str, Value]:
        """The description's parameters (before there are any: the defaults) with `given` in place of some.

        Raises:
            ValueError: for a value that is unknown, of the wrong type, or refused by `check_parameters`.
        """
        name = type(self).__name__
        values = dict(getattr(self, "values", self.defaults()))
        for key, value in given.items():
            if key not in values:
                raise ValueError(f"{name} has no parameter {key!r}; {nearest(key, values)}")
            values[key] = _like(values[key], value, f"{name}: {key}", none_is_zero=key == "max_steps")
        type(self).check_parameters(SimpleNamespace(**values))
        return values

    @staticmethod
    def check_parameters(p: Any) -> None:
        """Refuse parameters that do not go together; `p.<name>` is the value. To be overridden.

        Raises:
            ValueError: naming the parameter, its value and what is allowed.
        """

    @classmethod
    def obs_space(cls) -> spaces.ObsSpace:
        """What it may show."""
        entities = {name: spaces.Entity(entity.features, entity.kinds) for name, entity in cls.entities.items()}
        return spaces.ObsSpace(entities, cls.global_features)

    @classmethod
    def action_space(cls) -> dict[str, ActionSpace]:
        """Its actions by name."""
        return {name: action.space() for name, action in cls.actions.items()}

    def as_environment(self, *, compile: bool = False) -> CompiledView:
        """A plain `Environment` with the same rules, for playing, checking and debugging.

        Args:
            compile: run the compiled form; by default the source runs as ordinary Python, with checks of array bounds.
        """
        from entity_gym.compiled.view import CompiledView

        return CompiledView(self, compile=compile)


def describe(env: CompiledEnvironment | type[CompiledEnvironment]) -> CompiledEnvironment:
    """A description, from one or from its class with the default parameters."""
    return env() if isinstance(env, type) else env


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
