"""Worlds that are vectorised by hand: rules over NumPy arrays, with one row for each environment.

The contract of a `BatchEnvironment`:

1. Everything that changes lives in arrays whose first dimension is the environment. They are made once, in the constructor,
   and written in place.
2. Every method is told which environments it concerns, as an array `ids` of row numbers, and touches no other row. So the
   same rules serve steps of all environments together, of some of them, and asynchronous ones.
3. `observe` changes nothing and draws no random numbers: it may be called at any time, and shows the same.
4. Random numbers come from the `rng` that is handed in, which has a stream of its own for each environment. So an
   environment's episodes depend on its seed and its actions, and not on how many there are.

In return it is a full pool: autoreset, last observations, subsets, `send` and `recv`, and saving, with `BatchVecEnv`, or in
`ThreadedVecEnv` and `EpisodeVecEnv`, which take its class as they take any other. Those who want none of this implement
`VecEnv` itself: `obs_space`, `action_space`, `reset`, `act`, `__len__` and `close`, as they are documented there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import ActionSpace
from entity_gym.actions.reading import BatchActors, Rows
from entity_gym.batch.batch_obs import BatchObservation
from entity_gym.batch.vec_obs import VecAction
from entity_gym.pools.slots import EnvIds
from entity_gym.spaces import ObsSpace

__all__ = ["BatchActors", "BatchEnvironment", "BatchObservation", "BatchRandom", "BatchStep", "Rows"]


class BatchStep(NamedTuple):
    """What n environments answer to their actions; every array is (n,)."""

    reward: NDArray[Any]
    terminated: NDArray[np.bool_]  # the episode ended by its own rules
    truncated: NDArray[np.bool_]  # it was cut
    # end_of_episode_info, read where the episode ended: by name, or a mapping for each environment
    info: Mapping[str, NDArray[Any]] | Sequence[Mapping[str, Any]] = {}
    metrics: Mapping[str, NDArray[Any]] = {}  # numbers of every step; NaN: none this time


class BatchEnvironment(ABC):
    """N environments with rules over arrays; see the module for the contract.

    Args:
        num_envs: N.
    """

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs

    @abstractmethod
    def obs_space(self) -> ObsSpace:
        """What each environment may show."""

    @abstractmethod
    def action_space(self) -> Mapping[str, ActionSpace]:
        """Its actions by name."""

    @abstractmethod
    def reset(self, ids: EnvIds, rng: BatchRandom) -> None:
        """Start episodes in the environments `ids` (n,)."""

    @abstractmethod
    def step(self, ids: EnvIds, actions: Mapping[str, VecAction], rng: BatchRandom) -> BatchStep:
        """Take a step in the environments `ids` (n,).

        Args:
            ids: which.
            actions: action -> n sequences of (A, 1), for the actors that `observe` offered: `actions["Move"].values[:, 0]` are
                the choices of all actors one after another. For select-entity the entity index inside the frame, or -1. For
                continuous actions (A, n) float32.
            rng: random numbers.
        """

    @abstractmethod
    def observe(self, ids: EnvIds) -> BatchObservation:
        """What the environments `ids` (n,) show, in that order."""

    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """All arrays that change, by name, each with N rows. With them, pools can be saved, restored and copied. Optional."""
        raise NotImplementedError(f"{type(self).__name__} does not implement arrays()")

    def configure(self, ids: EnvIds, env_info: Sequence[Mapping[str, Any]]) -> None:
        """Set parameters for the coming episodes, one mapping for each of `ids`. Optional."""
        raise NotImplementedError(f"{type(self).__name__} does not implement configure(), so it takes no env_info")

    def render(self, i: int) -> NDArray[np.uint8]:
        """Draw environment `i` as a (height, width, 3) image. Optional."""
        raise NotImplementedError(f"{type(self).__name__} does not implement render()")

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Release what is held. May be called twice."""


#: What makes one: its class, or a function of the number of environments.
CreateBatch = Callable[[int], BatchEnvironment]


class BatchRandom:
    """Random numbers for many environments at once, from a stream of its own for each.

    splitmix64, whose state is one number an environment. Source: Steele, Lea and Flood 2014, "Fast splittable pseudorandom
    number generators".

    Args:
        num_envs: how many streams.
    """

    def __init__(self, num_envs: int) -> None:
        self.states: NDArray[np.uint64] = np.zeros(num_envs, dtype=np.uint64)

    def seed(self, seed: int, first_env: int = 0) -> None:
        """Stream i begins where `SeedSequence((seed, first_env + i))` says."""
        for i in range(len(self.states)):
            sequence = np.random.SeedSequence((seed, first_env + i))
            self.states[i] = sequence.generate_state(1, np.uint64)[0]

    def floats(self, ids: EnvIds, *shape: int) -> NDArray[np.float64]:
        """(n, *shape) numbers in [0, 1), multiples of 2^-53, from the streams of `ids`."""
        return (self._bits(ids, shape) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def integers(self, ids: EnvIds, high: int | NDArray[np.integer[Any]], *shape: int) -> NDArray[np.int64]:
        """(n, *shape) whole numbers from 0 to `high` - 1, from the streams of `ids`.

        Args:
            ids: (n,) which.
            high: from 1 to 2^32; may be different for each, as an array that broadcasts to the result.
            shape: how many for each environment; nothing for one.
        """
        bound = np.asarray(high)
        if bound.size and (bound.min() < 1 or bound.max() > 2**32):
            raise ValueError(f"high is {high!r:.200}; it must be from 1 to 2^32")
        bits = self._bits(ids, shape) >> np.uint64(32)
        return ((bits * bound.astype(np.uint64)) >> np.uint64(32)).astype(np.int64)

    def _bits(self, ids: EnvIds, shape: tuple[int, ...]) -> NDArray[np.uint64]:
        """(n, *shape) 64 random bits each."""
        many = int(np.prod(shape, dtype=np.int64))
        steps = np.arange(1, many + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)  # wraps, as it is meant to
        z = self.states[ids][:, None] + steps
        if many:
            self.states[ids] = z[:, -1]
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        bits: NDArray[np.uint64] = (z ^ (z >> np.uint64(31))).reshape(len(ids), *shape)
        return bits
