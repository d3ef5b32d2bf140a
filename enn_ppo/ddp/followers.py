"""Output and evaluation of ranks other than rank 0: they do nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType

from enn_ppo.config import TrainEvalConfig
from enn_ppo.evaluation.evaluator import EvalRow, Evaluator
from enn_ppo.tracking.logger import Row
from enn_ppo.tracking.run_output import RunOutput


class NoOutput(RunOutput):
    """Shows and writes nothing.

    Args:
        run_dir: of rank 0.
    """

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir

    def log(self, row: Row) -> None:
        """Log nothing."""

    def say(self, text: str) -> None:
        """Say nothing."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class NoEvaluator(Evaluator):
    """Says when an evaluation is due, and evaluates nothing.

    Args:
        config: settings of evaluations.
    """

    def __init__(self, config: TrainEvalConfig) -> None:
        self.config = config

    def submit(self, checkpoint: Path, step: int) -> None:
        """Submit nothing."""

    def resubmit(self, steps: Iterable[int], checkpoints: Path) -> None:
        """Submit nothing."""

    @property
    def pending_steps(self) -> list[int]:
        """None."""
        return []

    def poll(self) -> EvalRow | None:
        """Nothing is done."""
        return None

    def wait(self, stop: Callable[[], object] = lambda: False) -> EvalRow | None:
        """Nothing is under way."""
        return None

    def close(self) -> None:
        """Nothing is open."""
