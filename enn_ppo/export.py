"""Write a checkpoint's policy into one file, which is all that playing, evaluating and serving need.

    python -m enn_ppo.export outputs/my_run snake.safetensors
    python -m enn_ppo.export outputs/my_run snake.onnx --verify 5

Exit codes: 0 written; 1 the model gives other numbers than the policy, or the environment raised an exception; 2 a mistake in the
command.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import enn_ppo
from enn_ppo.checkpoints import load_checkpoint, save_policy
from enn_ppo.checkpoints.policy import load_trusted
from enn_ppo.training.files import replace_file
from entity_gym.output import accept_all_characters
from entity_gym.play.command import broken, usage_error


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    accept_all_characters()
    options = _parser().parse_intermixed_args(argv)
    checkpoint, file = options.checkpoint.removeprefix("checkpoint="), Path(options.file)
    try:
        if file.suffix == ".onnx":
            return _write_model(checkpoint, file, options.verify, bool(options.trust))
        if file.suffix != ".safetensors":
            raise ValueError(
                f"{file} cannot be written: its name must end in .safetensors, for a policy file, or .onnx, for a model"
            )
        if options.verify is not None:
            raise ValueError(
                f"--verify is for models; {file} is a policy file, whose weights are those of the checkpoint"
            )
        save_policy(checkpoint, file)
    except (ValueError, OSError) as error:
        return usage_error(error)
    except Exception as error:
        return broken(error)
    print(f"wrote {file}")
    return 0


def _write_model(path: str, file: Path, episodes: int | None, trusted: bool) -> int:
    """Write the ONNX model of a checkpoint, and compare it with the checkpoint in so many episodes; return the exit code."""
    checkpoint = load_checkpoint(Path(path)) if episodes is None else load_trusted(path, trusted)
    if episodes is not None and episodes < 1:
        raise ValueError(f"--verify is {episodes}; it must be at least 1")
    try:
        from rogue_net.onnx import policy_model

        if episodes is not None:
            from rogue_net.onnx.playing import Player
    except ImportError as error:
        raise ValueError(
            f'{file} cannot be written: a model needs {error.name}: pip install "enn-ppo[onnx]"'
        ) from error
    model = policy_model(checkpoint.path, enn_ppo.__version__)
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_file(file, model.SerializeToString())
    print(f"wrote {file}")
    if episodes is None:
        return 0
    from enn_ppo.eval.verify import difference

    found = difference(checkpoint, Player(model), episodes)
    print(found)
    return int(bool(found))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m enn_ppo.export", description="Write a policy into one file.")
    parser.add_argument("checkpoint", help="a run directory, or one of its checkpoints")
    parser.add_argument("file", help="the file to write, x.safetensors or x.onnx; an existing one is replaced")
    trust = "with --verify, run the environment that the checkpoint names, although it was not written here"
    parser.add_argument("trust", nargs="?", choices=["trust=true"], metavar="trust=true", help=trust)
    verify = (
        "play so many episodes with x.onnx, by default 3, and print how far its numbers are from those of the policy"
    )
    parser.add_argument("--verify", nargs="?", type=int, const=3, metavar="EPISODES", help=verify)
    return parser


if __name__ == "__main__":
    sys.exit(main())
