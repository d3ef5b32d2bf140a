"""A small PettingZoo world without chance: what it shows and pays is worked out by hand. It needs Gymnasium and no PettingZoo."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

#: What agents observe: where they are, and the step.
PLACE = spaces.Box(-np.inf, np.inf, (2,), np.float32)
#: A wolf also sees whether it is hungry, one of three.
WOLF_VIEW = spaces.Dict({"place": PLACE, "hunger": spaces.Discrete(3)})
GRAZE = spaces.Discrete(3, start=5)
HUNT = spaces.Tuple([spaces.Discrete(2), spaces.Box(-1.0, 1.0, (1,), np.float32)])


class Herd:
    """Sheep graze and a wolf hunts.

    A sheep earns its choice, 5, 6 or 7; the wolf earns minus the number of sheep. After the first step sheep_0 is eaten (it
    ends), and after the second a lamb is born, sheep_2. After `length` steps all that are left are cut.
    """

    metadata = {"name": "herd_v0", "render_modes": ["rgb_array"]}
    possible_agents = ["sheep_0", "sheep_1", "sheep_2", "wolf_0"]

    def __init__(self, length: int = 4, render_mode: str | None = None) -> None:
        self.length, self.render_mode = length, render_mode
        self.agents: list[str] = []
        self.told: list[Mapping[str, Any]] = []
        self.resets: list[Mapping[str, Any]] = []
        self.num_closed = 0
        self.time = 0

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return WOLF_VIEW if agent.startswith("wolf") else PLACE

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return HUNT if agent.startswith("wolf") else GRAZE

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Any, Any]:
        self.resets.append({"seed": seed, "options": options})
        self.time = 0
        self.agents = ["sheep_0", "wolf_0", "sheep_1"]
        return self.see(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions: Mapping[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        assert list(actions) == self.agents
        for agent, action in actions.items():
            assert self.action_space(agent).contains(action), (agent, action)
        self.told.append(dict(actions))
        self.time += 1
        acting = list(self.agents)
        sheep = [agent for agent in acting if agent.startswith("sheep")]
        rewards = {agent: float(actions[agent]) if agent in sheep else -float(len(sheep)) for agent in acting}
        terminated = {agent: self.time == 1 and agent == "sheep_0" for agent in acting}
        truncated = {agent: self.time == self.length and not terminated[agent] for agent in acting}
        self.agents = [agent for agent in acting if not (terminated[agent] or truncated[agent])]
        if self.time == 2 and self.agents:
            self.agents.append("sheep_2")
        seen = list(dict.fromkeys([*acting, *self.agents]))
        return self.see(seen), rewards, terminated, truncated, {agent: {} for agent in seen}

    def see(self, agents: list[str]) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        for agent in agents:
            place = np.array([int(agent[-1]), self.time], np.float32)
            seen[agent] = {"place": place, "hunger": self.time % 3} if agent == "wolf_0" else place
        return seen

    def render(self) -> Any:
        return np.full((4, 6, 3), self.time, np.uint8) if self.render_mode == "rgb_array" else None

    def close(self) -> None:
        self.num_closed += 1
