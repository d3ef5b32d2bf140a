"""Every setting of a sweep: frozen, with its unit, range and default, checked when it is made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from enn_ppo.settings.config import TrainConfig
from enn_ppo.settings.schema import fields_of, quoted, unknown_setting
from rogue_net.checks import NumWorkers, PositiveInt, check_fields

_FIXED = "run_dir resume overwrite trust seed total_timesteps max_train_seconds".split()
_OPEN = ("env.kwargs.", "env.info.", "eval.env_kwargs.")  # accept any name
_EXAMPLES = "{scale: log, low: 1e-4, high: 1e-2} or a list of two or more choices that differ"


@dataclass(frozen=True, kw_only=True)
class SweepConfig:
    """Settings of a sweep: search space, score, and budget.

    A tree-structured Parzen estimator, seeded by `seed`, draws the values.
    """

    space: dict[str, Any] = field(default_factory=dict)
    """Search space: a setting or group -> `{scale: ..., low: ..., high: ...}` or a list of choices; scales: `linear`, `log`,
    `integer`. A sweep needs at least one."""
    metric: str = "episodic_reward"
    """The metric that is maximized, a column of metrics.jsonl, for example `eval/episodic_reward`; with `-` before its name it is
    minimized, as in `-episode_length`. The score of a run is its mean over the last fifth of the run."""
    seeds: PositiveInt = 1
    """Runs of each trial, with the seeds `seed`, `seed` + 1 and so on, one after another; their mean is the trial's score."""
    trials: PositiveInt = 50
    """Total number of trials, including those before an interruption."""
    jobs: NumWorkers = 1
    """Trials that run in parallel, each in a separate process."""
    pruner: Literal["median", "none"] = "median"
    """Rule for stopping trials after a quarter of a run: `median`, if the learning curve is below the median of at least five
    others at the same point; `none`."""

    def __post_init__(self) -> None:
        check_fields(self, "sweep.")
        check_space(self.space)

    @property
    def column(self) -> str:
        """The metric's column of metrics.jsonl."""
        return self.metric.removeprefix("-")


@dataclass(frozen=True, kw_only=True)
class SweepCommand(TrainConfig):
    """Settings of a sweep, and of training in every trial."""

    sweep: SweepConfig
    """The sweep."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.resume is not None or self.overwrite:
            raise ValueError("resume and overwrite do not go with a sweep: the same command goes on with it")
        if self.sweep.column.startswith("eval/") and self.eval.interval is None:
            raise ValueError(
                f"sweep.metric={self.sweep.metric} needs evaluations while training: eval.interval=<steps>"
            )


def check_space(space: Mapping[str, Any]) -> None:
    """Check a search space, written as `setting: {scale: ..., low: ..., high: ...}` or `setting: [a, b]`.

    Raises:
        ValueError: a parameter is invalid; the message names it, the value and the allowed values.
    """
    if not space:
        raise ValueError(f"sweep.space must say which settings are varied, each as {_EXAMPLES}, got {space!r}")
    known = [*fields_of(TrainConfig), "experiment"]
    for name, given in space.items():
        if name in _FIXED:
            raise ValueError(f"{name} cannot stand in sweep.space: all trials have the same (seeds: sweep.seeds)")
        if name not in known and not name.startswith(_OPEN):
            raise ValueError(f"sweep.space: {unknown_setting(name, known)}")
        if isinstance(given, list):
            fits = len({quoted(choice, f"sweep.space: {name}") for choice in given}) == len(given) >= 2
        else:
            fits = _is_range(given)
        if not fits:
            raise ValueError(
                f"sweep.space: {name} must be {_EXAMPLES}, got {given!r}. Scales: linear, log (numbers above 0), integer"
            )


def _is_range(given: Any) -> bool:
    """Whether `low` is less than `high`, and both are numbers of the scale; `scale` may be missing."""
    try:
        low, high = float(given["low"]), float(given["high"])  # YAML 1.1 reads 1e-4 as a text
    except (KeyError, TypeError, ValueError):
        return False
    scales = {"linear": True, "log": low > 0, "integer": low.is_integer() and high.is_integer()}
    fits = scales.get(str(given.get("scale", "linear")), False) and given.keys() <= {"scale", "low", "high"}
    return fits and low < high and math.isfinite(high - low)
