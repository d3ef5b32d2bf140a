"""Find out what is wrong with an environment, Python or compiled.

    python -m entity_gym.check my_pkg.my_env:MyEnv --set size=8
    python -m entity_gym.check MineSweeper --quick
    python -m entity_gym.check MineSweeper --source
    python -m entity_gym.check gymnasium:highway_env:highway-v0 --view highway.yaml

Exit codes: 0 no check failed, 1 a check failed, 2 there is no such environment or option, 130 interrupted.
"""

from __future__ import annotations

import argparse
import faulthandler
import multiprocessing
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from entity_gym.check.checks import check_environment, describe_failure, describe_hang
from entity_gym.check.loading import (
    describe_error,
    load_environment,
    make_python,
    parse_settings,
    traceback_place,
)
from entity_gym.check.observation import describe_observation
from entity_gym.check.report import Report, Result, Status
from entity_gym.check.subject import FULL, QUICK, SEED, Effort, HangError, Watch
from entity_gym.errors import shortened
from entity_gym.output import accept_all_characters
from entity_gym.pools.pool import is_compiled
from entity_gym.registry import with_parameters

PROGRESS_EVERY = 10.0  # seconds between progress lines, where they cannot replace each other


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command, and return the exit code."""
    accept_all_characters()
    options = _parser().parse_args(argv)
    effort = QUICK if options.quick else FULL if options.full else Effort()
    if options.steps is not None:
        effort = replace(effort, steps=options.steps, seconds=None)
    try:
        parameters = parse_settings(options.set)
        if options.source:
            return _print_source(options.env, parameters)
        if options.view is not None:
            return _print_view(options.env, parameters, options.view)
        return _check_in_process(options.env, parameters, effort, options.time_limit)
    except ValueError as error:
        print(f"error: {shortened(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m entity_gym.check", description="Find out what is wrong with an environment."
    )
    parser.add_argument("env", help="a name such as MineSweeper, my_pkg.my_env:MyEnv, or gymnasium:CartPole-v1")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a parameter; may be repeated")
    parser.add_argument(
        "--steps", type=_at_least_one, help="random steps of each check; otherwise 1,000, or fewer if they are slow"
    )
    parser.add_argument(
        "--time-limit", type=_at_least_one, default=60, metavar="SECONDS", help="a call that takes longer hangs (60)"
    )
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--quick", action="store_true", help="few steps")
    modes.add_argument(
        "--full", action="store_true", help="also worker processes, three threads, and bounds checks in compiled code"
    )
    modes.add_argument(
        "--source", action="store_true", help="print the code generated for a compiled environment, and check nothing"
    )
    modes.add_argument(
        "--view",
        help="print what the view with this name, or in this YAML file, makes of an observation of gymnasium:..., "
        "pettingzoo:... or dm_env:..., and check nothing else",
    )
    return parser


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)


def _print_source(name: str, parameters: dict[str, Any]) -> int:
    try:
        source, parameters = load_environment(name, parameters)
        if not is_compiled(source):
            raise ValueError(
                f"{name} is a Python environment: no code is generated for it, so --source has nothing to show"
            )
        from entity_gym.compiled.generate import source_of

        print(source_of(with_parameters(source, parameters)))
    except ValueError:
        raise
    except Exception as error:
        print(f"error: {describe_error(error)}", file=sys.stderr)
        return 1
    return 0


def _print_view(name: str, parameters: dict[str, Any], view: str) -> int:
    try:
        source, parameters = load_environment(name, parameters, view)
        env = make_python(source, parameters)
        try:
            env.reseed(SEED, 0)
            print(describe_observation(env, env.reset()))
        finally:
            env.close()
    except ValueError:
        raise
    except Exception as error:
        print(f"error: {describe_error(error)}", file=sys.stderr)
        return 1
    return 0


# --- The checks run in a process of their own, so that one that hangs in compiled code, or dies, is reported all the same


def _check_in_process(name: str, parameters: dict[str, Any], effort: Effort, time_limit: float) -> int:
    """Run the checks in another process, and print results as they come. Returns the exit code.

    Raises:
        ValueError: there is no such environment or parameter.
    """
    with tempfile.TemporaryDirectory(prefix="entity_gym_check_") as folder:
        dump = Path(folder) / "traceback.txt"
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe(duplex=False)
        arguments = (there, str(dump), name, parameters, effort, time_limit)
        process = context.Process(target=_serve, args=arguments, name="entity_gym.check")
        process.start()
        there.close()
        screen = _Screen(name)
        try:
            while True:
                while not here.poll(1.0):
                    screen.show_progress()
                try:
                    message = here.recv()
                except EOFError:
                    process.join()
                    screen.show(
                        Result(screen.doing, Status.FAILED, _describe_death(process.exitcode, dump, time_limit))
                    )
                    return screen.end(Report(name, tuple(screen.results)))
                if isinstance(message, str):
                    screen.begin(message)
                elif isinstance(message, Result):
                    screen.show(message)
                elif isinstance(message, Report):
                    return screen.end(message)
                else:
                    raise message
        finally:
            process.join(0.5)
            if process.is_alive():
                process.kill()
            process.join()
            here.close()


class _Screen:
    """Prints results, and the duration of whatever is slow."""

    def __init__(self, name: str) -> None:
        self.doing = "start"  # name of the check that is running
        self.results: list[Result] = []
        self._name = name
        self._slow: str | None = None
        self._since = self._told = time.monotonic()
        self._width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None

    def begin(self, what: str) -> None:
        """A check, or something slow within a check, begins; the latter ends with "..."."""
        self._clear()
        self._since = self._told = time.monotonic()
        self._slow = what.removesuffix("...") if what.endswith("...") else None
        if self._slow is None:
            self.doing = what

    def show(self, result: Result) -> None:
        """Print a result, unless an earlier failure is the cause."""
        self._clear()
        self.results.append(result)
        if result.cause is None:
            print(result.line(self._width), flush=True)

    def show_progress(self) -> None:
        """Called every second: print the duration of what is running."""
        now = time.monotonic()
        text = f"{self._slow or self.doing} {self._name}, {now - self._since:.0f} s"
        if sys.stderr.isatty():
            print(f"\r{text}\x1b[K", end="", file=sys.stderr, flush=True)
        elif self._slow is not None and now - self._told >= PROGRESS_EVERY:
            self._told = now
            print(text, file=sys.stderr, flush=True)

    def end(self, report: Report) -> int:
        """Print the end of the report, and return the exit code."""
        print(report.footer(self._width), flush=True)
        return 0 if report.ok else 1

    def _clear(self) -> None:
        if sys.stderr.isatty():
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _describe_death(code: int | None, dump: Path, time_limit: float) -> str:
    """Describe the end of a process that has not sent its report."""
    text = dump.read_text("utf-8", errors="replace") if dump.exists() else ""
    place = traceback_place(text, latest_first=True)
    if text.startswith("Timeout"):
        return describe_hang(time_limit, place) + ", and cannot be interrupted"
    if code is None or code >= 0:
        return f"the process ended by itself, with exit code {code}: something calls os._exit"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    is_memory = name in ("SIGSEGV", "SIGBUS")
    hint = ": an index outside of its array in compiled code can be the cause" if is_memory else ""
    return f"the process was ended by {name}" + (f", in {place}" if place else "") + hint


def _serve(
    connection: Connection, dump_path: str, name: str, parameters: dict[str, Any], effort: Effort, time_limit: float
) -> None:
    """Run the checks, and send names of checks, results, and the report, or a ValueError."""
    accept_all_characters()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to both processes; the other one ends this one
    with open(dump_path, "wb") as dump:
        faulthandler.enable(dump)
        watch = Watch(time_limit, dump, connection.send)
        connection.send("import")
        try:
            with watch.watching(), watch.call():
                source, parameters = load_environment(name, parameters)
            report = check_environment(source, parameters, effort=effort, watch=watch, on_result=connection.send)
        except ValueError as error:
            connection.send(ValueError(str(error)))  # subclasses may not be picklable
            return
        except (Exception, SystemExit, HangError) as error:
            failed = Result("import", Status.FAILED, describe_failure(error, time_limit))
            connection.send(failed)
            report = Report(name, (failed,))
        finally:
            faulthandler.disable()
        connection.send(report)
        connection.close()
    sys.stdout.flush()
    sys.stderr.flush()
