"""Play an environment yourself, in the terminal or in the browser.

    python -m entity_gym.play MineSweeper --set width=8 --seed 1
    python -m entity_gym.play my_pkg.my_env:MyEnv
    python -m entity_gym.play MineSweeper --browser

To watch a trained policy play: python -m enn_ppo.play RUN. For policies of your own: `entity_gym.play.loop.play` takes any.

Exit codes: 0 you quit, 1 the environment raised an exception, 2 there is no such environment or option, 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Sequence
from typing import Any

from entity_gym.check.loading import Loaded, describe_error, load_environment, make_python, parse_settings
from entity_gym.errors import shortened
from entity_gym.output import accept_all_characters
from entity_gym.play.browser import browse
from entity_gym.play.loop import INTERRUPTED, Policy, play
from entity_gym.play.screen import Style
from entity_gym.play.session import Session

LARGEST_SEED = 1_000_000  # of random seeds: short enough to be typed again


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command, and return the exit code."""
    accept_all_characters()
    options = _parser().parse_args(argv)
    if options.checkpoint is not None:
        return usage_error(f"to watch a checkpoint play, run: python -m enn_ppo.play {options.checkpoint}")
    try:
        found = load_environment(options.env, parse_settings(options.set))
    except ValueError as error:
        return usage_error(error)
    except Exception as error:
        return broken(error)
    return run(found, options.seed, style_of(options), in_browser=options.browser)


def run(
    found: Loaded,
    seed: int | None,
    style: Style,
    policy: Policy | None = None,
    auto: float | None = None,
    in_browser: bool = False,
) -> int:
    """Play, and return the exit code. Exceptions of the environment are printed in one line."""
    if seed is None:
        seed = random.SystemRandom().randrange(LARGEST_SEED)
    create: Callable[[], Any] = lambda: make_python(found.source, found.parameters)  # noqa: E731
    try:
        name = getattr(found.source, "__name__", type(found.source).__name__)
        session = Session(create, seed, name)
        if in_browser:
            print(f"seed {seed}")
            return browse(session, found.parameters, policy)
        print(f"seed {seed}; ? for help, q to quit")
        return play(session, style, policy, auto=auto)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        return broken(error)


def broken(error: Exception) -> int:
    """Print an exception of the environment's code with its place, and return the exit code."""
    print(f"error: {shortened(describe_error(error))}", file=sys.stderr)
    return 1


def usage_error(message: object) -> int:
    """Print a mistake in the command, and return the exit code."""
    print(f"error: {shortened(str(message))}", file=sys.stderr)
    return 2


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that play and watch share."""
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a parameter; may be repeated")
    parser.add_argument("--seed", type=_seed, help="seed of the environment; random if it is left out")
    parser.add_argument(
        "--browser", action="store_true", help="play in the browser, on a page that this command serves"
    )
    parser.add_argument(
        "--color", choices=("auto", "always", "never"), default="auto", help="use colours and draw images (auto)"
    )


def style_of(options: argparse.Namespace) -> Style:
    """Return the style that these options ask for."""
    return Style.of_terminal({"auto": None, "always": True, "never": False}[options.color])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m entity_gym.play", description="Play an environment yourself.")
    parser.add_argument("env", nargs="?", default="MineSweeper", help="a name, or my_pkg.my_env:MyEnv (MineSweeper)")
    add_options(parser)
    parser.add_argument("--checkpoint", metavar="RUN", help="tells how to watch a trained policy instead")
    return parser


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 0")
    return int(text)
