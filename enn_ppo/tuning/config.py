"""Every setting of a sweep: frozen, with its unit, range and default, checked when it is made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from enn_ppo.tuning.space import Parameter, parse_space
from rogue_net.checks import check_bool, check_choice, check_float, check_int, check_text

Direction = Literal["maximize", "minimize"]
Sampler = Literal["tpe", "random"]
Pruner = Literal["median", "halving", "none"]


@dataclass(frozen=True, kw_only=True)
class SweepConfig:
    """Settings of a sweep: search space, score, and budget."""

    train: list[str] = field(default_factory=list)
    """Arguments of `enn_ppo.train` under every trial; those typed in the command go over them. Default: none."""
    space: dict[str, Any] = field(default_factory=dict)
    """What is varied: a setting or group -> `{scale: ..., low: ..., high: ...}` or a list of choices; scales: `linear`,
    `log`, `integer`, `power_of_two`, `one_minus` (1 - x on a log scale). A sweep needs at least one. Default: none."""
    metric: str = "episodic_reward"
    """The column of metrics.jsonl that counts, for example `eval/episodic_reward`. Default `episodic_reward`."""
    direction: Direction = "maximize"
    """Whether much of it is good, or little. Default `maximize`."""
    last_fraction: float = 0.2
    """The score of a run is the mean of the metric over this last part of it. Greater than 0, at most 1. Default 0.2."""
    seeds: int = 1
    """Runs of each trial, with the seeds `seed`, `seed` + 1 and so on, one after another; their mean is the trial's score.
    At least 1. Default 1."""
    trials: int | None = 50
    """Trials in all, those before an interruption included. At least 1; null: as many as `minutes` allow. Default 50."""
    minutes: float | None = None
    """Minutes of sweeping in all, interruptions not counted; then the running trials are stopped, and can be continued
    with more minutes. Greater than 0; null: no limit. Default null."""
    jobs: int = 1
    """Trials that run at a time; each has a process of its own. At least 1. Default 1."""
    sampler: Sampler = "tpe"
    """How the next values are chosen: `tpe` (tree-structured Parzen estimator: Bergstra and others, 2011) or `random`.
    Default `tpe`."""
    sampler_seed: int = 1
    """Seeds the sampler. At least 0. Default 1."""
    startup_trials: int = 10
    """Trials drawn at random before `tpe` chooses, and finished before `median` gives any up. At least 1. Default 10."""
    pruner: Pruner = "median"
    """Which trials are given up early: `median`, those whose learning curve is below the median of the others at the same
    point; `halving`, all but the best third at each of some points (asynchronous successive halving: Li and others, 2018,
    arXiv 1810.05934); `none`. Default `median`."""
    prune_after: float = 0.25
    """The part of a run before which no trial is given up. In [0, 1]. Default 0.25."""

    def __post_init__(self) -> None:
        if not isinstance(self.train, list) or not all(isinstance(argument, str) for argument in self.train):
            raise ValueError(f"sweep.train must be a list of arguments such as env=Xor, got {self.train!r}")
        parse_space(self.space)
        check_text("sweep.metric", self.metric)
        check_choice("sweep.direction", self.direction, get_args(Direction))
        check_float("sweep.last_fraction", self.last_fraction, 0, 1, open_low=True)
        check_int("sweep.seeds", self.seeds, 1)
        check_int("sweep.trials", self.trials, 1, optional=True)
        if self.minutes is not None:
            check_float("sweep.minutes", self.minutes, 0, open_low=True)
        if self.trials is None and self.minutes is None:
            raise ValueError("sweep.trials and sweep.minutes are both null, and so the sweep would never end: give one")
        check_int("sweep.jobs", self.jobs, 1)
        check_choice("sweep.sampler", self.sampler, get_args(Sampler))
        check_int("sweep.sampler_seed", self.sampler_seed, 0)
        check_int("sweep.startup_trials", self.startup_trials, 1)
        check_choice("sweep.pruner", self.pruner, get_args(Pruner))
        check_float("sweep.prune_after", self.prune_after, 0, 1)

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
    """Whether a mistake shows its traceback beside the message. Default false."""

    def __post_init__(self) -> None:
        check_bool("debug", self.debug)
