"""Environments by name."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from entity_gym.environment import Environment
from entity_gym.envs.minesweeper_python import PythonMineSweeper
from entity_gym.errors import nearest

#: Environments that come with the package.
ENVIRONMENTS: dict[str, type[Environment]] = {"MineSweeper": PythonMineSweeper}


def find_environment(env_id: str) -> Callable[..., Environment]:
    """The environment class (or factory) called `env_id`: a name in `ENVIRONMENTS`, or `package.module:Name`.

    Raises:
        ValueError: if there is no such environment.
    """
    if ":" not in env_id:
        if env_id not in ENVIRONMENTS:
            raise ValueError(
                f"env.id is {env_id!r}, which is no known environment; {nearest(env_id, ENVIRONMENTS)}; "
                "your own is written as my_package.my_module:MyEnv"
            )
        return ENVIRONMENTS[env_id]
    module_name, _, name = env_id.partition(":")
    if not module_name or module_name.startswith("."):
        raise ValueError(f"env.id is {env_id!r}; your own environment is written as my_package.my_module:MyEnv")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise  # the module is there, and something that it imports is not
        raise ValueError(f"env.id is {env_id!r}, but there is no module {module_name!r} to import") from error
    if not callable(getattr(module, name, None)):
        classes = [
            key for key, value in vars(module).items() if isinstance(value, type) and issubclass(value, Environment)
        ]
        raise ValueError(
            f"env.id is {env_id!r}, but {module_name} has no class or function {name!r}; {nearest(name, classes)}"
        )
    found: Callable[..., Environment] = getattr(module, name)
    return found
