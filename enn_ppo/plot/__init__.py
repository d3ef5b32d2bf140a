"""Comparison of runs, by `python -m enn_ppo.plot`: learning curves in a picture, and a page with settings and results."""
