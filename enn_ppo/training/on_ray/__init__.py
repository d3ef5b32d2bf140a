"""Training on a Ray cluster: environment runners collect rollouts, and learners train on them.

The modules need Ray (the extra `ray`).
"""
