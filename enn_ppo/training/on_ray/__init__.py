"""Training on a Ray cluster: environment runners that play, and a learner that learns from what they have played.

Import nothing from here without Ray (the extra `ray`) but `errors`.
"""
