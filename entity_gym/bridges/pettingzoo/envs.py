"""Worlds with players (`entity_gym.pools.players`) as PettingZoo parallel environments: every player is an agent.

The agents are "player_0", "player_1", ... All stay until the episode ends, which it does for all at once. Each sees the world
as `seen_by` says, in the padded form (`entity_gym.bridges.padded`), with its own actions and reward.

The info has `action_mask`, if there are choices, as `env.action_space(agent).sample(mask)` takes it.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entity_gym.batch.vec_obs import VecObs
from entity_gym.bridges.padded import PaddedForm, frame_of, in_batch, make_form, with_report
from entity_gym.pools.players import Part, PlayerMapping, Seating, players_of
from entity_gym.pools.spec import EnvSpec
from entity_gym.pools.vec_env import VecEnv
from entity_gym.registry import prepare

try:
    from gymnasium import spaces
    from pettingzoo import ParallelEnv

    from entity_gym.bridges.gymnasium.envs import action_space, observation_space

except ImportError as error:
    raise ImportError(f'this needs PettingZoo ({error}): pip install "enn-ppo[pettingzoo]"') from error


class PlayersParallelEnv(ParallelEnv):  # type: ignore[misc, unused-ignore]
    """The only environment of a pool as a PettingZoo `ParallelEnv`; `to_pettingzoo` makes it.

    Args:
        mapping: says what belongs to which player.
        render_mode: "rgb_array", or None.
        pool: one environment without autoreset; closed with this object.
    """

    def __init__(self, mapping: PlayerMapping, render_mode: str | None, pool: VecEnv, spec: EnvSpec) -> None:
        self._pool, self._mapping, self.render_mode = pool, mapping, render_mode
        self.metadata = {"name": spec.config.name, "render_modes": ["rgb_array"], "render_fps": 10}
        self.metadata["is_parallelizable"] = True
        self.possible_agents = [f"player_{i}" for i in range(mapping.num_players)]
        self.agents: list[str] = []
        self._form = PaddedForm(spec, mapping.num_players, "player")  # the frames of the players are its environments
        self.observation_spaces = {agent: observation_space(self._form) for agent in self.possible_agents}
        self.action_spaces = {agent: action_space(self._form) for agent in self.possible_agents}
        self._seating: Seating | None = None  # of the last frame
        self._parts: list[Part] = []  # of each player

    def observation_space(self, agent: str) -> spaces.Dict:
        """Return the observation space of `agent`."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """Return the action space of `agent`."""
        return self.action_spaces[agent]

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
        if unknown := sorted((options or {}).keys() - {"env_info"}):
            warnings.warn(f"reset: options {unknown} are not used; 'env_info' would be", stacklevel=2)
        env_info: Mapping[str, Any] | None = (options or {}).get("env_info")
        if fixed := sorted(set(self._mapping.fixed) & set(env_info or {})):
            raise ValueError(
                f"reset: env_info has {fixed}, on which it depends what belongs to which player: make another environment"
            )
        self._form.num_replaced[:] = 0
        frames = self._show(self._pool.reset(seed, None if env_info is None else [env_info]))
        self.agents = list(self.possible_agents)
        return frames

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
        if not isinstance(actions, Mapping) or set(actions) != set(self.agents):
            raise ValueError(f"actions are {actions!r:.200}; expected an action for each of the agents {self.agents}")
        agents, told = self.agents, []
        for player, (agent, part) in enumerate(zip(agents, self._parts, strict=True)):
            told.append((part, self._form.to_pool(in_batch(actions[agent]), np.array([player]))))
        obs = self._pool.act(self._seating.join(told))
        observations, infos = self._show(obs)
        rewards = self._seating.rewards[0].tolist()
        done, truncated = bool(obs.done[0]), bool(obs.truncated[0])
        if done:
            self.agents = []
        return (
            observations,
            dict(zip(agents, rewards, strict=True)),
            dict.fromkeys(agents, done and not truncated),
            dict.fromkeys(agents, truncated),
            infos,
        )

    def render(self) -> NDArray[np.uint8] | None:
        """Draw the current state as a (height, width, 3) image; None without a render mode."""
        return None if self.render_mode is None else self._pool.render([0])[0]

    def close(self) -> None:
        """Release everything. May be called twice."""
        self._pool.close()

    def _show(self, obs: VecObs) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return observations and infos by agent."""
        self._seating = seating = Seating(obs, self._mapping)
        self._parts = [seating.part(player) for player in range(len(self.possible_agents))]
        seen = [
            replace(seating.show(part), env_id=np.array([player]), metrics={})
            for player, part in enumerate(self._parts)
        ]
        observations, infos = {}, {}
        frames, numbers = self._form.show(VecObs.cat(seen))
        del numbers["env_id"]
        for player, agent in enumerate(self.possible_agents):
            observations[agent] = frame_of(frames, player)
            info: dict[str, Any] = {name: int(values[player]) for name, values in numbers.items()}
            masks = self._form.masks(observations[agent])
            every = tuple(
                row for mask in masks.values() if mask is not None for row in mask.reshape(-1, mask.shape[-1])
            )
            if isinstance(self._form.action, dict):
                info["action_mask"] = {name: None if mask is None else _nested(mask) for name, mask in masks.items()}
            elif every:
                info["action_mask"] = every if self._form.action.shape else every[0]
            infos[agent] = with_report(obs, 0, info)
        return observations, infos


def _nested(mask: NDArray[np.int8]) -> tuple[Any, ...]:
    """Return masks (A, C) or (A, P, C) as `MultiDiscrete.sample` takes them: a tuple for each dimension but the last."""
    return tuple(mask) if mask.ndim == 2 else tuple(map(_nested, mask))


def to_pettingzoo(env: Any, *, render_mode: str | None = None, **options: Any) -> PlayersParallelEnv:
    """Make one environment of a world with players as a PettingZoo parallel environment whose agents are the players.

    Args:
        env: as in `to_gymnasium`.
        render_mode: "rgb_array", or None.
        options: as in `to_gymnasium`; `max_actors` is the room for the actors of *one player*.

    Raises:
        ValueError: if the world has no players, or does not say how many entities or actors there can be.
        ImportError: naming what to install.
    """
    source = prepare(env, options).source
    assert source is not None
    mapping = players_of(source)
    if mapping is None:
        raise ValueError(
            f"{source.name} has no players, and PettingZoo's agents are players: give its class num_players(), players() and "
            "seen_by() as entity_gym.pools.players says, or use to_gymnasium, where the whole world is one agent"
        )
    if render_mode not in (None, "rgb_array"):
        raise ValueError(f"render_mode is {render_mode!r}; allowed: None, 'rgb_array'")
    return make_form(partial(PlayersParallelEnv, mapping, render_mode), env, options)
