"""Sweeps: many trainings that Optuna chooses, by `python -m enn_ppo.sweep`."""
