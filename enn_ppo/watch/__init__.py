"""Watching a policy in the browser.

python -m enn_ppo.watch outputs/mines episodes=20    # --live follows a training
"""
