"""Agents for programs that own their main loop; see `entity_gym.agents.agent`."""

from entity_gym.agents.agent import Agent, Obs, Selection, random_agent
from entity_gym.agents.train_env import TrainAgent, TrainEnv

__all__ = ["Agent", "Obs", "Selection", "TrainAgent", "TrainEnv", "random_agent"]
