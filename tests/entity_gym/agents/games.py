"""A module as a user writes one: a game, and what trains it."""

from __future__ import annotations

from entity_gym.agents import Agent, TrainEnv
from tests.entity_gym.agents.programs import Goal, Move, Walker, walk


def play(agent: Agent, config: None, seed: int) -> None:
    walk(agent, config, seed)


line = TrainEnv(play, [Walker, Goal], [Move])
