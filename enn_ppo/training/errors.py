"""Errors that end a run and are not mistakes in its settings. Imports nothing, so that any module can import it."""

from __future__ import annotations


class Interrupted(Exception):
    """The user stopped the run, and it was saved. The message says how to resume it.

    Attributes:
        exit_code: exit code of the process: 130 after Ctrl-C, 143 after SIGTERM.
    """

    def __init__(self, message: str, exit_code: int = 130) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class PartLost(RuntimeError):  # noqa: N818 - says what happened
    """A process that a run needs has died: the learner of a run on Ray, all of its runners, or another rank."""


class ActorDied(RuntimeError):  # noqa: N818 - says what happened
    """The process of a Ray actor has died or cannot be started; the message is Ray's explanation in one line."""


class RankFailed(SystemExit):
    """Another rank has failed or was interrupted, and prints the reason. This rank ends silently."""
