"""Sweeps over settings: a space to search, trials as processes, and what came of them. `python -m enn_ppo.sweep`."""
