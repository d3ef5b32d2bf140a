"""The command `python -m entity_gym.play`."""

import sys

from entity_gym.play.command import main

if __name__ == "__main__":
    sys.exit(main())
