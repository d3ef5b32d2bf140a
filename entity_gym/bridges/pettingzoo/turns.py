"""PettingZoo AEC environments, in which agents take turns, with the interface of parallel environments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class TakingTurns:
    """An AEC environment as a parallel one: in each step the agent `turn` acts, and the actions of the others are not used.

    Every agent that has not ended is shown in every step. A step returns the rewards that its action gave to each agent.

    Args:
        env: the AEC environment, closed with this object.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        self.metadata = getattr(env, "metadata", {})
        possible = getattr(env, "possible_agents", None)
        if possible is not None:
            self.possible_agents = list(possible)

    @property
    def agents(self) -> list[Any]:
        """The agents that have not ended."""
        return [agent for agent in self.env.agents if not self._has_ended(agent)]

    @property
    def turn(self) -> Any:
        """The agent that acts next."""
        return self.env.agent_selection

    def observation_space(self, agent: Any) -> Any:
        return self.env.observation_space(agent)

    def action_space(self, agent: Any) -> Any:
        return self.env.action_space(agent)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[Any, Any], dict[Any, Any]]:
        self.env.reset(seed=seed, options=options)
        self._pass_over_ended()
        return self._shown()

    def step(self, actions: Mapping[Any, Any]) -> tuple[dict[Any, Any], ...]:
        acting, env = self.agents, self.env
        env.step(actions[self.turn])
        rewards = {agent: env.rewards.get(agent, 0.0) for agent in acting}
        terminated = {agent: env.terminations.get(agent, True) for agent in acting}
        truncated = {agent: env.truncations.get(agent, False) for agent in acting}
        cut = {agent: env.observe(agent) for agent in acting if truncated[agent]}
        self._pass_over_ended()
        observations, infos = self._shown()
        return cut | observations, rewards, terminated, truncated, infos

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    def _has_ended(self, agent: Any) -> bool:
        return bool(self.env.terminations.get(agent)) or bool(self.env.truncations.get(agent))

    def _pass_over_ended(self) -> None:
        """An agent that has ended still gets its turn, in which it takes no action."""
        while self.env.agents and self._has_ended(self.turn):
            self.env.step(None)

    def _shown(self) -> tuple[dict[Any, Any], dict[Any, Any]]:
        agents = self.agents
        return {agent: self.env.observe(agent) for agent in agents}, {
            agent: self.env.infos.get(agent, {}) for agent in agents
        }
