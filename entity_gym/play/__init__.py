"""Play an environment yourself, in the terminal: `python -m entity_gym.play MineSweeper`."""
