"""The interface of every pool of environments."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import ActionSpace
from entity_gym.batch.vec_obs import VecAction, VecObs
from entity_gym.spaces import ObsSpace

#: Parameters for the coming episodes: one mapping for each environment, or parameter -> one value for each environment.
EnvInfo = Sequence[Mapping[str, Any]] | Mapping[str, Sequence[Any]]

#: Some of the environments of a pool, by number.
EnvIdLike = Sequence[int] | NDArray[np.integer[Any]]


class VecEnv(ABC):
    """N environments of one kind that are stepped together, or some of them at a time.

    Autoreset happens in the same step: the observation after `done` is the first of the next episode, and comes with the
    finished episode's reward and info. The finished episode's own last observation is in `VecObs.final`. A pool without
    autoreset shows that last observation itself, in which nobody acts, and the batch shrinks:

        obs = pool.reset()
        while len(obs):
            obs = pool.act(policy(obs), obs.env_id)
            obs = obs.gather(np.flatnonzero(~obs.done))

    Together: `obs = reset()`, then `obs = act(actions)`. Asynchronously: `async_reset()`, then `obs = recv()` and
    `send(actions, obs.env_id)` in turn, where `recv` returns `batch_size` environments, whichever were ready first.
    Both can be mixed: what is not under way may be acted on. No array that a pool returned is ever written to again.
    """

    @abstractmethod
    def obs_space(self) -> ObsSpace:
        """Return the space of their observations."""

    @abstractmethod
    def action_space(self) -> Mapping[str, ActionSpace]:
        """Return their action spaces by name."""

    @abstractmethod
    def reset(self, seed: int | None = None, env_info: EnvInfo | None = None) -> VecObs:
        """Start an episode everywhere. What is under way is finished first, and forgotten.

        Args:
            seed: environment i draws from `SeedSequence((seed, i))`. None: the random numbers go on where they are.
            env_info: parameters for the episodes from now on (see `Environment.configure`), one mapping for each
                environment, or parameter -> one value for each environment. None: they stay what they are.

        Raises:
            ValueError: for a negative seed, or parameters that do not fit the environments.
        """

    def configure(self, env_info: EnvInfo) -> None:
        """Set parameters for the episodes that begin from now on; the running ones go on with theirs, to their ends.

        Environments that are under way are waited for. Until an episode begins, what waits for it is part of `state`, and
        what is given meanwhile comes on top.

        Args:
            env_info: as in `reset`.

        Raises:
            ValueError: for environments that take no parameters, or parameters that do not fit them; an environment that is
                a Python object refuses a value only when the episode begins.
        """
        raise ValueError(f"{type(self).__name__} takes no parameters (env_info) between episodes")

    @abstractmethod
    def act(self, actions: Mapping[str, VecAction], env_id: EnvIdLike | None = None) -> VecObs:
        """Step environments, and wait for them.

        Args:
            actions: action -> one sequence for each environment stepped, in that order, aligned with the actors that its
                last observation offered. (A, 1) choices for categorical actions; for select-entity (A, 1) the entity index
                inside the frame, -1 for nobody; for continuous ones (A, n) float32, numbers within the bounds.
            env_id: the environments to step, each at most once. None: all, in order.

        Returns:
            Their observations, in the order of `env_id`.

        Raises:
            ValueError: for actions that were not offered, an observation that does not fit the spaces, environments that are
                not there or under way.
        """

    @abstractmethod
    def __len__(self) -> int:
        """The number of environments."""

    @abstractmethod
    def close(self) -> None:
        """Release everything. May be called twice."""

    def under_way(self) -> str:
        """Name the environments that are taking a step, for messages. Other threads may call it, too."""
        return f"{len(self)} environments"

    @property
    def batch_size(self) -> int:
        """Number of environments that `recv` returns, 1 to `len(self)`."""
        return len(self)

    def send(self, actions: Mapping[str, VecAction], env_id: EnvIdLike | None = None) -> None:
        """Step environments without waiting: `recv` returns what they show. Arguments and errors as in `act`."""
        raise NotImplementedError(f"{type(self).__name__} has no asynchronous form")

    def recv(self) -> VecObs:
        """Wait for `batch_size` of the environments under way.

        Returns:
            Those that were ready first, ordered by number; `VecObs.env_id` says which they are.

        Raises:
            ValueError: if fewer are under way. What an environment raised, is raised here.
        """
        raise NotImplementedError(f"{type(self).__name__} has no asynchronous form")

    def async_reset(self) -> None:
        """Start an episode everywhere without waiting: `recv` returns the first observations."""
        raise NotImplementedError(f"{type(self).__name__} has no asynchronous form")

    def render(self, env_ids: EnvIdLike) -> list[NDArray[np.uint8]]:
        """Draw some of the environments, each as a (height, width, 3) image."""
        raise NotImplementedError(f"{type(self).__name__} does not render")

    def draw(self, env_ids: EnvIdLike) -> list[Mapping[str, Any] | None]:
        """Return how some of the environments want their running episodes to be drawn; see `Environment.draw`."""
        return [None for _ in env_ids]

    @property
    def can_save(self) -> bool:
        """True if `state`, `load_state` and `clone` work for these environments."""
        return False

    def state(self) -> dict[str, Any]:
        """Return a state from which `load_state` continues exactly, with random numbers and observations.

        Environments that are under way are waited for; what they show then is among the observations of `load_state`.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot be saved")

    def load_state(self, state: Mapping[str, Any]) -> VecObs:
        """Continue from what `state` returned; returns the current observations of all environments, without `final`."""
        raise NotImplementedError(f"{type(self).__name__} cannot be restored")

    def clone(self) -> Self:
        """A second pool that continues from here in the same way, and shares nothing with this one.

        Raises:
            ValueError: if the environments cannot be saved.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot be cloned")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def check_env_id(env_id: EnvIdLike, num_envs: int) -> NDArray[np.int64]:
    """(n,) the environments `env_id` of a pool of `num_envs`.

    Raises:
        ValueError: if one is not there or is named twice.
    """
    ids = np.asarray(env_id)
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise ValueError(f"env_id is {env_id!r:.200}; it must be a list of environments, as whole numbers")
    ids = ids.astype(np.int64)
    outside = (ids < 0) | (ids >= num_envs)
    if outside.any():
        raise ValueError(f"env_id names environment {ids[outside][0]}; there are 0 to {num_envs - 1}")
    counts = np.bincount(ids, minlength=num_envs)
    if counts.max() > 1:
        raise ValueError(f"env_id names environment {counts.argmax()} {counts.max()} times; each may be stepped once")
    return ids


def check_env_info(env_info: EnvInfo, num_envs: int) -> list[Mapping[str, Any]]:
    """One mapping for each environment, from either form of `env_info`.

    Raises:
        ValueError: if there are not as many as environments.
    """
    if isinstance(env_info, Mapping):
        for name, values in env_info.items():
            given = len(values) if hasattr(values, "__len__") and not isinstance(values, str) else None
            if given != num_envs:
                what = repr(values) if given is None else f"{given} values"
                raise ValueError(f"env_info[{name!r}] is {what}; give one value for each of {num_envs} environments")
        return [{name: values[i] for name, values in env_info.items()} for i in range(num_envs)]
    infos = list(env_info)
    if len(infos) != num_envs:
        raise ValueError(f"env_info has {len(infos)} entries for {num_envs} environments")
    for i, info in enumerate(infos):
        if not isinstance(info, Mapping):
            raise ValueError(f"env_info[{i}] is {info!r:.200}; expected a mapping from parameter to value")
    return infos


def check_batch_size(batch_size: int | None, num_envs: int) -> int:
    """Return the number of environments that `recv` returns.

    Raises:
        ValueError: if that is not from 1 to `num_envs`.
    """
    if batch_size is None:
        return num_envs
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or not 1 <= batch_size <= num_envs:
        raise ValueError(f"batch_size is {batch_size!r}; it must be a whole number from 1 to num_envs={num_envs}")
    return batch_size
