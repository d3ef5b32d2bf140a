"""A test kit for your own environment, Python or compiled: what is wrong with it, in words.

    python -m entity_gym.check my_pkg.my_env:MyEnv --set size=8
    python -m entity_gym.check MineSweeper --quick

Exit codes: 0 nothing failed, 1 something did, 2 there is no such environment or option, 130 interrupted.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from entity_gym.check.basics import check_constructor, check_observations, check_reset, check_spaces
from entity_gym.check.behaviour import check_closing, check_own_arrays, check_rendering, check_saving
from entity_gym.check.blame import describe_error
from entity_gym.check.chance import (
    check_fresh_start,
    check_global_random,
    check_independence,
    check_same_seed,
    check_two_seeds,
)
from entity_gym.check.episodes import check_end
from entity_gym.check.executors import (
    check_compiled,
    check_observe,
    check_processes,
    check_speed,
    check_threads,
)
from entity_gym.check.find import parse_settings, refuse_batches
from entity_gym.check.refusals import check_refusals
from entity_gym.check.report import Outcome, Report, Result, Status, failed, skipped
from entity_gym.check.subject import QUICK, SEED, Effort, Stopwatch, Subject, global_random
from entity_gym.check.supervise import Refused, Request, supervise
from entity_gym.check.watch import HangError, Watch
from entity_gym.environment import Environment
from entity_gym.pools.pool import EnvSource, is_compiled

__all__ = ["Outcome", "Report", "Result", "Status", "check_environment", "main"]


class Check(NamedTuple):
    """A check by name, and the checks that must not have failed before it."""

    name: str
    run: Callable[[Subject], Outcome]
    needs: tuple[str, ...] = ()


_PLAYABLE = ("observations",)
_SEEDED = ("observations", "same seed", "global random")

CHECKS = (
    Check("constructor", check_constructor),
    Check("spaces", check_spaces, ("constructor",)),
    Check("reset", check_reset, ("spaces",)),
    Check("observations", check_observations, ("reset",)),
    Check("end of episode", check_end, _PLAYABLE),
    Check("same seed", check_same_seed, _PLAYABLE),
    Check("global random", check_global_random, ("observations", "same seed")),
    Check("other seed", check_two_seeds, _SEEDED),
    Check("fresh start", check_fresh_start, _SEEDED),
    Check("independence", check_independence, _SEEDED),
    Check("own arrays", check_own_arrays, _PLAYABLE),
    Check("saving", check_saving, _SEEDED),
    Check("rendering", check_rendering, _SEEDED),
    Check("wrong actions", check_refusals, _SEEDED),
    Check("observe", check_observe, _PLAYABLE),
    Check("compiled", check_compiled, (*_SEEDED, "observe")),
    Check("threads", check_threads, (*_SEEDED, "independence", "compiled")),
    Check("processes", check_processes, (*_SEEDED, "independence", "compiled")),
    Check("closing", check_closing, _PLAYABLE),
    Check("speed", check_speed, (*_PLAYABLE, "compiled")),
)


def check_environment(
    env: EnvSource,
    parameters: Mapping[str, Any] | None = None,
    *,
    effort: Effort = Effort(),  # noqa: B008 - frozen
    time_limit: float = 60.0,
    on_result: Callable[[Result], None] = lambda result: None,
    on_call: Callable[[str, float], None] | None = None,
) -> Report:
    """Try everything that can be wrong with an environment.

    Args:
        env: its class, a function that makes one, or a compiled environment (class, or with parameters).
        parameters: to make it with.
        effort: how much to try; `QUICK` is little.
        time_limit: seconds that one call into it may take before it counts as hanging. Only where Python code can be
            interrupted, which is in the main thread, on Linux and macOS; compiled code cannot be.
        on_result: called with every result as it comes.
        on_call: called about once a second with the check that is under way, and the seconds that its next call may take.

    Returns:
        The report; what the environment raises is in it.

    Raises:
        ValueError: if `env` is nothing that makes an environment.
    """
    if isinstance(env, Environment) or not callable(env) and not is_compiled(env):
        raise ValueError(f"check_environment was given {env!r:.200}; give what makes one, such as its class")
    refuse_batches(env, getattr(env, "__name__", ""))
    run = _Run(env, parameters or {}, effort, time_limit, on_call)
    with run.watch.watching(), global_random(SEED):  # so that they go on as before
        for check in CHECKS:
            run.do(check)
            on_result(run.results[-1])
    return Report(run.subject.name, tuple(run.results), run.subject.step_seconds)


class _Run:
    """The checks so far."""

    def __init__(
        self,
        env: EnvSource,
        parameters: Mapping[str, Any],
        effort: Effort,
        time_limit: float,
        on_call: Callable[[str, float], None] | None,
    ) -> None:
        self.watch = Watch(time_limit, None if on_call is None else lambda seconds: on_call(self._under_way, seconds))
        self.subject = Subject(env, parameters, effort, self.watch)
        self.results: list[Result] = []
        self._under_way = ""
        self._causes: dict[str, str] = {}  # a check that failed, or was left out for that -> the one that failed first
        self._hangs: str | None = None

    def do(self, check: Check) -> None:
        """Run one more, unless an earlier one stands in its way."""
        self._under_way, clock = check.name, Stopwatch()
        self.watch.begin()
        cause = next((self._causes[name] for name in check.needs if name in self._causes), self._hangs)
        if cause is None:
            outcome = self._outcome(check)
            if outcome.status is Status.FAILED:
                self._causes[check.name] = check.name
        else:
            self._causes[check.name] = cause
            outcome = skipped(f"because {cause!r} {'hangs' if cause == self._hangs else 'failed'}")
        self.results.append(Result(check.name, outcome.status, outcome.text, clock.seconds, cause))

    def _outcome(self, check: Check) -> Outcome:
        try:
            try:
                return check.run(self.subject)
            finally:
                self.subject.close()
        except HangError as error:
            self._hangs = check.name
            return failed(describe_error(error, self.watch.seconds))
        except (Exception, SystemExit) as error:
            return failed(describe_error(error))


def main(argv: Sequence[str] | None = None) -> int:
    """Check what the command line names, and return the exit code."""
    options = _parser().parse_args(argv)
    effort = QUICK if options.quick else Effort()
    if options.steps is not None:
        effort = replace(effort, steps=options.steps, seconds=None)
    try:
        request = Request(options.env, parse_settings(options.set), effort, options.time_limit)
    except ValueError as error:
        return _usage_error(error)
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    results: list[Result] = []

    def show(result: Result) -> None:
        results.append(result)
        if result.cause is None:
            print(result.line(width), flush=True)

    try:
        done = supervise(request, show)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    if isinstance(done, Refused):
        return _usage_error(done.message)
    report = Report(done.environment, tuple(results), done.step_seconds)
    left_out = report.left_out(width)
    print(*([left_out] if left_out else []), report.summary(), sep="\n", flush=True)
    return 0 if report.ok else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m entity_gym.check", description="Find out what is wrong with an environment."
    )
    parser.add_argument("env", help="a name such as MineSweeper, or my_pkg.my_env:MyEnv")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a parameter; may be repeated")
    parser.add_argument(
        "--steps", type=_at_least_one, help="random steps of each check; otherwise 1,000, or fewer if slow"
    )
    parser.add_argument("--quick", action="store_true", help="few steps, and no worker processes")
    parser.add_argument(
        "--time-limit", type=_at_least_one, default=60, metavar="SECONDS", help="a call that takes longer hangs (60)"
    )
    return parser


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)


def _usage_error(message: object) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 2
