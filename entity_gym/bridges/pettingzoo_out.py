"""Worlds with players as PettingZoo parallel environments: every player (`entity_gym.pools.players`) is an agent.

    env = to_pettingzoo("MultiSnake", num_snakes=4, num_players=2, max_actors={"move": 2})
    observations, infos = env.reset(seed=1)
    actions = {agent: env.action_space(agent).sample() for agent in env.agents}
    observations, rewards, terminated, truncated, infos = env.step(actions)

The agents are "player_0", "player_1", ... All of them stay until the episode ends, which it does for all at once. Each sees
the world with its own eyes (`seen_by`), padded as `dense_obs` says; `actors` are its own, and so is the reward. All actions
of the space can be taken: one that is not open becomes the next open one, unless `invalid_actions="raise"`.

`action_mask` stands in the observation as PettingZoo has it, so `env.action_space(agent).sample(mask)` takes it: (C,) for an
action that is a plain number, else action -> one (C,) for each actor. Where some action is continuous, which `sample` takes
no mask for, it is in the info instead, action -> (A, C), without the continuous ones.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from entity_gym.batch.vec_obs import VecAction, VecObs
from entity_gym.bridges.dense import DenseForm, frame_of
from entity_gym.bridges.dense_obs import Tree
from entity_gym.errors import nearest
from entity_gym.pools.players import Part, PlayerMapping, Seating, players_of
from entity_gym.pools.pool import SlotVecEnv
from entity_gym.pools.slots import check_num_envs
from entity_gym.pools.spec import EnvSpec
from entity_gym.registry import Prepared, make_single_pool, prepare, spec_of

try:
    from gymnasium import spaces
    from pettingzoo import ParallelEnv

    from entity_gym.bridges.gymnasium_form import action_space, observation_space
except ImportError as error:
    raise ImportError(f'this needs PettingZoo ({error}): pip install "enn-ppo[pettingzoo]"') from error

_ONLY: NDArray[np.int64] = np.zeros(1, np.int64)  # the environment of a pool of one


def to_pettingzoo(env: Any, *, render_mode: str | None = None, **options: Any) -> PlayersParallelEnv:
    """One environment as a PettingZoo parallel environment whose agents are its players.

    Args:
        env: what `make` takes: a name, "package.module:Class", a class or a function; of a world with players.
        render_mode: "rgb_array", or None.
        options: those of `make` that concern one environment, and the environment's parameters. `max_entities` is the room
            for entities of a type, and `max_actors` the room for those of *one player* that act.

    Raises:
        ValueError: the world has no players, or does not say how many entities or actors there can be.
        ImportError: naming what to install.
    """
    return PlayersParallelEnv(env, render_mode, **options)


class PlayersParallelEnv(ParallelEnv):  # type: ignore[misc, unused-ignore]
    """What `to_pettingzoo` returns; the arguments are the same.

    Attributes:
        possible_agents: the players, from "player_0" on.
        agents: the same while an episode is running, and nobody otherwise.
        env_spec: of the environment.
    """

    def __init__(self, env: Any, render_mode: str | None = None, **options: Any) -> None:
        prepared = prepare(env, {**options, "env_type": "gymnasium", "render_mode": render_mode})
        check_num_envs(prepared.config.num_envs)
        if prepared.config.num_envs != 1:
            raise ValueError(f"num_envs is {prepared.config.num_envs}; a parallel environment is one environment")
        self._mapping = _mapping_of(prepared)
        self._pool: SlotVecEnv = make_single_pool(prepared)
        self.env_spec = spec_of(prepared, self._pool)
        self.render_mode = render_mode
        self.metadata = {
            "name": prepared.config.name,
            "render_modes": ["rgb_array"],
            "render_fps": 10,
            "is_parallelizable": True,
        }
        self.possible_agents = [f"player_{i}" for i in range(self._mapping.num_players)]
        self.agents: list[str] = []
        try:
            self._views = {agent: _View(self.env_spec, agent) for agent in self.possible_agents}
        except ValueError:
            self.close()
            raise
        self._shown: _Shown | None = None

    def observation_space(self, agent: str) -> spaces.Dict:
        """What `agent` sees."""
        return self._view(agent).observation_space

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """What `agent` does."""
        return self._view(agent).action_space

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode.

        Args:
            seed: the environment draws from `SeedSequence((seed, 0))`. None: the random numbers go on where they are.
            options: {"env_info": parameters for the episodes from now on}. Others are left alone, with a warning: wrappers
                hand theirs through.

        Returns:
            Observations and infos by agent.

        Raises:
            ValueError: for parameters that cannot be, or that decide what belongs to whom.
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
        """All players take one step.

        Args:
            actions: agent -> action, for every agent.

        Returns:
            Observations, rewards, terminated, truncated and infos by agent. The infos of a last step also hold what the
            environment says about the episode.

        Raises:
            ValueError: without a running episode, or for an action that is missing or outside its space.
        """
        if not self.agents or self._shown is None:
            raise ValueError("step: no episode is running; call reset first")
        acting, shown = self.agents, self._shown
        told = [(shown.parts[agent], self._views[agent].ragged(actions[agent])) for agent in self._checked(actions)]
        obs = self._pool.act(shown.seating.join(told))
        seating = self._show(obs)
        done, truncated = bool(obs.done[0]), bool(obs.truncated[0])
        observations, infos = self._frames(obs.end_of_episode_info.get(0, {}) if done else {})
        rewards = {agent: float(reward) for agent, reward in zip(acting, seating.rewards[0], strict=True)}
        if done:
            self.agents = []
        return (
            observations,
            rewards,
            dict.fromkeys(acting, done and not truncated),
            dict.fromkeys(acting, truncated),
            infos,
        )

    def render(self) -> NDArray[np.uint8] | None:
        """The current state as a (height, width, 3) image, or None without a render mode."""
        return None if self.render_mode is None else self._pool.render([0])[0]

    def close(self) -> None:
        """Release everything. May be called twice."""
        self._pool.close()

    def _view(self, agent: str) -> _View:
        if agent not in self._views:
            raise ValueError(f"there is no agent {agent!r}; {nearest(agent, self._views)}")
        return self._views[agent]

    def _show(self, obs: VecObs) -> Seating:
        seating = Seating(obs, self._mapping)
        self._shown = _Shown(seating, {agent: seating.part(i) for i, agent in enumerate(self.possible_agents)})
        return seating

    def _frames(self, said: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Observations and infos by agent; `said` is what the environment says about the episode that has ended."""
        assert self._shown is not None
        observations, infos = {}, {}
        for agent, view in self._views.items():
            observation, info = view.show(self._shown.seating.show(self._shown.parts[agent]))
            taken = sorted(said.keys() & info.keys())
            if taken:
                raise ValueError(
                    f"end_of_episode_info has {taken}, which info has already: rename them in the environment"
                )
            observations[agent], infos[agent] = observation, {**info, **said}
        return observations, infos

    def _checked(self, actions: Mapping[str, Any]) -> list[str]:
        """The agents, if each of them has an action in its space and nobody else has one."""
        if not isinstance(actions, Mapping):
            raise ValueError(f"actions are {actions!r:.200}; expected a dictionary, agent -> action")
        for agent in actions:
            self._view(agent)
        for agent in self.agents:
            if agent not in actions:
                raise ValueError(f"the action of {agent!r} is missing; every agent acts in every step")
        return self.agents

    def _env_info(self, options: Mapping[str, Any]) -> Mapping[str, Any] | None:
        unknown = sorted(options.keys() - {"env_info"})
        if unknown:
            warnings.warn(f"reset: options {unknown} are not used; 'env_info' would be", stacklevel=3)
        env_info: Mapping[str, Any] | None = options.get("env_info")
        for name in self._mapping.fixed:
            if name in (env_info or {}):
                raise ValueError(
                    f"reset: env_info has {name!r}, on which it depends what belongs to which player: make another environment"
                )
        return env_info


