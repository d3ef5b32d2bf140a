"""The command `python -m entity_gym.check`."""

import os
import sys

from entity_gym.check.command import main

if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # without waiting for threads that the environment has started
