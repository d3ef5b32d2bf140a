"""Play an environment yourself in the browser: `python -m entity_gym.play MineSweeper`."""
