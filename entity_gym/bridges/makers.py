"""What makes somebody else's environment: found by its name, checked before it is called, and named where it fails."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from entity_gym.registry import import_callable

#: Library -> the extra that brings it.
EXTRAS = {"gymnasium": "gymnasium", "pettingzoo": "pettingzoo", "dm_env": "dm"}


class Maker:
    """Makes an environment by a class or function of somebody else's.

    Args:
        make: that class or function, or "package.module:Name" of it.
        kwargs: what it is called with.
        option: what messages call `make` where it cannot be found.

    Attributes:
        make, kwargs: the same, found.
        name: what messages call it.

    Raises:
        ValueError: there is no such thing, or it cannot be called with these arguments.
        ImportError: its module needs something that is not installed; says how to install it where it is an extra.
    """

    def __init__(self, make: str | Callable[..., Any], kwargs: Mapping[str, Any], option: str) -> None:
        self.name = make if isinstance(make, str) else getattr(make, "__name__", type(make).__name__)
        self.make: Callable[..., Any] = find_callable(make, option) if isinstance(make, str) else make
        self.kwargs = dict(kwargs)
        check_arguments(self.make, self.name, self.kwargs)

    def __call__(self) -> Any:
        """An environment."""
        return self.make_one()

    def make_one(self, **more: Any) -> Any:
        """What `make` returns, with further arguments."""
        with making(self.name):
            return self.make(**self.kwargs, **more)


def find_callable(name: str, option: str) -> Callable[..., Any]:
    """The class or function at "package.module:Name"; raises as `Maker` does."""
    with naming_extras():
        found: Callable[..., Any] = import_callable(name, option, _callables)
    return found


@contextmanager
def naming_extras() -> Iterator[None]:
    """An import that fails for want of an optional library says how to install it."""
    try:
        yield
    except ImportError as error:
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None or "pip install" in str(error):
            raise
        raise ImportError(f'{error}: pip install "enn-ppo[{extra}]"', name=error.name) from error


@contextmanager
def making(name: str) -> Iterator[None]:
    """What is raised while the environment `name` is made says so; what cannot be imported there is a ValueError."""
    try:
        with naming_extras():
            yield
    except ImportError as error:
        raise ValueError(f"{name} cannot be made: {error}") from error
    except Exception as error:
        if name not in str(error):
            error.add_note(f"raised by {name} when it was made")
        raise


def check_arguments(
    function: Callable[..., Any], name: str, kwargs: Mapping[str, Any], what: str = "the arguments"
) -> None:
    """Raise a ValueError if `function` cannot be called with them; `name` and `what` are what it calls these."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some callables cannot be looked into
        return
    try:
        signature.bind(**kwargs)
    except TypeError as error:
        raise ValueError(f"{what} {dict(kwargs)} do not fit {name}{signature}: {error}") from error


def _callables(module: ModuleType) -> list[str]:
    """The classes and functions that a module itself defines."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and callable(value) and getattr(value, "__module__", None) == module.__name__
    ]
