"""Pools: many environments behind one interface, `VecEnv`."""
