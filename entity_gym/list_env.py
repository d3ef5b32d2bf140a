"""A serial pool of Python environments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from entity_gym.batching import batch_frames
from entity_gym.dispatch import check_actions, frame_actions
from entity_gym.environment import Environment
from entity_gym.frame import Frame, FrameReader
from entity_gym.observation import Observation
from entity_gym.ragged import RaggedBufferI64
from entity_gym.saving import observation_from_state, observation_to_state
from entity_gym.spaces import ActionSpace, ObsSpace
from entity_gym.vec_env import FinalObservations, VecEnv
from entity_gym.vec_obs import VecObs


class _Final(NamedTuple):
    """The last observation of an episode."""

    env_id: int
    obs: Observation
    frame: Frame


class ListEnv(VecEnv):
    """Steps Python environments one after the other.

    Args:
        create_env: makes one environment; called `num_envs` times.
        num_envs: at least 1.
        seed: see `VecEnv.reset`.
        final_observations: which last observations to keep in `VecObs.final`.
    """

    def __init__(
        self,
        create_env: Callable[[], Environment],
        num_envs: int,
        seed: int = 0,
        final_observations: FinalObservations = "truncated",
    ) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs is {num_envs}; it must be at least 1")
        if final_observations not in get_args(FinalObservations):
            raise ValueError(f"final_observations is {final_observations!r}; allowed: {get_args(FinalObservations)}")
        self.envs = [create_env() for _ in range(num_envs)]
        for env in self.envs:
            if not isinstance(env, Environment):
                raise ValueError(f"create_env returned {type(env).__name__}; it must return an entity_gym.Environment")
        self._final_observations = final_observations
        self._reader = FrameReader(self.envs[0].obs_space(), self.envs[0].action_space(), type(self.envs[0]).__name__)
        self._observations: list[Observation] = []
        self._frames: list[Frame] = []
        self._obs: VecObs | None = None
        self._seed(seed)

    def obs_space(self) -> ObsSpace:  # noqa: D102 - see VecEnv
        return self._reader.obs_space

    def action_space(self) -> Mapping[str, ActionSpace]:  # noqa: D102
        return self._reader.action_space

    def __len__(self) -> int:
        return len(self.envs)

    def reset(self, seed: int | None = None) -> VecObs:  # noqa: D102
        if seed is not None:
            self._seed(seed)
        self._observations = [self._reset(i) for i in range(len(self.envs))]
        return self._batch([])

    def act(self, actions: Mapping[str, RaggedBufferI64]) -> VecObs:  # noqa: D102
        if self._obs is None:
            raise ValueError("act was called before reset")
        check_actions(actions, self._obs.action_masks, self._reader)
        finals: list[_Final] = []
        for i, env in enumerate(self.envs):
            obs = self._call(i, env.act, frame_actions(actions, self._frames[i], i, self._reader.action_space))
            if not isinstance(obs, Observation):
                raise ValueError(f"{self._reader.where(i)}: act() returned {obs!r:.200}; expected an Observation")
            if obs.done:
                # Copies, since `reset` may write the next episode into the arrays and dictionaries of this one.
                info = obs.end_of_episode_info
                obs = replace(obs, metrics=dict(obs.metrics), end_of_episode_info=None if info is None else dict(info))
                if self._final_observations == "all" or (self._final_observations == "truncated" and obs.truncated):
                    finals.append(_Final(i, obs, self._reader.read(obs, i).copy()))
                obs = self._first_of_next_episode(i, obs)
            self._observations[i] = obs
        return self._batch(finals)

    def close(self) -> None:  # noqa: D102
        for env in self.envs:
            env.close()

    def render(self, env_ids: Sequence[int]) -> list[NDArray[np.uint8]]:  # noqa: D102
        return [self._call(i, self.envs[i].render) for i in env_ids]

    @property
    def can_save(self) -> bool:  # noqa: D102
        return all(env.can_save() for env in self.envs)

    def state(self) -> dict[str, Any]:  # noqa: D102
        if self._obs is None:
            raise ValueError("state was called before reset")
        return {
            "environments": [self._call(i, env.state) for i, env in enumerate(self.envs)],
            "random": [env.rng.bit_generator.state for env in self.envs],
            "observations": [observation_to_state(obs) for obs in self._observations],
        }

    def load_state(self, state: Mapping[str, Any]) -> VecObs:  # noqa: D102
        if len(state["environments"]) != len(self.envs):
            raise ValueError(
                f"the saved state has {len(state['environments'])} environments; this pool has {len(self.envs)}"
            )
        for i, env in enumerate(self.envs):
            self._call(i, env.load_state, state["environments"][i])
            env.rng.bit_generator.state = state["random"][i]
        self._observations = [observation_from_state(obs) for obs in state["observations"]]
        return self._batch([])

    def _seed(self, seed: int) -> None:
        if seed < 0:
            raise ValueError(f"seed is {seed}; it must not be negative")
        for i, env in enumerate(self.envs):
            env.rng = np.random.default_rng(np.random.SeedSequence((seed, i)))

    def _reset(self, i: int) -> Observation:
        first = self._call(i, self.envs[i].reset)
        if not isinstance(first, Observation) or first.done:
            raise ValueError(
                f"{self._reader.where(i)}: reset() returned {first!r:.200}; expected an Observation that is not done"
            )
        return first

    def _first_of_next_episode(self, i: int, last: Observation) -> Observation:
        return replace(
            self._reset(i),
            reward=last.reward,
            done=True,
            truncated=last.truncated,
            end_of_episode_info=last.end_of_episode_info,
            metrics=last.metrics,
        )

    def _batch(self, finals: list[_Final]) -> VecObs:
        reader = self._reader
        self._frames = [reader.read(obs, i) for i, obs in enumerate(self._observations)]
        self._obs = batch_frames(self._frames, self._observations, np.arange(len(self.envs)), reader)
        if finals:
            env_id = np.array([final.env_id for final in finals])
            last = [final.obs for final in finals]
            self._obs.final = batch_frames([final.frame for final in finals], last, env_id, reader)
        return self._obs

    def _call(self, i: int, method: Callable[..., Any], *args: Any) -> Any:
        """Run an environment's own code; what it raises keeps its type and says which environment it was."""
        try:
            return method(*args)
        except Exception as error:
            error.add_note(f"raised by {self._reader.where(i)} in {method.__name__}()")
            raise
