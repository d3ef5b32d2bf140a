"""Every setting of a sweep: frozen, with its unit, range and default, checked when it is made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from enn_ppo.sweep.space import Parameter, parse_space
from rogue_net.checks import NonNegativeInt, PositiveFloat, PositiveInt, Range, UnitInterval, check_fields

Direction = Literal["maximize", "minimize"]
Sampler = Literal["tpe", "random"]
Pruner = Literal["median", "halving", "none"]


@dataclass(frozen=True, kw_only=True)
class SweepConfig:
    """Settings of a sweep: search space, score, and budget."""

    train: list[str] = field(default_factory=list)
    """Arguments of `enn_ppo.train` under every trial; those typed in the command go over them."""
    space: dict[str, Any] = field(default_factory=dict)
    """What is varied: a setting or group -> `{scale: ..., low: ..., high: ...}` or a list of choices; scales: `linear`, `log`,
    `integer`, `power_of_two`, `one_minus` (1 - x on a log scale). A sweep needs at least one."""
    metric: str = "episodic_reward"
    """The column of metrics.jsonl that counts, for example `eval/episodic_reward`."""
    direction: Direction = "maximize"
    """Whether much of it is good, or little."""
    last_fraction: Annotated[float, Range(0, 1, open_low=True)] = 0.2
    """The score of a run is the mean of the metric over this last part of it."""
    seeds: PositiveInt = 1
    """Runs of each trial, with the seeds `seed`, `seed` + 1 and so on, one after another; their mean is the trial's score."""
    trials: PositiveInt | None = 50
    """Trials in all, those before an interruption included. null: as many as `minutes` allow."""
    minutes: PositiveFloat | None = None
    """Minutes of sweeping in all, interruptions not counted; then the running trials are stopped, and can be continued with more
    minutes. null: no limit."""
    jobs: PositiveInt = 1
    """Trials that run at a time; each has a process of its own."""
    sampler: Sampler = "tpe"
    """How the next values are chosen: `tpe` (tree-structured Parzen estimator: Bergstra and others, 2011) or `random`."""
    sampler_seed: NonNegativeInt = 1
    """Seeds the sampler."""
    startup_trials: PositiveInt = 10
    """Trials drawn at random before `tpe` chooses, and finished before `median` gives any up."""
    pruner: Pruner = "median"
    """Which trials are given up early: `median`, those whose learning curve is below the median of the others at the same point;
    `halving`, all but the best third at each of some points (asynchronous successive halving: Li and others, 2018, arXiv
    1810.05934); `none`."""
    prune_after: UnitInterval = 0.25
    """The part of a run before which no trial is given up."""

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
    """Whether a mistake shows its traceback beside the message."""

    def __post_init__(self) -> None:
        check_fields(self)
