"""Checks in a process of their own: one that hangs in compiled code, or dies, is reported all the same."""

from __future__ import annotations

import multiprocessing
import signal
import sys
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from entity_gym.check.report import Result, Status
from entity_gym.check.subject import Effort

GRACE = 5.0  # seconds beyond its limit in which a call can be interrupted from inside


class Request(NamedTuple):
    """What to check, and how."""

    name: str
    parameters: Mapping[str, Any]
    effort: Effort
    time_limit: float  # seconds that a call may take


class Begun(NamedTuple):
    """A check, or what comes before the first one, has begun; or it goes on: its next call may take so many seconds."""

    check: str
    seconds: float


class Refused(NamedTuple):
    """There is nothing to check."""

    message: str


class Done(NamedTuple):
    """All checks are through."""

    environment: str
    step_seconds: float | None


def supervise(request: Request, on_result: Callable[[Result], None]) -> Done | Refused:
    """Run the checks in another process.

    Args:
        request: what to check.
        on_result: called with every result as it comes. Where the process hangs or dies, there is one that says so, and it
            is the last.
    """
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(there, request), name="entity_gym.check")
    process.start()
    there.close()
    check, patience = "start", request.time_limit
    try:
        while True:
            if not here.poll(patience + GRACE):
                on_result(
                    Result(
                        check, Status.FAILED, f"hangs: a call took more than {patience:g} s, and cannot be interrupted"
                    )
                )
                return Done(request.name, None)
            try:
                message = here.recv()
            except EOFError:
                process.join(GRACE)
                on_result(Result(check, Status.FAILED, f"the process {_ending(process.exitcode)}"))
                return Done(request.name, None)
            if isinstance(message, Begun):
                check, patience = message
            elif isinstance(message, Result):
                on_result(message)
            else:
                assert isinstance(message, Done | Refused)
                return message
    finally:
        process.join(0.5)
        if process.is_alive():
            process.kill()
        process.join()
        here.close()


def _ending(code: int | None) -> str:
    if code is None or code >= 0:
        return f"ended by itself, with exit code {code}: something calls os._exit"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = ": an index outside its array in compiled code can be behind it" if name in ("SIGSEGV", "SIGBUS") else ""
    return f"was ended by {name}{hint}"


def _serve(connection: Connection, request: Request) -> None:
    """The other process."""
    from entity_gym.check.blame import describe_error
    from entity_gym.check.checks import check_environment
    from entity_gym.check.find import find_source
    from entity_gym.check.watch import HangError, Watch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to both; the other one ends this one
    watch = Watch(request.time_limit)
    try:
        connection.send(Begun("import", request.time_limit))
        with watch.watching(), watch.call():
            found = find_source(request.name, request.parameters)
    except ValueError as error:
        connection.send(Refused(str(error)))
        return
    except (Exception, SystemExit, HangError) as error:
        connection.send(Result("import", Status.FAILED, describe_error(error, request.time_limit)))
        connection.send(Done(request.name, None))
        return
    report = check_environment(
        found.source,
        found.parameters,
        effort=request.effort,
        time_limit=request.time_limit,
        on_result=connection.send,
        on_call=lambda check, seconds: connection.send(Begun(check, seconds)),
    )
    connection.send(Done(report.environment, report.step_seconds))
    connection.close()
    sys.stdout.flush()
    sys.stderr.flush()
