"""Hyperparameter search with Optuna, by `python -m enn_ppo.sweep`."""
