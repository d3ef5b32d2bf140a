"""Errors that end a run and are not mistakes in its settings. Imports nothing, so that any module can know them."""

from __future__ import annotations


class Interrupted(Exception):
    """The user asked the run to stop, and it stopped in order. The message says where it can be resumed from.

    Attributes:
        exit_code: of the process: 130 after Ctrl-C, 143 after SIGTERM.
    """

    def __init__(self, message: str, exit_code: int = 130) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class DeviceMemoryFull(RuntimeError):  # noqa: N818 - says what happened
    """The device has not enough memory; the message says which settings take less."""


class PartLost(RuntimeError):  # noqa: N818 - says what happened
    """A part of a run on Ray that it cannot do without is gone: its learner, or all of its runners."""


class ActorDied(RuntimeError):  # noqa: N818 - says what happened
    """The process of an actor of Ray is gone, or cannot be started; the message is Ray's explanation in one line."""


class TooManyFailures(ValueError):  # noqa: N818 - says what happened
    """More environments have raised than `distributed.max_env_failures` allows."""


class RankFailed(SystemExit):
    """Another rank tells why all end: it has failed, or the user has asked for it. This one ends silently."""


class RankDied(RuntimeError):  # noqa: N818 - says what happened
    """Another rank ended without saying why."""
