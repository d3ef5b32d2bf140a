"""A trained policy for programs: in Python (`agent.py`), and over sockets by `python -m enn_ppo.serve`."""
