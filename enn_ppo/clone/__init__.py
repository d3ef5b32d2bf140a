"""Behavioural cloning from recordings, by `python -m enn_ppo.clone`."""
