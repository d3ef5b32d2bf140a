"""Behavioural cloning: a policy from recordings, by `python -m enn_ppo.clone`."""
