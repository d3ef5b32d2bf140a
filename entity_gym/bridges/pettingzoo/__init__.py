"""Bridges from and to PettingZoo."""
