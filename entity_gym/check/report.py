"""What a check of an environment found."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from enum import StrEnum

NAME_WIDTH = 16


class Status(StrEnum):
    """How a check came out. Only `FAILED` makes a report fail."""

    OK = "ok"
    WARNING = "warning"
    SKIPPED = "skipped"
    FAILED = "FAILED"


@dataclass(frozen=True)
class Outcome:
    """What one check found: `text` is the reason, or where all is well what has been seen."""

    status: Status
    text: str


@dataclass(frozen=True)
class Result:
    """The outcome of one check.

    Attributes:
        name: of the check.
        status: how it came out.
        text: why, or what has been seen.
        seconds: it took so many.
        cause: the check whose failure stood in its way, so that it was skipped.
    """

    name: str
    status: Status
    text: str
    seconds: float = 0.0
    cause: str | None = None

    def line(self, width: int | None = None) -> str:
        """As a line of the report; with a `width`, folded into as many as it takes."""
        head = f"{self.status:<8} {self.name:<{NAME_WIDTH}} "
        if width is None:
            return (head + self.text).rstrip()
        # Names of files and long values stay in one piece, so that they can be copied.
        folded = textwrap.wrap(
            self.text,
            max(width, 60),
            initial_indent=head,
            subsequent_indent=" " * len(head),
            break_long_words=False,
            break_on_hyphens=False,
        )
        return "\n".join(folded) or head.rstrip()


@dataclass(frozen=True)
class Report:
    """Everything that was found out about an environment; `print(report)` shows it.

    Attributes:
        environment: what was checked.
        results: one for each check, in order.
        step_seconds: what a step of one environment takes, None where it was not measured.
    """

    environment: str
    results: tuple[Result, ...]
    step_seconds: float | None = None

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return not self.failed

    @property
    def failed(self) -> tuple[Result, ...]:
        """The checks that failed."""
        return tuple(result for result in self.results if result.status is Status.FAILED)

    def summary(self) -> str:
        """One line: how many checks came out how, and which failed."""
        counts = {status: [r.name for r in self.results if r.status is status] for status in Status}
        parts = [f"{len(names)} {status}" for status, names in counts.items() if names and status is not Status.FAILED]
        if self.failed:
            parts.append(f"{len(self.failed)} FAILED: {', '.join(counts[Status.FAILED])}")
        seconds = sum(result.seconds for result in self.results)
        return f"{self.environment}: {len(self.results)} checks in {seconds:.0f} s: {', '.join(parts)}"

    def left_out(self, width: int | None = None) -> str | None:
        """One line about the checks that a failure stood in the way of, None if there are none."""
        names = [result.name for result in self.results if result.cause is not None]
        causes = sorted({str(result.text) for result in self.results if result.cause is not None})
        if not names:
            return None
        others = f"{len(names)} other{'s' * (len(names) > 1)}"
        return Result(others, Status.SKIPPED, f"{' and '.join(causes)}: {', '.join(names)}").line(width)

    def __str__(self) -> str:
        lines = [result.line() for result in self.results if result.cause is None]
        left_out = self.left_out()
        return "\n".join([*lines, *([left_out] if left_out else []), self.summary()])


def ok(text: str = "") -> Outcome:
    """All is well."""
    return Outcome(Status.OK, text)


def warning(text: str) -> Outcome:
    """Worth a thought, and not wrong."""
    return Outcome(Status.WARNING, text)


def skipped(why: str) -> Outcome:
    """It was not looked at."""
    return Outcome(Status.SKIPPED, why)


def failed(why: str) -> Outcome:
    """Something is wrong."""
    return Outcome(Status.FAILED, why)
