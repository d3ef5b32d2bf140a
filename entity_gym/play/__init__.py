"""Play an environment yourself, in the terminal or in the browser: `python -m entity_gym.play MineSweeper`."""
