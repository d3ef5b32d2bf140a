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

#: Key of the info that belongs to no agent.
COMMON = "__common__"


def has_agents(env: Any) -> bool:
    """Return True for an environment that says that it has several agents (`n_agents`), and has tuples of spaces for them."""
    number = getattr(getattr(env, "unwrapped", env), "n_agents", None)
    spaces = [getattr(env, side, None) for side in ("observation_space", "action_space")]
    return number is not None and all(
        space is not None and kind_of(space) == "Tuple" and len(list(members_of(space))) == number for space in spaces
    )


class TupleAgents:
    """Gives an environment whose spaces are tuples of agents PettingZoo's parallel interface.

    Args:
        env: the environment.
        name: of the environment in messages.

    Attributes:
        observation_space, action_space: functions, agent -> its space.
        render, close: those of the environment.

    Raises:
        ValueError: the spaces are not tuples of equally many members.
    """

    def __init__(self, env: Any, name: str) -> None:
        self.env, self.metadata, self.unwrapped = env, {"name": name}, getattr(env, "unwrapped", env)
        sides = []
        for side in ("observation_space", "action_space"):
            space = getattr(env, side, None)
            if space is None or kind_of(space) != "Tuple":
                raise ValueError(
                    f"{name}: agents=True needs Tuple spaces, a member for each agent; {side} is {space!r:.200}"
                )
            sides.append([each for _, each in members_of(space)])
        if len(sides[0]) != len(sides[1]):
            raise ValueError(
                f"{name}: agents=True needs spaces with a member for each agent; the observation space has {len(sides[0])}, and "
                f"the action space {len(sides[1])}"
            )
        self.possible_agents = [f"agent_{k}" for k in range(len(sides[0]))]
        self.agents: list[str] = []
        spaces = [dict(zip(self.possible_agents, side, strict=True)) for side in sides]
        self.observation_space, self.action_space = spaces[0].__getitem__, spaces[1].__getitem__
        self.render, self.close = getattr(env, "render", lambda: None), env.close
        self._masks = method_of(env)

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Any, Any]:
        """Start an episode; returns agent -> observation, and agent -> info."""
        observations, info = self.env.reset(seed=seed, options=options)
        self.agents = list(self.possible_agents)
        return self._of_each(observations, "observations"), self._infos(info)

    def step(self, actions: Mapping[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        """Take a step; returns agent -> observation, reward, terminated, truncated and info."""
        observations, rewards, terminated, truncated, info = self.env.step(tuple(actions.values()))
        ended = {
            name: self._flags(given, name) for name, given in (("terminated", terminated), ("truncated", truncated))
        }
        if all(one or other for one, other in zip(*(each.values() for each in ended.values()), strict=True)):
            self.agents = []
        return (
            self._of_each(observations, "observations"),
            self._of_each(rewards, "rewards"),
            ended["terminated"],
            ended["truncated"],
            self._infos(info),
        )

    def _of_each(self, values: Any, what: str) -> dict[str, Any]:
        if not isinstance(values, tuple | list | np.ndarray) or len(values) != len(self.possible_agents):
            raise ValueError(
                f"{self.metadata['name']}: step() returned the {what} {values!r:.200}; expected one for each of "
                f"{len(self.possible_agents)} agents"
            )
        return dict(zip(self.possible_agents, values, strict=True))

    def _infos(self, info: Any) -> dict[str, Any]:
        """Return agent -> its info, with its own action mask; what is known of no single agent is the info of `COMMON`."""
        if isinstance(info, tuple | list):
            return self._of_each(info, "infos")
        masks = {key: self._of_each(info[key], "action masks") for key in IN_INFO if key in info}
        if self._masks is not None:
            masks = {IN_INFO[0]: self._of_each(self._masks(), "action masks")}
        common = {name: value for name, value in info.items() if name not in masks}
        of_agents = {agent: {key: each[agent] for key, each in masks.items()} for agent in self.possible_agents}
        return {COMMON: common, **of_agents}

    def _flags(self, given: Any, what: str) -> dict[str, bool]:
        """Return a flag for each agent; one flag is that of all. The episode goes on until all agents have ended."""
        if np.ndim(given) == 0:
            return dict.fromkeys(self.possible_agents, bool(given))
        flags = self._of_each(given, what)
        return dict.fromkeys(self.possible_agents, all(flags.values()))
