"""Results of checks, and the report that lists them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """How a check came out. Only `FAILED` makes a report fail."""

    OK = "ok"
    WARNING = "warning"
    SKIPPED = "skipped"
    FAILED = "FAILED"


class Finding(Exception):  # noqa: N818 - also ends checks that are skipped
    """Raised by a check that does not end with `Status.OK`: what is wrong, rarely meant, or the reason to skip it."""

    def __init__(self, text: str, status: Status = Status.FAILED) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class Result:
    """The result of one check.

    Attributes:
        name: name of the check.
        status: how it came out.
        text: the reason, or for `Status.OK` a summary of the observations.
        seconds: duration.
    """

    name: str
    status: Status
    text: str
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.status:<8} {self.name:<16} {self.text}".rstrip()


@dataclass(frozen=True)
class Report:
    """The results of the checks of an environment; `print(report)` shows them.

    Attributes:
        environment: name of the environment, with its parameters.
        results: one for each check that was tried, in order.
        num_left: checks that were not tried, because the last one of `results` failed.
    """

    environment: str
    results: tuple[Result, ...]
    num_left: int = 0

    @property
    def failed(self) -> tuple[Result, ...]:
        """The results of the checks that failed."""
        return tuple(result for result in self.results if result.status is Status.FAILED)

    @property
    def ok(self) -> bool:
        """True if no check failed."""
        return not self.failed

    def summary(self) -> str:
        """Return one line: the number of checks by status, and the names of those that failed."""
        statuses, seconds = [result.status for result in self.results], sum(result.seconds for result in self.results)
        parts = [f"{statuses.count(each)} {each}" for each in Status if each in statuses]
        if self.failed:
            parts[-1] += f": {', '.join(result.name for result in self.failed)}"
        if self.num_left:
            parts.append(f"{self.num_left} not tried, because {self.results[-1].name!r} failed")
        return f"{self.environment}: {len(statuses)} check{'s' * (len(statuses) > 1)} in {seconds:.1f} s: {', '.join(parts)}"

    def __str__(self) -> str:
        return "\n".join([*map(str, self.results), self.summary()])
