"""Environments of other libraries: how constructors and wrappers are found, checked and called, and the pools made of them."""

from __future__ import annotations

import ast
import copy
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entity_gym.errors import NoPictureError
from entity_gym.pools.pool import ThreadedVecEnv
from entity_gym.pools.source import EnvSource, own_values, signature_of
from entity_gym.pools.vec_env import VecEnv
from entity_gym.registry import import_callable

#: Wraps an environment.
Wrapper = Callable[[Any], Any]

#: Options of `ThreadedVecEnv` that pools of other libraries' environments take.
POOL_OPTIONS = ("num_threads", "num_processes", "batch_size", "autoreset", "final_observations")

#: Library -> the extra of this package that installs it.
EXTRAS = {"gymnasium": "gymnasium", "pettingzoo": "pettingzoo", "dm_env": "dm"}


class Constructor:
    """Makes an environment by a class or function, checked before it is called.

    Args:
        make: the class or function, or "package.module:Name" of it.
        option: how messages call `make` if it is not found, or makes nothing.

    Attributes:
        name: how messages call the environment.

    Raises:
        ValueError: if there is no such class or function, or it cannot be called with `kwargs`.
        ImportError: if its module needs something that is not installed; says how to install an extra.
    """

    def __init__(self, make: str | Callable[..., Any], kwargs: Mapping[str, Any], option: str) -> None:
        self.name = make if isinstance(make, str) else getattr(make, "__name__", type(make).__name__)
        if isinstance(make, str):
            with naming_extras():
                make = import_callable(make, option)
        if not callable(make) or (hasattr(make, "reset") and not isinstance(make, type)):
            raise ValueError(f"{option} is {make!r:.200}; expected a class or function that makes one, or its name")
        self.make: Callable[..., Any] = make
        self.kwargs = dict(kwargs)
        check_arguments(self.make, self.name, self.kwargs)

    def __call__(self, **more: Any) -> Any:
        """Make an environment, with these arguments besides or in place of its own; what is raised has its name.

        Raises:
            ValueError: in place of an ImportError.
        """
        try:
            with naming_extras():
                return self.make(**own_values(self.kwargs | more))
        except ImportError as error:
            raise ValueError(f"{self.name} cannot be made: {error}") from error
        except Exception as error:
            if self.name not in str(error):
                error.add_note(f"raised by {self.name} when it was made")
            raise


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


def check_arguments(function: Callable[..., Any], name: str, kwargs: Mapping[str, Any]) -> None:
    """Raise ValueError if `function`, whose name in messages is `name`, cannot be called with `kwargs`."""
    signature = signature_of(function)
    try:
        signature.bind(**kwargs)
    except TypeError as error:
        raise ValueError(f"the arguments {dict(kwargs)} do not fit {name}{signature}: {error}") from error


def pool_from(
    worlds: Callable[..., EnvSource], env: Any, num_envs: int, seed: int, options: Mapping[str, Any]
) -> VecEnv:
    """Make a pool of the environments `worlds(env, **options)`; the `POOL_OPTIONS` among the options are the pool's."""
    others = {name: value for name, value in options.items() if name not in POOL_OPTIONS}
    of_pool = {name: value for name, value in options.items() if name in POOL_OPTIONS}
    return ThreadedVecEnv(worlds(env, **others), num_envs, seed=seed, **of_pool)


def picture_of(image: Any, name: str) -> NDArray[np.uint8]:
    """Return what `render()` of an environment has drawn as a (height, width, 3) image; raises NoPictureError for all else."""
    array = np.asarray(image)
    if array.ndim != 3 or array.shape[2] != 3:
        raise NoPictureError(
            f"{name}: render() returned {image!r:.80}; expected an image (height, width, 3). Make the environment with "
            "render_mode='rgb_array'; in training with env.kwargs.render_mode=rgb_array, in evaluation with "
            "env_kwargs.render_mode=rgb_array"
        )
    return array.astype(np.uint8, copy=False)


def load_wrappers(given: Sequence[str | Wrapper]) -> list[Wrapper]:
    """Return the functions that wrap an environment, the innermost first.

    Args:
        given: each a class or function of the environment, or "package.module:Name", with arguments in parentheses where it
            needs more: "package.module:Name(size=3)".

    Raises:
        ValueError: one is not found, or its arguments are not plain values with names.
    """
    return [_load(each) if isinstance(each, str) else each for each in given]


def _load(text: str) -> Wrapper:
    name, opened, rest = text.partition("(")
    try:
        call = ast.parse(f"f({rest if opened else ')'}", mode="eval").body
        arguments = {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}  # type: ignore[attr-defined]
        if call.args or "None" in arguments:  # type: ignore[attr-defined]
            raise ValueError("arguments without a name")
    except (SyntaxError, ValueError, AttributeError):
        raise ValueError(
            f"wrappers has {text!r}; expected package.module:Name, or package.module:Name(size=3, ...) with plain values"
        ) from None
    wrapper: Wrapper = import_callable(name.strip(), "wrappers")
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
