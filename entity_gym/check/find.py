"""From what is typed on a command line to an environment and its parameters."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from entity_gym.environment import Environment
from entity_gym.errors import nearest
from entity_gym.pools.batch_env import BatchEnvironment
from entity_gym.pools.pool import EnvSource, is_compiled
from entity_gym.registry import look_up

if TYPE_CHECKING:
    from entity_gym.compiled import CompiledEnvironment

#: How an environment may call its step limit.
LIMITS = ("max_steps", "max_episode_steps")


class Found(NamedTuple):
    """What makes an environment, and the parameters that it is registered with."""

    source: EnvSource
    parameters: dict[str, Any]


def find_source(name: str, parameters: Mapping[str, Any]) -> Found:
    """What `name` stands for: a registered name, or `my_package.my_module:MyEnv`.

    Args:
        name: as it was typed.
        parameters: they come first.

    Raises:
        ValueError: if there is no such environment, or it has no such parameter. What its module raises, is raised here.
    """
    registered = look_up(name)
    source = registered.load()
    refuse_batches(source, name)
    known = _parameters(source)
    given = {**registered.defaults, **parameters}
    limit = next((each for each in LIMITS if known is not None and each in known), None)
    if registered.max_episode_steps is not None and limit is not None:
        given.setdefault(limit, registered.max_episode_steps)
    for parameter in given:
        if known is not None and parameter not in known:
            raise ValueError(f"{name} has no parameter {parameter!r}; {nearest(parameter, known)}")
    return Found(source, given)


def refuse_batches(source: Any, name: str) -> None:
    """Raise a ValueError for environments that are written for arrays of them."""
    if isinstance(source, type) and issubclass(source, BatchEnvironment):
        raise ValueError(
            f"{name} is a BatchEnvironment, which is many at once; only single environments can be looked at here"
        )


def _parameters(source: Any) -> list[str] | None:
    """The names of its parameters; None where any name will do, or nobody knows."""
    if is_compiled(source):
        return list(source.defaults())
    try:
        signature = inspect.signature(source).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(each.kind is each.VAR_KEYWORD for each in signature):
        return None
    return [each.name for each in signature if each.kind is not each.VAR_POSITIONAL]


def parse_settings(settings: Sequence[str]) -> dict[str, Any]:
    """Parameters from texts such as "size=8".

    Raises:
        ValueError: for one without "=".
    """
    parsed: dict[str, Any] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name.isidentifier():
            raise ValueError(f"--set takes name=value, such as size=8; got {setting!r}")
        parsed[name] = _parse_value(value)
    return parsed


def _parse_value(text: str) -> Any:
    plain = {"true": True, "false": False, "none": None, "null": None}
    if text.lower() in plain:
        return plain[text.lower()]
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


def describe_with(source: Any, parameters: Mapping[str, Any]) -> CompiledEnvironment:
    """A compiled environment with these in place of its parameters."""
    described: CompiledEnvironment = (
        source(**parameters) if isinstance(source, type) else type(source)(**{**source.values, **parameters})
    )
    return described


def make_plain(source: Any, parameters: Mapping[str, Any]) -> Environment:
    """One environment in plain Python; a compiled one runs as such.

    Raises:
        ValueError: if it is no environment that is made.
    """
    made: Any
    if is_compiled(source):
        made = describe_with(source, parameters).as_environment()
    else:
        made = source(**parameters)
    if isinstance(made, Environment):
        return made
    hint = "; give the compiled environment itself" if is_compiled(made) else ""
    raise ValueError(f"{made!r:.200} was made; it must be an entity_gym.Environment{hint}")
