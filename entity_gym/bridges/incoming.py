"""Environments of other libraries: how their constructors are found, checked and called, and the pools made of them."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from entity_gym.pools.pool import ThreadedVecEnv
from entity_gym.pools.source import EnvSource, own_values
from entity_gym.pools.vec_env import VecEnv
from entity_gym.registry import import_callable

#: Options of `ThreadedVecEnv` that pools of other libraries' environments take.
POOL_OPTIONS = ("num_threads", "num_processes", "batch_size", "autoreset", "final_observations")

#: Library -> the extra of this package that installs it.
EXTRAS = {
    "gymnasium": "gymnasium",
    "pettingzoo": "pettingzoo",
    "dm_env": "dm",
    "highway_env": "worlds",
    "jumanji": "worlds",
    "lbforaging": "worlds",
    "mpe2": "worlds",
}


class Constructor:
    """Makes an environment by a class or function, checked before it is called.

    Args:
        make: the class or function, or "package.module:Name" of it.
        option: how messages call `make` if it is not found.

    Attributes:
        name: how messages call the environment.

    Raises:
        ValueError: if there is no such class or function, or it cannot be called with `kwargs`.
        ImportError: if its module needs something that is not installed; says how to install an extra.
    """

    def __init__(self, make: str | Callable[..., Any], kwargs: Mapping[str, Any], option: str) -> None:
        self.name = make if isinstance(make, str) else getattr(make, "__name__", type(make).__name__)
        if isinstance(make, str):
            check_installed(make)
            with naming_extras():
                make = import_callable(make, option, _callables)
        self.make: Callable[..., Any] = make  # type: ignore[assignment]
        self.kwargs = dict(kwargs)
        check_arguments(self.make, self.name, self.kwargs)

    def __call__(self, **more: Any) -> Any:
        """Make an environment, with further arguments."""
        with making(self.name):
            return self.make(**own_values(self.kwargs), **more)


def check_installed(name: str) -> None:
    """Raise ImportError if "package.module:Name" is of an optional library that is not installed; says how to install it."""
    library = name.partition(":")[0].partition(".")[0]
    if library in EXTRAS and importlib.util.find_spec(library) is None:
        raise ImportError(f'{name} needs {library}, which is not installed: pip install "enn-ppo[{EXTRAS[library]}]"')


@contextmanager
def naming_extras() -> Iterator[None]:
    """Add to the ImportError of an optional library how to install it."""
    try:
        yield
    except ImportError as error:
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None or "pip install" in str(error):
            raise
        raise ImportError(f'{error}: pip install "enn-ppo[{extra}]"', name=error.name) from error


@contextmanager
def making(name: str) -> Iterator[None]:
    """Add the environment's name to any exception raised in its constructor; turn ImportError into ValueError."""
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
    function: Callable[..., Any], name: str, kwargs: Mapping[str, Any], option: str = "the arguments"
) -> None:
    """Raise ValueError if `function` cannot be called with `kwargs`; `name` and `option` are how messages call these."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of some callables
        return
    try:
        signature.bind(**kwargs)
    except TypeError as error:
        raise ValueError(f"{option} {dict(kwargs)} do not fit {name}{signature}: {error}") from error


def parameters_of(function: Any) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a function; none for callables that do not tell them."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}


def pool_from(
    worlds: Callable[..., EnvSource], env: Any, num_envs: int, seed: int, options: Mapping[str, Any]
) -> VecEnv:
    """Make a pool of the environments `worlds(env, **options)`; the `POOL_OPTIONS` among the options are the pool's."""
    others = {name: value for name, value in options.items() if name not in POOL_OPTIONS}
    of_pool = {name: value for name, value in options.items() if name in POOL_OPTIONS}
    return ThreadedVecEnv(worlds(env, **others), num_envs, seed=seed, **of_pool)


def _callables(module: ModuleType) -> list[str]:
    """Return the names of the public classes and functions that a module defines itself."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and callable(value) and getattr(value, "__module__", None) == module.__name__
    ]
