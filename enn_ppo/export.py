"""Copy a checkpoint's policy file, which is all that playing, evaluating and serving need.

    python -m enn_ppo.export outputs/my_run snake.safetensors

Exit codes: 0 written, 2 a mistake in the command.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from enn_ppo.checkpoints import save_policy
from entity_gym.errors import shortened
from entity_gym.output import accept_all_characters


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    accept_all_characters()
    parser = argparse.ArgumentParser(prog="python -m enn_ppo.export", description="Write a policy into one file.")
    parser.add_argument("checkpoint", help="a run directory, or one of its checkpoints")
    parser.add_argument("file", help="the file to write, x.safetensors; an existing policy file is replaced")
    options = parser.parse_args(argv)
    try:
        file = save_policy(options.checkpoint.removeprefix("checkpoint="), options.file)
    except (ValueError, OSError) as error:
        print(f"error: {shortened(str(error))}", file=sys.stderr)
        return 2
    print(f"wrote {file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
