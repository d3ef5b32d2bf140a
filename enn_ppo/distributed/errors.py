"""What ends a run on a cluster. Knows nothing of Ray, so that the command can tell of it anywhere."""

from __future__ import annotations


class PartLost(RuntimeError):  # noqa: N818 - says what happened
    """A part of the run that it cannot do without is gone: its learner, or all of its runners."""


class ActorDied(RuntimeError):  # noqa: N818 - says what happened
    """The process of an actor is gone, or cannot be started; the message says what Ray knows of it, in a line."""


class TooManyFailures(ValueError):  # noqa: N818 - says what happened
    """More environments have raised than `distributed.max_env_failures` allows."""
