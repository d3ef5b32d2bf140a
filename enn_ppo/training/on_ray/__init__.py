"""Training on a Ray cluster, with the extra `ray`: environment runners collect rollouts, and learners train on them."""
