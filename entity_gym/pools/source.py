"""Sources: environments of one kind with their parameters, from which pools make as many as they need."""

from __future__ import annotations

import copy
import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, MutableSet, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias

import numpy as np

from entity_gym.actions import ActionSpace
from entity_gym.environment import Environment
from entity_gym.pools.python_slots import PythonSlots
from entity_gym.pools.slots import EnvSlots, SlotOptions
from entity_gym.spaces import ObsSpace

if TYPE_CHECKING:  # it imports the compiler
    from entity_gym.compiled import CompiledEnvironment

_NONE: Mapping[str, Any] = MappingProxyType({})


class EnvSource(ABC):
    """Environments of one kind with their parameters.

    Compiled environments are sources, and so are the environments of other libraries, programs and languages. `as_source`
    makes a source of everything else that makes environments.

    Attributes:
        is_compiled: whether the environments are three functions over a record.
        values: the parameters that have a value, defaults included.
        takes_others: whether there are parameters besides `names`.
        entities, actions: what a compiled environment declares: the most entities of each type, and actors of each action.
    """

    is_compiled: ClassVar[bool] = False
    values: Mapping[str, Any] = _NONE
    takes_others: bool = False
    entities: ClassVar[Mapping[str, Any]] = _NONE
    actions: ClassVar[Mapping[str, Any]] = _NONE

    @functools.cached_property
    def name(self) -> str:
        """The name in messages."""
        return type(self).__name__

    def __str__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.given().items())
        return self.name + (f"({given})" if given else "")

    def given(self) -> Mapping[str, Any]:
        """Return the parameters that replace defaults."""
        return _NONE

    @property
    def world(self) -> Any:
        """The object in which the world says how it is played: its `reward_threshold`, and the functions of its players."""
        return self

    @functools.cached_property
    def names(self) -> list[str]:
        """Names of the parameters."""
        return list(self.values)

    def with_values(self, given: Mapping[str, Any]) -> Self:
        """Return the same environments with other values of some parameters.

        Raises:
            ValueError: there is no such parameter, it cannot have this value, or another one has no value.
        """
        if given:
            raise ValueError(f"{self.name} takes no parameters; {dict(given)} was given")
        return self

    @abstractmethod
    def as_environment(self) -> Environment:
        """Make one environment that runs as ordinary Python.

        Raises:
            ValueError: something else is made.
        """

    def make_slots(self, num_envs: int, options: SlotOptions = SlotOptions()) -> EnvSlots:
        """Make the environments of a pool."""
        return PythonSlots(self.as_environment, num_envs, options)

    def spaces(self) -> tuple[ObsSpace, Mapping[str, ActionSpace]]:
        """Return the spaces of observations and actions; makes an environment, unless it is compiled."""
        slots = self.make_slots(1)
        try:
            return slots.obs_space, slots.action_space
        finally:
            slots.close()


class PythonSource(EnvSource):
    """Environments that a class or function makes.

    Args:
        create: the class or function, or a `functools.partial` of it.
        given: arguments by name. Each environment gets lists, mappings, sets, tuples and arrays of its own.
    """

    _of_pools: ClassVar[Sequence[str]] = ()  # arguments that pools give

    def __init__(self, create: Callable[..., Any], given: Mapping[str, Any] = _NONE) -> None:
        partial = create if isinstance(create, functools.partial) else functools.partial(create)
        self._function, self._args, self._given = partial.func, partial.args, {**partial.keywords, **given}
        self.name = str(getattr(self._function, "__name__", type(self._function).__name__))
        every = signature_of(self._function).parameters.values()
        named = [each for each in every if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)]
        named = [each for each in named if each.name not in self._of_pools]
        self.names = [each.name for each in named]
        self.takes_others = any(each.kind == each.VAR_KEYWORD for each in every)
        defaults = {each.name: each.default for each in named if each.default is not each.empty}
        self.values = {**defaults, **dict(zip(self.names, self._args, strict=False)), **self._given}

    def __repr__(self) -> str:
        return repr(self._function)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (functools.partial(self._function, *self._args), self._given)  # without defaults

    def given(self) -> Mapping[str, Any]:
        return self._given

    @property
    def world(self) -> Any:
        return self._function

    def with_values(self, given: Mapping[str, Any]) -> Self:
        bound = type(self)(functools.partial(self._function, *self._args), {**self._given, **given})
        unknown = [name for name in given if name not in self.names and not self.takes_others]
        missing = [name for name in self.names if name not in bound.values]
        if unknown or missing:
            wrong = f"there is no parameter {unknown[0]!r}" if unknown else f"the parameter {missing[0]!r} has no value"
            raise ValueError(f"{self.name}{signature_of(self._function)} does not take {bound._given}: {wrong}")
        return bound

    def as_environment(self) -> Environment:
        env = self._function(*self._args, **own_values(self._given))
        if not isinstance(env, Environment):
            hint = "; give the pool the compiled environment itself" if hasattr(env, "as_environment") else ""
            raise ValueError(
                f"create_env returned {type(env).__name__}; it must return an entity_gym.Environment{hint}"
            )
        return env


class SlotsSource(PythonSource):
    """Environments that a class of `EnvSlots` steps as a whole, such as a world over NumPy arrays."""

    _of_pools = ("num_envs", "options")

    def as_environment(self) -> Environment:
        raise ValueError(
            f"{self.name} is a class of EnvSlots, which is many environments at once; give an Environment or a "
            "CompiledEnvironment"
        )

    def make_slots(self, num_envs: int, options: SlotOptions = SlotOptions()) -> EnvSlots:
        slots: EnvSlots = self._function(num_envs, options, **own_values(self._given))
        return slots


#: All that makes environments for pools: a source; a compiled environment's class; the class of a Python environment or a
#: function that makes one, also with arguments as a `functools.partial`; a class of `EnvSlots`.
EnvFactory: TypeAlias = (
    "EnvSource | type[CompiledEnvironment] | Callable[..., Environment] | type[EnvSlots] | functools.partial[Any]"
)


def as_source(given: Any) -> EnvSource:
    """Return the source of the environments that `given` makes.

    Raises:
        ValueError: it makes no environments.
    """
    if isinstance(given, EnvSource):
        return given
    function = given.func if isinstance(given, functools.partial) else given
    if isinstance(function, type) and issubclass(function, EnvSource):
        made: EnvSource = given()
        return made
    if isinstance(function, type) and issubclass(function, EnvSlots):
        return SlotsSource(given)
    if isinstance(given, Environment):
        name = type(given).__name__
        raise ValueError(f"env is one {name} object; give what makes one, such as the class {name}")
    if not callable(given):
        raise ValueError(f"{given!r:.200} is no environment; give a compiled one, or what makes a Python one")
    return PythonSource(given)


def signature_of(function: Any) -> inspect.Signature:
    """Return the signature of a class or function; for callables without one, a signature that takes anything."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return inspect.signature(lambda **anything: None)


def own_values(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Copy lists, mappings, sets, tuples and arrays deeply: environments may change them. Other values stay the same."""
    mutable = (MutableSequence, MutableMapping, MutableSet, tuple, np.ndarray)
    return {name: copy.deepcopy(value) if isinstance(value, mutable) else value for name, value in parameters.items()}
