"""Watching a policy in the browser: `python -m enn_ppo.watch outputs/my_run`."""
