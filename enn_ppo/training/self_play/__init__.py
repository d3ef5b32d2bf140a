"""Self-play against past versions of the policy."""
