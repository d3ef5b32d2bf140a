"""Wrappers of environments by name: "gymnasium.wrappers:TimeLimit(max_episode_steps=50)"."""

from __future__ import annotations

import ast
import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any

from entity_gym.registry import import_callable

#: Wraps an environment.
Wrapper = Callable[[Any], Any]


def load_wrappers(given: Sequence[str | Wrapper], option: str = "wrappers") -> list[Wrapper]:
    """Return the functions that wrap an environment, the innermost first.

    Args:
        given: each a class or function of the environment, or "package.module:Name", with arguments in parentheses where it
            needs more: "package.module:Name(size=3)".
        option: how messages call the list.

    Raises:
        ValueError: one is not found, or its arguments are not plain values with names.
    """
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise ValueError(f"{option} is {given!r:.200}; expected a list, such as [my_pkg.my_wrappers:MyWrapper]")
    return [_load(each, option) if isinstance(each, str) else each for each in given]


def _load(text: str, option: str) -> Wrapper:
    name, opened, rest = text.partition("(")
    arguments: dict[str, Any] = {}
    if opened:
        try:
            call = ast.parse(f"f({rest}", mode="eval").body
            assert isinstance(call, ast.Call) and not call.args
            arguments = {str(each.arg): ast.literal_eval(each.value) for each in call.keywords if each.arg is not None}
            assert len(arguments) == len(call.keywords)
        except (SyntaxError, ValueError, AssertionError):
            raise ValueError(
                f"{option} has {text!r}; expected package.module:Name, or package.module:Name(size=3, ...) with plain values"
            ) from None
    wrapper: Wrapper = import_callable(
        name.strip(), option, lambda module: [each for each in dir(module) if each[0].isupper()]
    )
    return functools.partial(wrapper, **arguments) if arguments else wrapper


def wrapped(env: Any, wrappers: Sequence[Wrapper]) -> Any:
    """Return the environment inside of its wrappers.

    Raises:
        ValueError: a wrapper does not take the environment or its arguments.
    """
    for wrapper in wrappers:
        try:
            # a copy, since a wrapper may change the lists that it is given
            env = (copy.deepcopy(wrapper) if isinstance(wrapper, functools.partial) else wrapper)(env)
        except (TypeError, AssertionError) as error:
            name = getattr(getattr(wrapper, "func", wrapper), "__name__", repr(wrapper))
            raise ValueError(f"the wrapper {name} cannot be put around {type(env).__name__}: {error}") from error
    return env
