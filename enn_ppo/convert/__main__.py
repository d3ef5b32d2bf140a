"""Convert a checkpoint of enn-trainer 0.1.16 into a run of this project.

    python -m enn_ppo.convert checkpoints/latest-step000000059392 out/converted
    python -m enn_ppo.convert checkpoints out/converted env.id=my_game.world:World env.kwargs.size=8 optim.lr=1e-3

The first argument is the checkpoint's folder, or that of a run's checkpoints, of which the newest is taken; the second is the run
directory to write. Settings behind them, with the names of `enn_ppo.train`, replace those of the checkpoint.

Exit codes: 0 written, 2 a mistake in the command or in the checkpoint.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m enn_ppo.convert",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", type=Path, help="a checkpoint of enn-trainer, or a folder of them")
    parser.add_argument("destination", type=Path, help="the run directory to write")
    parser.add_argument("settings", nargs="*", metavar="setting=value", help="replaces a setting of the checkpoint")
    options = parser.parse_args(argv)
    try:
        changes = _parse(options.settings)
        from enn_ppo.convert import convert_checkpoint  # torch and the compiler, which `--help` does not need

        result = convert_checkpoint(options.source, options.destination, changes)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"converted {options.source} into {result.checkpoint}")
    for line in result.converted:
        print(f"  {line}")
    print("not converted:")
    for line in result.not_converted:
        print(f"  {line}")
    print(f"evaluate it: python -m enn_ppo.eval checkpoint={result.run_dir}")
    print(f"train on:    python -m enn_ppo.train resume={result.run_dir} total_timesteps=<more than {result.step:,}>")
    return 0


def _parse(settings: Sequence[str]) -> dict[str, Any]:
    changes = {}
    for each in settings:
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise ValueError(f"{each!r} is no setting; give it as name=value, such as optim.lr=1e-3")
        try:
            read = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ValueError(f"{each!r} has a value that is no YAML: {' '.join(str(error).split())}") from None
        changes[name] = _number(read) if isinstance(read, str) else read
    return changes


def _number(text: str) -> float | str:
    """1e-3, which is a text in YAML, as the number that it looks like."""
    try:
        return float(text)
    except ValueError:
        return text


if __name__ == "__main__":
    sys.exit(main())
