"""What ends a run on a cluster. Knows nothing of Ray, so that the command can tell of it anywhere."""

from __future__ import annotations


class PartLost(RuntimeError):  # noqa: N818 - says what happened
    """A part of the run that it cannot do without is gone: its learner, or all of its runners."""


class TooManyFailures(ValueError):  # noqa: N818 - says what happened
    """More environments have raised than `distributed.max_env_failures` allows."""
