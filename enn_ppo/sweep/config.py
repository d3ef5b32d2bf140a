"""Every setting of a sweep: frozen, with its unit, range and default, checked when it is made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from enn_ppo.settings.config import TrainConfig
from enn_ppo.sweep.space import check_space
from rogue_net.checks import NumWorkers, PositiveInt, check_fields

Direction = Literal["maximize", "minimize"]
Pruner = Literal["median", "halving", "none"]


@dataclass(frozen=True, kw_only=True)
class SweepConfig:
    """Settings of a sweep: search space, score, and budget.

    A tree-structured Parzen estimator, seeded by `seed`, draws the values.
    """

    space: dict[str, Any] = field(default_factory=dict)
    """Search space: a setting or group -> `{scale: ..., low: ..., high: ...}` or a list of choices; scales: `linear`, `log`,
    `integer`, `power_of_two`, `one_minus` (1 - x on a log scale). A sweep needs at least one."""
    metric: str = "episodic_reward"
    """The metric that is optimized, a column of metrics.jsonl, for example `eval/episodic_reward`. The score of a run is its mean
    over the last fifth of the run."""
    direction: Direction = "maximize"
    """Whether the metric is maximized or minimized."""
    seeds: PositiveInt = 1
    """Runs of each trial, with the seeds `seed`, `seed` + 1 and so on, one after another; their mean is the trial's score."""
    trials: PositiveInt = 50
    """Total number of trials, including those before an interruption."""
    jobs: NumWorkers = 1
    """Trials that run in parallel, each in a separate process."""
    pruner: Pruner = "median"
    """Rule for stopping trials after a quarter of a run: `median`, if the learning curve is below the median of at least five
    others at the same point; `halving`, for all but the best third (asynchronous successive halving: Li and others, 2018,
    arXiv 1810.05934); `none`."""

    def __post_init__(self) -> None:
        check_fields(self, "sweep.")
        check_space(self.space)


@dataclass(frozen=True, kw_only=True)
class SweepCommand(TrainConfig):
    """Settings of a sweep, and of training in every trial."""

    sweep: SweepConfig
    """The sweep."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.resume is not None or self.overwrite:
            raise ValueError("resume and overwrite do not go with a sweep: the same command goes on with it")
        if self.sweep.metric.startswith("eval/") and self.eval.interval is None:
            raise ValueError(
                f"sweep.metric={self.sweep.metric} needs evaluations while training: eval.interval=<steps>"
            )
