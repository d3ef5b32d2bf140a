"""Bridges from and to dm_env."""
