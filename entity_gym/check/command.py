"""Find out what is wrong with an environment, Python or compiled.

    python -m entity_gym.check my_pkg.my_env:MyEnv --set size=8
    python -m entity_gym.check MineSweeper --steps 200
    python -m entity_gym.check gymnasium:highway_env:highway-v0 --view highway.yaml

A check that hangs, or crashes the process, ends it with a traceback.

Exit codes: 0 no check failed, 1 a check failed or hung, 2 there is no such environment or option, 130 interrupted.
"""

from __future__ import annotations

import argparse
import faulthandler
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from entity_gym.check.checks import CHECKS, SEED, Report, Result, Status, check_environment
from entity_gym.check.loading import describe_error, parse_settings
from entity_gym.environment import Environment, Observation
from entity_gym.errors import shortened
from entity_gym.output import accept_all_characters
from entity_gym.registry import LIBRARIES, bind
from entity_gym.spaces import describe

MOST_ENTITIES = 12  # of a type that are printed


def main(argv: Sequence[str] | None = None) -> int:
    """Print the result of each check, and return the exit code."""
    accept_all_characters()
    options = _parser().parse_args(argv)
    faulthandler.enable(sys.__stderr__)  # type: ignore[arg-type]
    try:
        return _check(options)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except ValueError as error:
        print(f"error: {shortened(str(error))}", file=sys.stderr)
        return 2
    except (Exception, SystemExit) as error:
        print(Report(options.env, (Result("import", Status.FAILED, describe_error(error)),), len(CHECKS)))
        return 1
    finally:
        faulthandler.cancel_dump_traceback_later()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m entity_gym.check", description="Find out what is wrong with an environment."
    )
    parser.add_argument("env", help="a name such as MineSweeper, my_pkg.my_env:MyEnv, or gymnasium:CartPole-v1")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a parameter; may be repeated")
    parser.add_argument(
        "--steps", type=_at_least_one, help="random steps to record; otherwise 1,000, or fewer if they are slow"
    )
    parser.add_argument(
        "--time-limit", type=_at_least_one, default=120, metavar="SECONDS", help="a check that takes longer hangs (120)"
    )
    parser.add_argument(
        "--view",
        help="the view with this name, or in this YAML file, of gymnasium:..., pettingzoo:... or dm_env:...; prints what it "
        "makes of an observation, and checks the environment with it",
    )
    return parser


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)


def _check(options: argparse.Namespace) -> int:
    """Do what the options say, and return the exit code."""

    def begin(result: Result | None = None) -> None:
        """Print the last result, and end the process if the next check hangs; a hanging world may hold the GIL."""
        if result is not None:
            print(result, flush=True)
        faulthandler.dump_traceback_later(options.time_limit, exit=True, file=sys.__stderr__)  # type: ignore[arg-type]

    begin()
    parameters = parse_settings(options.set)
    if options.view is not None:
        if options.env.partition(":")[0] not in LIBRARIES:
            raise ValueError(
                f"--view is for environments of {', '.join(LIBRARIES)}, such as gymnasium:CartPole-v1; {options.env} has "
                "entities already"
            )
        parameters["view"] = options.view
    source = bind(options.env, parameters)
    if options.view:
        env = source.as_environment()
        env.reseed(SEED, 0)
        print(*describe_observation(env, env.reset()), sep="\n")
        print(f"\nThe checks of {options.env} with this view:", flush=True)
        env.close()
    report = check_environment(source, steps=options.steps, on_result=begin)
    print(report.summary())
    return 0 if report.ok else 1


def describe_observation(env: Environment, obs: Observation) -> Iterator[str]:
    """Yield lines with the entities and their features, the global features, and who takes which action."""
    space = env.obs_space()
    tables: list[Any] = [
        (name, each.features, each.kinds, obs.features.get(name, ())) for name, each in space.entities.items()
    ]
    if space.global_features:
        tables.append(("global features", space.global_features, space.global_kinds, [obs.global_features]))
    for name, features, kinds, rows in tables:
        yield f"{name} ({len(rows)}): {describe(features, kinds) or 'no features'}"
        values = np.asarray(rows, np.float32)[:MOST_ENTITIES].tolist()
        lines = [list(features), *([f"{value:.4g}" for value in row] for row in values)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        for line in lines if features and values else ():
            yield "  " + "  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True))
        if len(rows) > MOST_ENTITIES:
            yield f"  and {len(rows) - MOST_ENTITIES} more"
    left_out = getattr(getattr(env, "slots", env), "left_out", ())
    if left_out:
        yield f"left out ({len(left_out)}): {', '.join(left_out[:20])}" + (", ..." if len(left_out) > 20 else "")
    for action, kind in env.action_space().items():
        offer = vars(obs.actions[action]) if action in obs.actions else {"actors": "nobody"}
        parts = [f"{name}={' '.join(repr(part).split())[:200]}" for name, part in offer.items() if part is not None]
        yield f"action {action}: {kind}; {', '.join(parts)}"
