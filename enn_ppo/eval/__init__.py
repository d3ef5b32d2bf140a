"""Evaluation of checkpoints on whole episodes, during training and by `python -m enn_ppo.eval`."""
