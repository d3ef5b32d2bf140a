"""Worlds with players (`entity_gym.pools.players`) as PettingZoo parallel environments: every player is an agent.

The agents are "player_0", "player_1", ... All stay until the episode ends, which it does for all at once. Each sees the world
as `seen_by` says, in the padded form (`entity_gym.bridges.padded`), with its own actors and reward.

The info has `action_mask`, if there are choices, as `env.action_space(agent).sample(mask)` takes it.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entity_gym.batch.vec_obs import VecAction, VecObs
from entity_gym.bridges.padded import PaddedForm, frame_of, in_batch
from entity_gym.errors import nearest
from entity_gym.pools.players import Part, PlayerMapping, Seating
from entity_gym.pools.pool import SlotVecEnv
from entity_gym.pools.spec import EnvSpec

try:
    from gymnasium import spaces
    from pettingzoo import ParallelEnv

    from entity_gym.bridges.gymnasium.envs import action_space, observation_space, unless_taken

except ImportError as error:
    raise ImportError(f'this needs PettingZoo ({error}): pip install "enn-ppo[pettingzoo]"') from error

_ONLY: NDArray[np.int64] = np.zeros(1, np.int64)  # the environment of a pool of one


class PlayersParallelEnv(ParallelEnv):  # type: ignore[misc, unused-ignore]
    """The only environment of a pool as a PettingZoo `ParallelEnv`; `to_pettingzoo` makes it.

    Args:
        pool: one environment without autoreset; closed with this object.
        mapping: says what belongs to which player.
        render_mode: "rgb_array", or None.

    Attributes:
        possible_agents: the players.
        agents: the same while an episode is running, and empty otherwise.
        env_spec: the spec of the environment.

    Raises:
        ValueError: if the spec does not say how many entities or actors there can be.
    """

    def __init__(self, pool: SlotVecEnv, spec: EnvSpec, mapping: PlayerMapping, render_mode: str | None = None) -> None:
        self._pool, self._mapping, self.env_spec, self.render_mode = pool, mapping, spec, render_mode
        self.metadata = {
            "name": spec.config.name,
            "render_modes": ["rgb_array"],
            "render_fps": 10,
            "is_parallelizable": True,
        }
        self.possible_agents = [f"player_{i}" for i in range(mapping.num_players)]
        self.agents: list[str] = []
        self._views = {agent: _View(spec, agent) for agent in self.possible_agents}
        self._seating: Seating | None = None  # of the last frame
        self._parts: dict[str, Part] = {}  # agent -> its part of that frame

    def observation_space(self, agent: str) -> spaces.Dict:
        """Return the observation space of `agent`."""
        return self._view(agent).observation_space

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """Return the action space of `agent`."""
        return self._view(agent).action_space

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode, and return observations and infos by agent.

        Args:
            seed: the environment draws from `SeedSequence((seed, 0))`. None: continue with the current random numbers.
            options: {"env_info": parameters for the episodes from now on}. Others are ignored with a warning, since wrappers
                pass theirs on.

        Raises:
            ValueError: for parameters that the environment refuses, or that decide what belongs to which player.
        """
        for view in self._views.values():
            view.form.forget_replaced()
        env_info = self._env_info(options or {})
        self._show(self._pool.reset(seed, None if env_info is None else [env_info]))
        self.agents = list(self.possible_agents)
        return self._frames({})

    def step(
        self, actions: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, Any]]:
        """Take one step with an action for every agent.

        Returns:
            Observations, rewards, terminated, truncated and infos by agent. The infos of a last step include the
            environment's own end-of-episode info.

        Raises:
            ValueError: without a running episode, or for an action that is missing or outside its space.
        """
        if not self.agents or self._seating is None:
            raise ValueError("step: no episode is running; call reset first")
        self._check(actions)
        acting = self.agents
        told = [(self._parts[agent], self._views[agent].to_pool(actions[agent])) for agent in acting]
        obs = self._pool.act(self._seating.join(told))
        rewards = self._show(obs).rewards[0]
        done, truncated = bool(obs.done[0]), bool(obs.truncated[0])
        observations, infos = self._frames(obs.end_of_episode_info.get(0, {}) if done else {})
        if done:
            self.agents = []
        return (
            observations,
            {agent: float(reward) for agent, reward in zip(acting, rewards, strict=True)},
            dict.fromkeys(acting, done and not truncated),
            dict.fromkeys(acting, truncated),
            infos,
        )

    def render(self) -> NDArray[np.uint8] | None:
        """Draw the current state as a (height, width, 3) image; None without a render mode."""
        return None if self.render_mode is None else self._pool.render([0])[0]

    def close(self) -> None:
        """Release everything. May be called twice."""
        self._pool.close()

    def _view(self, agent: str) -> _View:
        if agent not in self._views:
            raise ValueError(f"there is no agent {agent!r}; {nearest(agent, self._views)}")
        return self._views[agent]

    def _show(self, obs: VecObs) -> Seating:
        self._seating = Seating(obs, self._mapping)
        self._parts = {agent: self._seating.part(i) for i, agent in enumerate(self.possible_agents)}
        return self._seating

    def _frames(self, said: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return observations and infos by agent; `said` is the end-of-episode info."""
        assert self._seating is not None
        observations, infos = {}, {}
        for agent, view in self._views.items():
            observations[agent], info = view.show(self._seating.show(self._parts[agent]))
            infos[agent] = {**info, **unless_taken(said, info)}
        return observations, infos

    def _check(self, actions: Mapping[str, Any]) -> None:
        """Raise ValueError unless there is an action for every agent and for nobody else."""
        if not isinstance(actions, Mapping):
            raise ValueError(f"actions are {actions!r:.200}; expected a dictionary, agent -> action")
        for agent in actions:
            self._view(agent)
        for agent in self.agents:
            if agent not in actions:
                raise ValueError(f"the action of {agent!r} is missing; every agent acts in every step")

    def _env_info(self, options: Mapping[str, Any]) -> Mapping[str, Any] | None:
        if unknown := sorted(options.keys() - {"env_info"}):
            warnings.warn(f"reset: options {unknown} are not used; 'env_info' would be", stacklevel=3)
        env_info: Mapping[str, Any] | None = options.get("env_info")
        for name in self._mapping.fixed:
            if name in (env_info or {}):
                raise ValueError(
                    f"reset: env_info has {name!r}, on which it depends what belongs to which player: make another environment"
                )
        return env_info


class _View:
    """One agent's frames in the padded form; raises ValueError if the spec does not say how many entities there can be."""

    def __init__(self, spec: EnvSpec, agent: str) -> None:
        self.form = PaddedForm(replace(spec, config=replace(spec.config, name=f"{spec.config.name}, {agent}")))
        self.observation_space, self.action_space = observation_space(self.form), action_space(self.form)

    def show(self, view: VecObs) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the observation and info of a frame as this agent sees it."""
        observation, info = (frame_of(frames, 0) for frames in self.form.show(view))
        shown = {name: int(value) for name, value in info.items() if name != "env_id"}
        masks = self.form.masks(observation)
        return observation, {**shown, "action_mask": self._mask(masks)} if masks else shown

    def to_pool(self, action: Any) -> dict[str, VecAction]:
        """Convert an action to what a pool of one environment takes."""
        return self.form.to_pool(in_batch(action), _ONLY)

    def _mask(self, masks: dict[str, list[NDArray[np.int8]]]) -> Any:
        """Return what `sample` of the action space takes."""
        if isinstance(self.form.action, dict):
            return {name: tuple(masks[name]) if name in masks else None for name in self.form.action}
        every = tuple(itertools.chain.from_iterable(masks.values()))
        return every if self.form.action.shape else every[0]
