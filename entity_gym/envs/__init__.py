"""Environments that come with the package."""

from entity_gym.envs.minesweeper import MineSweeper

__all__ = ["MineSweeper"]
