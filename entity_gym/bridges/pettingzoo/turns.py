"""PettingZoo's AEC environments, in which agents take turns, with the interface of its parallel environments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from entity_gym.bridges.incoming import check_arguments


def as_parallel(env: Any) -> Any:
    """Return a parallel environment as it is, and an AEC environment as `TakingTurns`.

    AEC environments whose agents can act at the same time (`metadata["is_parallelizable"]`) are converted by PettingZoo.

    Raises:
        ValueError: `env` is neither.
    """
    name, expected = type(env).__name__, ["reset", "step", "observation_space", "action_space"]
    takes_turns = callable(getattr(env, "agent_iter", None))
    if takes_turns:
        expected.append("observe")
    if lacking := [each for each in expected if not hasattr(env, each)]:
        kind = "AEC" if takes_turns else "parallel"
        raise ValueError(f"{name} has no {', '.join(lacking)}; expected a PettingZoo {kind} environment")
    check_arguments(env.reset, f"{name}.reset", {"seed": None, "options": None})
    if takes_turns and getattr(env, "metadata", {}).get("is_parallelizable"):
        from pettingzoo.utils.conversions import aec_to_parallel  # PettingZoo is optional

        return aec_to_parallel(env)
    return TakingTurns(env) if takes_turns else env


class TakingTurns:
    """An AEC environment as a parallel one: in each step the agent `turn` acts, and actions of other agents are not used.

    Each step shows every agent that has not ended, and returns the rewards that the action gave to each.

    Attributes:
        turn: the agent that acts next.
    """

    def __init__(self, env: Any) -> None:
        self.env, self.turn = env, None
        self.possible_agents = getattr(env, "possible_agents", None)
        self.observation_space, self.action_space = env.observation_space, env.action_space

    @property
    def agents(self) -> list[Any]:
        """The agents that have not ended."""
        return [agent for agent in self.env.agents if not self._has_ended(agent)]

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[Any, Any], dict[Any, Any]]:
        """Start an episode; return observations and infos by agent."""
        self.env.reset(seed=seed, options=options)
        return self._next()

    def step(self, actions: Mapping[Any, Any]) -> tuple[dict[Any, Any], ...]:
        """Take the action of the agent `turn`.

        Returns:
            Observations, rewards, terminations, truncations and infos by agent; truncated agents have their last observation.

        Raises:
            ValueError: the next turn is of an agent that is not in the environment's `agents`, or an agent that has ended stays
                in them after its turn.
        """
        acting, env = self.agents, self.env
        env.step(actions[self.turn])
        rewards = {agent: env.rewards.get(agent, 0.0) for agent in acting}
        terminated = {agent: bool(env.terminations.get(agent, True)) for agent in acting}
        truncated = {agent: bool(env.truncations.get(agent, False)) for agent in acting}
        cut = {agent: env.observe(agent) for agent in acting if truncated[agent]}
        observations, infos = self._next()
        return cut | observations, rewards, terminated, truncated, infos

    def _has_ended(self, agent: Any) -> bool:
        return bool(self.env.terminations.get(agent) or self.env.truncations.get(agent))

    def _next(self) -> tuple[dict[Any, Any], dict[Any, Any]]:
        """Find the agent that acts next, and return observations and infos of all agents that have not ended."""
        env = self.env
        self.turn = env.agent_selection  # stays if the episode has ended: the agent that would have been next
        for _ in list(env.agents):
            if not self._has_ended(env.agent_selection):
                break
            env.step(None)  # agents that have ended still get a turn before, in which they take no action
        agents = self.agents
        if env.agents:
            self.turn = env.agent_selection
            if self.turn not in agents:
                raise ValueError(
                    f"it is the turn of {self.turn!r}, and the agents that have not ended are {agents}: an agent that has ended "
                    "must leave env.agents after its next step(None)"
                )
        return {agent: env.observe(agent) for agent in agents}, {agent: env.infos.get(agent, {}) for agent in agents}
