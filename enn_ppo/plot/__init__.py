"""Comparison of runs, by `python -m enn_ppo.plot`: learning curves in a picture."""
