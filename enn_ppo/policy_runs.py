"""Training of several policies that play in the same environments: one run for each, in turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from enn_ppo.learner import Learned, Settings
from enn_ppo.run import Run

if TYPE_CHECKING:
    from enn_ppo.distributed.remote_learner import RemoteLearner


class PolicyRuns:
    """The runs of all policies. The first policy's run saves and closes all.

    Args:
        runs: of each policy.
        learners: of each policy.
        home: directory that holds their run directories.
    """

    def __init__(self, runs: Sequence[Run], learners: Sequence[RemoteLearner], home: Path) -> None:
        self.runs, self.home = runs, home
        self._learners = learners
        for run in runs:
            run.together, run.home = runs, home

    @property
    def first(self) -> Run:
        """State of the first policy's run; all runs are at the same step."""
        return self.runs[0]

    def begin_update(self) -> list[Settings]:
        """See `TrainState.begin_update`."""
        return [run.state.begin_update() for run in self.runs]

    def learn(self, played: Any, settings: Sequence[Settings]) -> list[Learned]:
        """One update of each policy, all at the same time."""
        for learner, each in zip(self._learners, settings, strict=True):
            learner.start_learning(played, each)
        return [learner.finish_learning() for learner in self._learners]

    def report(self, learned: Sequence[Learned], settings: Sequence[Settings], seconds: float) -> None:
        """See `Run.report`. If a callback stops one run, all stop."""
        for run, what, how in zip(self.runs, learned, settings, strict=True):
            run.report(what, how, seconds)
        stopped = any(run.stopped for run in self.runs)
        for run in self.runs:
            run.stopped = stopped

    def finish(self, interrupted: Callable[[], str | None]) -> None:
        """See `Run.finish`."""
        for run in self.runs:
            run.finish(interrupted)
