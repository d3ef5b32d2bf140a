"""From and to dm_env."""
