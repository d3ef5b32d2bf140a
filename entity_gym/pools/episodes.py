"""Rewards and lengths of episodes, counted from outside: an episode's length is its number of `act` calls, `reset` is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import ActionSpace
from entity_gym.actions.reading import EntityID
from entity_gym.batch.vec_obs import VecAction, VecObs
from entity_gym.pools.pool import EnvSource, SlotVecEnv, make_slots, make_workers
from entity_gym.pools.slots import check_num_envs
from entity_gym.pools.vec_env import EnvIdLike, EnvInfo, check_env_id
from entity_gym.pools.workers import check_affinity, check_num_threads, numbers_of_workers
from entity_gym.spaces import ObsSpace


class Episode(NamedTuple):
    """A finished episode.

    Attributes:
        env_id: the environment that played it.
        reward: sum of its rewards.
        length: number of steps.
        truncated: whether it was cut.
        info: the environment's own `end_of_episode_info`.
    """

    env_id: int
    reward: float
    length: int
    truncated: bool
    info: Mapping[str, Any] = {}


class RunningEpisodes:
    """Rewards and lengths of the running episodes of a pool.

    Args:
        rewards: () for each environment, or (P,) for each of its players.
        num_envs: N.
        first_env: the number of environment 0, where these are a part of more; episodes tell their environment's.
    """

    def __init__(self, rewards: tuple[int, ...], num_envs: int, first_env: int = 0) -> None:
        self.first_env = first_env
        self.rewards: NDArray[np.float64] = np.zeros((num_envs, *rewards))
        self.lengths: NDArray[np.int64] = np.zeros(num_envs, dtype=np.int64)

    def reset(self) -> None:
        """New episodes begin everywhere."""
        self.rewards = np.zeros_like(self.rewards)
        self.lengths = np.zeros_like(self.lengths)

    def state(self) -> dict[str, Any]:
        """The running sums, for `load_state`."""
        return {"rewards": self.rewards.copy(), "lengths": self.lengths.copy()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""
        self.rewards = np.array(state["rewards"])
        self.lengths = np.array(state["lengths"])


class EpisodeTracker(RunningEpisodes):
    """Follows the running episodes of a pool of `num_envs` environments; see `RunningEpisodes`."""

    def __init__(self, num_envs: int, first_env: int = 0) -> None:
        super().__init__((), num_envs, first_env)
        self._all = np.arange(num_envs)

    def step(self, obs: VecObs) -> list[Episode]:
        """Take in what `act` returned; returns the episodes that ended with it."""
        if len(obs.env_id) == len(self._all) and (obs.env_id == self._all).all():
            self.rewards += obs.reward  # a step of all environments, the usual one: indexing takes many times as long
            self.lengths += 1
        else:
            self.rewards[obs.env_id] += obs.reward
            self.lengths[obs.env_id] += 1
        (frames,) = obs.done.nonzero()
        if len(frames) == 0:
            return []
        envs = obs.env_id[frames]
        rewards, lengths, truncated = self.rewards[envs], self.lengths[envs], obs.truncated[frames]
        self.rewards[envs], self.lengths[envs] = 0.0, 0
        told = obs.end_of_episode_info
        infos = [told.get(env, {}) for env in envs.tolist()]
        columns = (envs + self.first_env, rewards, lengths, truncated)
        return list(map(Episode._make, zip(*(column.tolist() for column in columns), infos, strict=True)))


class Running(NamedTuple):
    """Environments that are running, and their observations."""

    obs: VecObs  # n frames
    env_id: NDArray[np.int64]  # (n,) whose, in ascending order


class EpisodeStep(NamedTuple):
    """A step of the environments that were running."""

    was_running: Running  # all that took this step, with its rewards; those that ended offer no actions
    still_running: Running  # those of them that have not ended, to choose the next actions for; may be empty


class EpisodeVecEnv:
    """N environments that play one episode each: evaluation takes every episode whole, however long, exactly once.

    There is no autoreset. `reset` starts an episode in each environment, and every `step` takes actions for those that are
    still running, until none is:

        obs, running = env.reset()
        while len(running):
            (all_obs, was_running), (obs, running) = env.step(policy(obs))

    Args:
        env: a compiled environment (class, or with parameters), or what makes a Python environment.
        num_envs: at least 1.
        num_threads: as in `ThreadedVecEnv`.
        seed: see `reset`.
        compile, boundscheck, first_env, thread_affinity_offset: as in `ThreadedVecEnv`.

    Raises:
        ValueError: for an argument that cannot be.
    """

    def __init__(
        self,
        env: EnvSource,
        num_envs: int,
        num_threads: int = 1,
        seed: int = 0,
        compile: bool = True,
        boundscheck: bool = False,
        first_env: int = 0,
        thread_affinity_offset: int = -1,
    ) -> None:
        check_affinity(thread_affinity_offset)
        check_num_envs(num_envs)
        threads = min(check_num_threads(num_threads), num_envs)
        slots = make_slots(
            env,
            num_envs,
            first_env=first_env,
            autoreset=False,
            final_observations="none",
            compile=compile,
            boundscheck=boundscheck,
            num_workers=numbers_of_workers(threads),
        )
        self._pool = SlotVecEnv(slots, make_workers(threads, thread_affinity_offset), seed=seed)
        self._running: NDArray[np.int64] | None = None

    def obs_space(self) -> ObsSpace:
        """Return the space of their observations."""
        return self._pool.obs_space()

    def action_space(self) -> Mapping[str, ActionSpace]:
        """Return their action spaces by name."""
        return self._pool.action_space()

    def __len__(self) -> int:
        return len(self._pool)

    def reset(
        self, seed: int | None = None, env_info: EnvInfo | None = None, env_id: EnvIdLike | None = None
    ) -> Running:
        """Start episodes; those that are still running are abandoned.

        Args:
            seed: environment i draws from `SeedSequence((seed, i))`. None: the random numbers go on where they are.
            env_info: parameters for the episodes from now on (see `Environment.configure`), one mapping for each
                environment of the pool, or parameter -> one value for each. None: they stay what they are.
            env_id: the environments to start, where fewer episodes are wanted than there are environments. None: all.

        Returns:
            The first observations, and who is running: those that were started.

        Raises:
            ValueError: for a negative seed, parameters that do not fit, or environments that are not there.
        """
        ids = np.arange(len(self)) if env_id is None else np.sort(check_env_id(env_id, len(self)))
        self._running = None
        self._pool.prepare_reset(seed, env_info)
        obs = self._pool.start(ids)
        self._running = ids
        return Running(obs, ids.copy())

    def step(self, actions: Mapping[str, VecAction]) -> EpisodeStep:
        """Step the environments that are running.

        Args:
            actions: action -> one sequence for each of them, in ascending order of their numbers; as in `VecEnv.act`.

        Returns:
            `((obs, who was running), (running_obs, who is still running))`: the step as all who took it saw it, and what
            to go on with. `done`, `truncated` and `end_of_episode_info` are in the first.

        Raises:
            ValueError: if nobody is running, or the actions were not offered.
        """
        was_running = self._running
        if was_running is None:
            raise ValueError("step was called before reset")
        if not len(was_running):
            raise ValueError("step: every episode has ended; call reset to start new ones")
        obs = self._pool.act(actions, was_running)
        if not obs.done.any():
            return EpisodeStep(Running(obs, was_running.copy()), Running(obs, was_running.copy()))
        self._running = was_running[~obs.done]
        still = self._pool.show(self._running)
        return EpisodeStep(Running(obs, was_running), Running(still, self._running.copy()))

    def render(self, env_ids: EnvIdLike) -> list[NDArray[np.uint8]]:
        """Draw some of the environments, each as a (height, width, 3) image."""
        return self._pool.render(env_ids)

    def draw(self, env_ids: EnvIdLike) -> list[Mapping[str, Any] | None]:
        """Return how some of the environments want their running episodes to be drawn; see `Environment.draw`."""
        return self._pool.draw(env_ids)

    def show(self, env_ids: EnvIdLike) -> VecObs:
        """Return what some of the environments show now: their last observations, where their episodes have ended."""
        return self._pool.show(check_env_id(env_ids, len(self)))

    def world_ids(self, env_id: int) -> Sequence[EntityID | None] | None:
        """Return the world's own id of each entity that an environment shows; see `EnvSlots.world_ids`."""
        return self._pool.slots.world_ids(env_id)

    def close(self) -> None:
        """Release everything. May be called twice."""
        self._pool.close()
