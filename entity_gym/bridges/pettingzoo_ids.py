"""Parallel environments that PettingZoo has an id for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from entity_gym.bridges.makers import Maker
from entity_gym.errors import nearest


class MakerById(Maker):
    """Makes environments of an id of PettingZoo's, such as "butterfly/knights_archers_zombies-v11".

    Args:
        env_id: the id.
        kwargs: what they are made with.

    Raises:
        ValueError: there is no such id.
        ImportError: PettingZoo is not installed.
    """

    def __init__(self, env_id: str, kwargs: Mapping[str, Any]) -> None:
        super().__init__(_make_by_id, {"env_id": env_id, **kwargs}, env_id)
        self.name = env_id
        _spec(env_id)  # so that an id that is none is told at once


def _spec(env_id: str) -> Any:
    """What PettingZoo knows of an id."""
    try:
        import pettingzoo
    except ImportError as error:
        raise ImportError(f'{env_id} is PettingZoo\'s ({error}): pip install "enn-ppo[pettingzoo]"') from error
    try:
        return pettingzoo.spec("parallel", env_id)
    except (pettingzoo.env_registry.exceptions.PettingZooRegistryError, ValueError) as error:
        turns = "agents take turns in it, so convert it with turn_based_aec_to_parallel in a function of your own; "
        raise ValueError(
            f"PettingZoo has no parallel environment {env_id!r}; {turns if env_id in pettingzoo.aec_registry else ''}"
            f"{nearest(env_id, pettingzoo.parallel_registry)}; your own is written as my_package.my_module:make_env"
        ) from error


def _make_by_id(env_id: str, **kwargs: Any) -> Any:
    import pettingzoo

    spec = _spec(env_id)
    try:
        return pettingzoo.make("parallel", spec, **kwargs)
    except (ImportError, TypeError, pettingzoo.env_registry.exceptions.FailedToImport) as error:
        arguments = f" with {kwargs}" if kwargs else ""
        raise ValueError(f"PettingZoo cannot make {env_id!r}{arguments}: {error}") from error
