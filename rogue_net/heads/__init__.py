"""From tokens to distributions over actions, and their random numbers."""
