"""Playing whole episodes to see how good a policy is."""
