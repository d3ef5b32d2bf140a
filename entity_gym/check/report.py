"""Results of checks, and the report that lists them."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from enum import StrEnum
from typing import NoReturn


class Status(StrEnum):
    """How a check came out. Only `FAILED` makes a report fail."""

    OK = "ok"
    WARNING = "warning"
    SKIPPED = "skipped"
    FAILED = "FAILED"


class Finding(Exception):  # noqa: N818 - also ends checks that are skipped
    """Raised by a check that does not end with `Status.OK`."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


def fail(text: str) -> NoReturn:
    """End the check: the environment is wrong."""
    raise Finding(Status.FAILED, text)


def warn(text: str) -> NoReturn:
    """End the check: the environment does something that is rarely meant."""
    raise Finding(Status.WARNING, text)


def skip(text: str) -> NoReturn:
    """End the check: it does not apply, or was not asked for."""
    raise Finding(Status.SKIPPED, text)


@dataclass(frozen=True)
class Result:
    """The result of one check.

    Attributes:
        name: name of the check.
        status: how it came out.
        text: the reason, or for `Status.OK` a summary of the observations.
        seconds: duration.
        cause: for a skipped check, the name of the failed check that it depends on.
    """

    name: str
    status: Status
    text: str
    seconds: float = 0.0
    cause: str | None = None

    def line(self, width: int | None = None) -> str:
        """Return the line of the report; with a `width`, wrapped to that many columns."""
        head = f"{self.status:<8} {self.name:<16} "
        if width is None:
            return (head + self.text).rstrip()
        # File names and long values stay in one piece, so that they can be copied.
        wrapped = textwrap.wrap(
            self.text,
            max(width, 60),
            initial_indent=head,
            subsequent_indent=" " * len(head),
            break_long_words=False,
            break_on_hyphens=False,
        )
        return "\n".join(wrapped) or head.rstrip()


@dataclass(frozen=True)
class Report:
    """The results of all checks of an environment; `print(report)` shows them.

    Attributes:
        environment: name of the environment, with its parameters.
        results: one for each check, in order.
        step_seconds: duration of one step of one environment; None if it was not measured.
    """

    environment: str
    results: tuple[Result, ...]
    step_seconds: float | None = None

    @property
    def ok(self) -> bool:
        """True if no check failed."""
        return not self.failed

    @property
    def failed(self) -> tuple[Result, ...]:
        """The results of the checks that failed."""
        return tuple(result for result in self.results if result.status is Status.FAILED)

    def summary(self) -> str:
        """Return one line: the number of checks by status, and the names of those that failed."""
        counts = {status: [r.name for r in self.results if r.status is status] for status in Status}
        parts = [f"{len(names)} {status}" for status, names in counts.items() if names and status is not Status.FAILED]
        if self.failed:
            parts.append(f"{len(self.failed)} FAILED: {', '.join(counts[Status.FAILED])}")
        seconds = sum(result.seconds for result in self.results)
        count = f"{len(self.results)} check{'s' * (len(self.results) != 1)}"
        return f"{self.environment}: {count} in {seconds:.1f} s: {', '.join(parts)}"

    def footer(self, width: int | None = None) -> str:
        """Return the last lines of the report: the checks that a failure prevented, if there are any, and the summary."""
        prevented = [result for result in self.results if result.cause is not None]
        if not prevented:
            return self.summary()
        causes = " and ".join(sorted({result.text for result in prevented}))
        names = ", ".join(result.name for result in prevented)
        title = f"{len(prevented)} other{'s' * (len(prevented) > 1)}"
        return Result(title, Status.SKIPPED, f"{causes}: {names}").line(width) + "\n" + self.summary()

    def __str__(self) -> str:
        return "\n".join([*(result.line() for result in self.results if result.cause is None), self.footer()])
