"""Evaluation: whole episodes, beside training and by `python -m enn_ppo.eval`."""
