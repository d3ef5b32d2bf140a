"""Saved states of slots, taken apart and put together, so that a state fits any number of workers: pure functions.

The values are dictionaries of lists and arrays with one entry for each environment, and of numbers of environments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from entity_gym.pools.slots import check_state


def merge_states(parts: Sequence[Any]) -> Any:
    """The state of a pool from those of its slices, in order."""
    first = parts[0]
    if isinstance(first, Mapping):
        return {key: merge_states([part[key] for part in parts]) for key in first}
    if isinstance(first, np.ndarray):
        return np.concatenate(parts)
    if isinstance(first, list):
        return [entry for part in parts for entry in part]
    assert isinstance(first, int), f"a state holds {first!r:.200}"
    return sum(parts)


def split_state(state: Mapping[str, Any], slices: Sequence[range]) -> list[Any]:
    """The states of slices that make up a pool, from the pool's.

    Raises:
        ValueError: if it is of another number of environments.
    """
    num_envs = slices[-1].stop
    if "num_envs" not in state:
        check_state(state, "environments")
    saved = state["num_envs"] if "num_envs" in state else len(state["environments"])
    if saved != num_envs:
        raise ValueError(f"the saved state has {saved} environments; this pool has {num_envs}")
    return [_part(state, part) for part in slices]


def _part(value: Any, part: range) -> Any:
    if isinstance(value, Mapping):
        return {key: _part(item, part) for key, item in value.items()}
    if isinstance(value, np.ndarray | list):
        return value[part.start : part.stop]
    return len(part)
