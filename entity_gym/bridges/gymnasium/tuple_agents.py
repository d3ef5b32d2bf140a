"""Gymnasium environments of several agents, whose spaces, observations, actions and rewards are tuples with a member for each.

Level-Based Foraging and RWARE are such. `TupleAgents` gives them PettingZoo's parallel interface, so that
`entity_gym.bridges.pettingzoo` reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from entity_gym.bridges.gymnasium.observations import kind_of, members_of
from entity_gym.bridges.masks import IN_INFO, method_of


def has_agents(env: Any) -> bool:
    """Return True for an environment that says that it has several agents (`n_agents`), and has tuples of spaces for them."""
    number = getattr(getattr(env, "unwrapped", env), "n_agents", None)
    spaces = [getattr(env, side, None) for side in ("observation_space", "action_space")]
    return number is not None and all(kind_of(each) == "Tuple" and len(members_of(each)) == number for each in spaces)


class TupleAgents:
    """Gives an environment that `has_agents` PettingZoo's parallel interface.

    Args:
        env: the environment.
        name: of the environment in messages.

    Attributes:
        observation_space, action_space: functions, agent -> its space.
        render, close: those of the environment.
    """

    def __init__(self, env: Any, name: str) -> None:
        self.env, self.metadata, self.unwrapped = env, {"name": name}, getattr(env, "unwrapped", env)
        self.possible_agents = [f"agent_{k}" for k in range(len(members_of(env.action_space)))]
        self.agents: list[str] = []
        sides = (members_of(env.observation_space), members_of(env.action_space))
        self.observation_space, self.action_space = (
            dict(zip(self.possible_agents, side.values(), strict=True)).__getitem__ for side in sides
        )
        self.render, self.close = getattr(env, "render", lambda: None), env.close
        self._masks = method_of(env)

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Any, Any]:
        """Start an episode; returns agent -> observation, and agent -> info."""
        observations, info = self.env.reset(seed=seed, options=options)
        self.agents = list(self.possible_agents)
        return self._of_each(observations), self._infos(info)

    def step(self, actions: Mapping[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        """Take a step; returns agent -> observation, reward, terminated, truncated and info.

        One flag is that of all agents. The episode goes on until all agents have ended.
        """
        observations, rewards, terminated, truncated, info = self.env.step(tuple(actions.values()))
        terminates, is_over = bool(np.all(terminated)), bool(np.all(np.logical_or(terminated, truncated)))
        agents = self.possible_agents
        self.agents = [] if is_over else list(agents)
        return (
            self._of_each(observations),
            self._of_each(rewards),
            dict.fromkeys(agents, terminates),
            dict.fromkeys(agents, is_over and not terminates),
            self._infos(info),
        )

    def _of_each(self, values: Any) -> dict[str, Any]:
        agents = self.possible_agents
        if not isinstance(values, tuple | list | np.ndarray) or len(values) != len(agents):
            raise ValueError(
                f"{self.metadata['name']} returned {values!r:.200}; expected one value for each of {len(agents)} agents"
            )
        return dict(zip(agents, values, strict=True))

    def _infos(self, info: Any) -> dict[str, Any]:
        """Return agent -> its info: of an info of all, the action mask of the agent."""
        if isinstance(info, tuple | list):
            return self._of_each(info)
        masks = {key: self._of_each(info[key]) for key in IN_INFO if key in info}
        if self._masks is not None:
            masks = {IN_INFO[0]: self._of_each(self._masks())}
        return {agent: {key: each[agent] for key, each in masks.items()} for agent in self.possible_agents}
