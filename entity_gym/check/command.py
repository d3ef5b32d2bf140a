"""Find out what is wrong with an environment, Python or compiled.

    python -m entity_gym.check my_pkg.my_env:MyEnv --set size=8
    python -m entity_gym.check MineSweeper --steps 200
    python -m entity_gym.check MineSweeper --source
    python -m entity_gym.check gymnasium:highway_env:highway-v0 --view highway.yaml

Exit codes: 0 no check failed, 1 a check failed, 2 there is no such environment or option, 130 interrupted.
"""

from __future__ import annotations

import argparse
import faulthandler
import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from entity_gym.check.checks import CHECKS, check_environment
from entity_gym.check.loading import describe_error, load_environment, parse_settings, traceback_place
from entity_gym.check.observation import describe_observation
from entity_gym.check.report import Report, Result, Status
from entity_gym.check.subject import SEED
from entity_gym.errors import shortened
from entity_gym.output import accept_all_characters

FINISHED = 100  # added to the exit code of the process that checks, unless something else ended it
RUNNING, TRACEBACK = "running.txt", "traceback.txt"  # files: name of the running check; where the process has crashed


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command in a process of its own, so that a check that hangs, or dies, is reported. Return the exit code."""
    accept_all_characters()
    options = _parser().parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="entity_gym_check_") as folder:
        running, traceback = Path(folder) / RUNNING, Path(folder) / TRACEBACK
        running.write_text("import", "utf-8")
        traceback.touch()
        context = multiprocessing.get_context("spawn")
        process = context.Process(target=_run, args=(Path(folder), options), name="entity_gym.check")
        try:
            process.start()
            process.join()
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            return 130
        finally:
            process.kill()
            process.join()
        code = process.exitcode or 0
        if code >= FINISHED:
            return code - FINISHED
        death = _describe_death(code, traceback.read_text("utf-8", "replace"), options.time_limit)
        print(Result(running.read_text("utf-8"), Status.FAILED, death))
    return 1


def _describe_death(code: int, traceback: str, time_limit: float) -> str:
    """Describe the end of a process that has not finished its checks."""
    place = traceback_place(traceback, latest_first=True)
    within = f", in {place}" if place else ""
    if traceback.startswith("Timeout"):
        return f"hangs: the check took more than {time_limit:g} s{within}; --time-limit allows more"
    if code >= 0:
        return f"the process ended by itself, with exit code {code}: something calls os._exit"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = ": an index outside of its array in compiled code can be the cause" if name in ("SIGSEGV", "SIGBUS") else ""
    return f"the process was ended by {name}{within}{hint}"


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
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument(
        "--source", action="store_true", help="print the code generated for a compiled environment, and check nothing"
    )
    modes.add_argument(
        "--view",
        help="the view with this name, or in this YAML file, of gymnasium:..., pettingzoo:... or dm_env:...; prints what it "
        "makes of an observation, and checks the environment with it",
    )
    return parser


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)


def _run(folder: Path, options: argparse.Namespace) -> None:
    """Print the result of each check, and exit."""
    accept_all_characters()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to both processes; the other one ends this one
    names = iter(["import", *(check.name for check in CHECKS), "exit"])
    with open(folder / TRACEBACK, "wb") as traceback:
        faulthandler.enable(traceback)

        def begin() -> None:
            (folder / RUNNING).write_text(next(names), "utf-8")
            faulthandler.dump_traceback_later(options.time_limit, exit=True, file=traceback)

        begin()
        try:
            code = _check(options, begin)
        except ValueError as error:
            print(f"error: {shortened(str(error))}", file=sys.stderr)
            code = 2
        except (Exception, SystemExit) as error:
            print(Report(options.env, (Result("import", Status.FAILED, describe_error(error)),), len(CHECKS)))
            code = 1
        faulthandler.cancel_dump_traceback_later()
        faulthandler.disable()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(FINISHED + code)  # without waiting for threads that the environment has started


def _check(options: argparse.Namespace, begin: Callable[[], None]) -> int:
    """Do what the options say; `begin` is called when a check begins. Returns the exit code."""
    source = load_environment(options.env, parse_settings(options.set), options.view)
    if options.source:
        from entity_gym.compiled import CompiledEnvironment
        from entity_gym.compiled.generate import source_of

        if not isinstance(source, CompiledEnvironment):
            raise ValueError(
                f"{options.env} is a Python environment: no code is generated for it that --source could show"
            )
        print(source_of(source))
        return 0
    if options.view:
        env = source.as_environment()
        env.reseed(SEED, 0)
        print(
            *describe_observation(env, env.reset()),
            "",
            f"The checks of {options.env} with this view:",
            sep="\n",
            flush=True,
        )
        env.close()
    begin()

    def end(result: Result) -> None:
        print(result, flush=True)
        begin()

    report = check_environment(source, steps=options.steps, on_result=end)
    print(report.summary())
    return 0 if report.ok else 1
