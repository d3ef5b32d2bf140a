"""The command `python -m entity_gym.check`."""

import sys

from entity_gym.check.command import main

if __name__ == "__main__":
    sys.exit(main())
