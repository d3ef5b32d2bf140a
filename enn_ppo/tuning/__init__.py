"""Settings, search space and command line of a sweep. `python -m enn_ppo.sweep`."""
