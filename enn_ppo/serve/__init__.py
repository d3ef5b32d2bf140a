"""Trained policies for other programs: in Python (`agent.py`), and over sockets by `python -m enn_ppo.serve`."""
