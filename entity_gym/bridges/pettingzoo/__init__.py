"""From and to PettingZoo."""
