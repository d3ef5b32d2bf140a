"""Every setting of a sweep: frozen, with its unit, range and default, checked when it is made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from enn_ppo.sweep.space import Parameter, parse_space
from rogue_net.checks import NonNegativeInt, NumWorkers, PositiveFloat, PositiveInt, Range, UnitInterval, check_fields

Direction = Literal["maximize", "minimize"]
Sampler = Literal["tpe", "random"]
Pruner = Literal["median", "halving", "none"]


@dataclass(frozen=True, kw_only=True)
class SweepConfig:
    """Settings of a sweep: search space, score, and budget."""

    train: list[str] = field(default_factory=list)
    """Arguments of `enn_ppo.train` for every trial; arguments in the command override them."""
    space: dict[str, Any] = field(default_factory=dict)
    """Search space: a setting or group -> `{scale: ..., low: ..., high: ...}` or a list of choices; scales: `linear`, `log`,
    `integer`, `power_of_two`, `one_minus` (1 - x on a log scale). A sweep needs at least one."""
    metric: str = "episodic_reward"
    """The metric that is optimized, a column of metrics.jsonl, for example `eval/episodic_reward`."""
    direction: Direction = "maximize"
    """Whether the metric is maximized or minimized."""
    last_fraction: Annotated[float, Range(0, 1, open_low=True)] = 0.2
    """The score of a run is the mean of the metric over this last fraction of the run."""
    seeds: PositiveInt = 1
    """Runs of each trial, with the seeds `seed`, `seed` + 1 and so on, one after another; their mean is the trial's score."""
    trials: PositiveInt | None = 50
    """Total number of trials, including those before an interruption. null: as many as `minutes` allow."""
    minutes: PositiveFloat | None = None
    """Time budget in minutes, without interruptions; then the running trials are stopped, and can be continued with more minutes.
    null: no limit."""
    jobs: NumWorkers = 1
    """Trials that run in parallel, each in a separate process."""
    sampler: Sampler = "tpe"
    """Sampler of the trials' values: `tpe` (tree-structured Parzen estimator: Bergstra and others, 2011) or `random`."""
    sampler_seed: NonNegativeInt = 1
    """Seeds the sampler."""
    startup_trials: PositiveInt = 10
    """Trials drawn at random before `tpe` is used, and finished before `median` prunes a trial."""
    pruner: Pruner = "median"
    """Rule for stopping trials early: `median`, if the learning curve is below the median of the other trials at the same point;
    `halving`, for all but the best third at each of some points (asynchronous successive halving: Li and others, 2018, arXiv
    1810.05934); `none`."""
    prune_after: UnitInterval = 0.25
    """Fraction of a run before which no trial is pruned."""

    def __post_init__(self) -> None:
        if not isinstance(self.train, list) or not all(isinstance(argument, str) for argument in self.train):
            raise ValueError(f"sweep.train must be a list of arguments such as env=Xor, got {self.train!r}")
        parse_space(self.space)
        check_fields(self, "sweep.")
        if self.trials is None and self.minutes is None:
            raise ValueError("sweep.trials and sweep.minutes are both null, and so the sweep would never end: give one")

    @property
    def parameters(self) -> list[Parameter]:
        """Parameters of the search space, in the order of the file."""
        return parse_space(self.space)


@dataclass(frozen=True, kw_only=True)
class SweepCommand:
    """Settings of the sweep's command line, beside those of training."""

    sweep: SweepConfig
    """The sweep."""
    debug: bool = False
    """Whether the message about a mistake includes the traceback."""

    def __post_init__(self) -> None:
        check_fields(self)
