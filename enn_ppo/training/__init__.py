"""Training: a run and all that surrounds the algorithm of `train.py`, `rollout.py` and `ppo.py`."""