class _Shown(NamedTuple):
    """What the environment shows now, to all, and which part of it is whose."""

    seating: Seating
    parts: dict[str, Part]  # by agent


def _mapping_of(prepared: Prepared) -> PlayerMapping:
    mapping = players_of(prepared.source)
    if mapping is None:
        raise ValueError(
            f"{prepared.config.name} has no players, who would be the agents: give its class num_players(), players() and "
            "seen_by() as entity_gym.pools.players says, or use to_gymnasium, where the whole world is one agent"
        )
    return mapping


class _View:
    """How one agent sees the world: frames as arrays of fixed shapes, and the way back for its actions.

    Args:
        spec: of the environment.
        agent: its name, for messages.

    Raises:
        ValueError: if the spec does not say how many entities or actors there can be.
    """

    def __init__(self, spec: EnvSpec, agent: str) -> None:
        # Fixed arrays show the world as nobody in particular sees it, so they are left out.
        spec = replace(spec, arrays={}, config=replace(spec.config, name=f"{spec.config.name}, {agent}"))
        self.form = DenseForm(spec, 1)
        self.action_space = action_space(spec)
        self._choosing = [name for name, action in spec.actions.items() if action.kind != "continuous"]
        self._masks_in_info = len(self._choosing) < len(spec.actions)
        shown = dict(observation_space(spec).spaces)  # type: ignore[attr-defined]
        masks = shown.pop("action_mask")
        self.observation_space = spaces.Dict(
            shown if self._masks_in_info else {**shown, "action_mask": self._mask_space(masks)}
        )

    def show(self, view: VecObs) -> tuple[dict[str, Any], dict[str, Any]]:
        """Observation and info of a frame as this agent sees it."""
        dense = self.form.show(replace(view, arrays={}))
        observation, info = frame_of(dense.observation, 0), frame_of(dense.info, 0)
        masks = observation.pop("action_mask")
        shown = {name: int(value) for name, value in info.items() if name != "env_id"}
        if self._masks_in_info:
            return observation, {**shown, "action_mask": {name: masks[name] for name in self._choosing}}
        return {**observation, "action_mask": self._mask(masks)}, shown

    def ragged(self, action: Any) -> dict[str, VecAction]:
        """An action as a pool of one environment takes it."""
        if isinstance(action, Mapping):
            return self.form.ragged({name: np.asarray(values)[None] for name, values in action.items()}, _ONLY)
        return self.form.ragged(np.asarray(action)[None], _ONLY)

    def _mask_space(self, masks: spaces.Dict) -> spaces.Space[Any]:
        of_action: dict[str, Any] = dict(masks.spaces)
        if self.form.plain:
            return next(iter(of_action.values()))
        return spaces.Dict(
            {
                name: spaces.Tuple([spaces.MultiBinary(space.shape[1]) for _ in range(space.shape[0])])
                for name, space in of_action.items()
            }
        )

    def _mask(self, masks: dict[str, NDArray[np.int8]]) -> Tree:
        if self.form.plain:
            return next(iter(masks.values()))
        return {name: tuple(mask) for name, mask in masks.items()}
