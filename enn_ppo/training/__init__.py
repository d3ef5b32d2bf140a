"""A training run: everything around the algorithm of `train.py`, `rollout.py` and `ppo.py`."""
