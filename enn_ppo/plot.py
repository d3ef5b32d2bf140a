"""Compare runs: learning curves in one picture; runs that differ only in their seed become one line with a band.

python -m enn_ppo.plot RUN [RUN ...] [name=value ...]
python -m enn_ppo.plot outputs/a outputs/b x=seconds y=episodic_reward,entropy smooth=0.6 output=comparison.png

RUN     a run directory, or its metrics.jsonl
x       step, seconds (of training) or updates; default step
y       metrics of docs/metrics.md, separated by commas, a panel each; default episodic_reward
smooth  weight of the past in a moving average, from 0 (none) to below 1; default 0
band    minmax (all seeds lie inside), ci95 (95 % interval of the mean) or std; default minmax
output  default plot.png

Exit codes: 0 done, 2 a mistake of the user. Needs pandas: pip install "enn-ppo[plot]"
"""

from __future__ import annotations

import difflib
import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml

from enn_ppo.settings.schema import flatten, from_dict
from enn_ppo.training.tracking.curve import new_figure, save_figure
from enn_ppo.training.tracking.logger import read_metrics
from enn_ppo.training.tracking.run_dir import CONFIG, METRICS
from rogue_net.checks import HalfOpenUnitInterval, check_fields

try:
    import pandas as pd
except ImportError:  # docs/options.md is made from the settings below, also without pandas
    pd = None

__all__ = ["PlotConfig", "plot"]

XAxis = Literal["step", "seconds", "updates"]
Band = Literal["minmax", "ci95", "std"]

_X_LABELS: dict[XAxis, str] = {"step": "environment steps", "seconds": "seconds of training", "updates": "updates"}
#: Settings that do not affect learning.
_IGNORED = r"(seed|run_dir|resume|overwrite|trust|progress|debug|record|record_logits|logger\..*)"


@dataclass(frozen=True, kw_only=True)
class PlotConfig:
    """Settings of a plot."""

    runs: tuple[str, ...]
    """Run directories, or files of metrics; at least one."""
    x: XAxis = "step"
    """Horizontal axis: environment steps, seconds of training, or updates."""
    y: tuple[str, ...] = ("episodic_reward",)
    """Metrics, a panel each."""
    smooth: HalfOpenUnitInterval = 0.0
    """Weight of the past in a moving average. 0: as measured."""
    band: Band = "minmax"
    """Band around the mean of several seeds: minimum to maximum, the 95 % confidence interval of the mean (Student's t), or one
    standard deviation to each side."""
    output: str = "plot.png"
    """File of the picture."""

    def __post_init__(self) -> None:
        if not self.runs:
            raise ValueError("give at least one run directory: python -m enn_ppo.plot outputs/my_run")
        check_fields(self)
        if not self.y or not all(self.y):
            raise ValueError(f"y must name metrics, with commas between them, got {','.join(self.y)!r}")
        if not self.output.lower().endswith(".png"):
            raise ValueError(f"output must name a file that ends with .png, got {self.output!r}")


@dataclass(frozen=True)
class Run:
    """Metrics and settings of a run."""

    path: Path
    metrics: pd.DataFrame  # a row per row of metrics.jsonl
    settings: dict[
        str, Any
    ]  # dotted name -> value as text, of settings that affect learning; empty without a config.yaml


def plot(config: PlotConfig) -> Path:
    """Draw the curves; returns the picture's path.

    Raises:
        ValueError: pandas is not installed, a run or a metric does not exist, or the picture cannot be written.
    """
    if pd is None:
        raise ValueError('a plot needs pandas, which is not installed: pip install "enn-ppo[plot]"')
    groups = group_runs([read_run(Path(path)) for path in config.runs])
    figure = new_figure(8, 0.6 + 3.2 * len(config.y))
    panels = figure.subplots(len(config.y), 1, sharex=True, squeeze=False)[:, 0]
    for axes, y in zip(panels, config.y, strict=True):
        for label, runs in groups.items():
            _draw(axes, label, runs, y, config)
        axes.set_ylabel(y)
        axes.grid(alpha=0.3)
        axes.legend(loc="best", fontsize="small")
    panels[-1].set_xlabel(_X_LABELS[config.x])
    output = Path(config.output)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        save_figure(figure, output)
    except OSError as error:
        raise ValueError(f"output {output} cannot be written: {error}") from error
    return output


def read_run(path: Path) -> Run:
    """Read the metrics and settings of a run directory, or of the folder of a file of metrics.

    Raises:
        ValueError: there is no such run; the message names runs inside the folder.
    """
    file = path / METRICS if path.is_dir() else path
    if not file.exists() and path.is_dir():
        inside = " ".join(sorted(str(each.parent) for each in path.glob(f"*/{METRICS}")))
        hint = f"; the runs inside are {inside}" if inside else ""
        raise ValueError(f"{path} is no run directory: it holds no {METRICS}{hint}")
    if not file.exists():
        raise ValueError(f"there is no {path}")
    metrics = pd.DataFrame(read_metrics(file))
    if metrics.empty:
        if file.stat().st_size > 0 and not file.read_bytes().startswith(b"{"):  # a row may be half written
            raise ValueError(f"{file} is not that of a run: its lines are no rows of metrics")
        raise ValueError(f"{file} has no rows yet")
    if not pd.api.types.is_numeric_dtype(metrics["step"]) or not np.isfinite(metrics["step"]).all():
        raise ValueError(f"{file} is not that of a run: not every row has a number as its step")
    config, settings = file.with_name(CONFIG), {}
    if config.exists():
        try:
            settings = yaml.safe_load(config.read_text("utf-8"))
        except (OSError, UnicodeError, yaml.YAMLError) as error:
            raise ValueError(f"{config} cannot be read: {error}") from error
    flat = flatten(settings) if isinstance(settings, Mapping) else {}
    return Run(file.parent, metrics, {name: str(flat[name]) for name in flat if not re.fullmatch(_IGNORED, name)})


def group_runs(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Group runs with the same settings, in the given order.

    Returns:
        Label -> runs. The label names the settings that differ between groups, or the run's path if these are unknown or more
        than three.
    """
    groups: dict[object, list[Run]] = {}
    for run in runs:
        groups.setdefault(frozenset(run.settings.items()) or len(groups), []).append(run)
    known = [members[0].settings for members in groups.values() if members[0].settings]
    names = dict.fromkeys(name for settings in known for name in settings)
    differing = [name for name in names if len({settings.get(name) for settings in known}) > 1]
    if "env.id" in differing:  # the environments' arguments then differ as well
        differing = [name for name in differing if not name.startswith("env.kwargs")]
    labelled: dict[str, list[Run]] = {}
    for members in groups.values():
        first = members[0]
        label = ", ".join(f"{name}={first.settings.get(name)}" for name in differing) or first.settings.get("env.id")
        if not first.settings or not label or len(differing) > 3:
            label = str(first.path)
        if label in labelled:  # only the environments' arguments differ, or a run was given twice
            label = f"{label} ({first.path})"
        labelled[label] = members
    return labelled


def curve(run: Run, x: XAxis, y: str) -> pd.Series:
    """The values of a metric over `x`. Evaluations are at the step of their checkpoint; of several there, the last counts.

    Raises:
        ValueError: the run has no such metric, or no value of it.
    """
    rows = _rows_with(run, y, "y")
    at = rows["step"]
    if y.startswith("eval/") and "eval/step" in rows:
        at = rows["eval/step"].fillna(at)
    if x != "step":  # linear between updates
        updates = _rows_with(run, "seconds", "x")
        along = updates["seconds"] if x == "seconds" else np.arange(1, len(updates) + 1)
        at = np.interp(at, [0, *updates["step"]], [0, *along])
    return pd.Series(rows[y].to_numpy(float), np.asarray(at, float)).groupby(level=0).last()


def mean_and_band(curves: Sequence[pd.Series], band: Band) -> pd.DataFrame:
    """Columns `mean`, `low` and `high` over the range that all curves cover; a curve is linear between its points.

    Raises:
        ValueError: the curves have no common range.
    """
    values = pd.concat(curves, axis=1, sort=True).interpolate("index", limit_area="inside").dropna()
    if values.empty:
        first, last = max(each.index[0] for each in curves), min(each.index[-1] for each in curves)
        raise ValueError(
            f"the seeds have no common range of x: one begins at {first:g}, and one ends at {last:g} before it"
        )
    mean, low, high = values.mean(axis=1), values.min(axis=1), values.max(axis=1)
    if band != "minmax" and len(curves) > 1:
        spread = values.std(axis=1) if band == "std" else values.sem(axis=1) * t_quantile(len(curves) - 1)
        low, high = mean - spread, mean + spread
    return pd.DataFrame({"mean": mean, "low": low, "high": high})


def t_quantile(freedom: int) -> float:
    """97.5 % quantile of Student's t, by numerical integration of its density, which avoids a dependency on scipy."""
    t = np.linspace(0, 13, 100_001)
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)
    density = scale * (1 + t**2 / freedom) ** (-(freedom + 1) / 2)
    above_0 = np.cumsum((density[1:] + density[:-1]) / 2 * t[1])
    return float(np.interp(0.475, above_0, t[1:]))


def parse(arguments: Sequence[str]) -> PlotConfig:
    """Parse arguments without the program's name: `name=value` is a setting; existing paths and arguments without `=` are runs.

    Raises:
        ValueError: an argument is invalid; the message names it.
    """
    runs = tuple(argument for argument in arguments if "=" not in argument or Path(argument).exists())
    values: dict[str, Any] = dict(argument.split("=", 1) for argument in arguments if argument not in runs)
    if options := [argument for argument in arguments if argument.startswith("-")]:
        raise ValueError(f"{options[0]} is no option: settings look like x=seconds, and --help lists them")
    if "runs" in values:
        raise ValueError(f"runs={values['runs']}: run directories are given by themselves, without a name")
    if "y" in values:
        values["y"] = tuple(name.strip() for name in values["y"].split(","))
    return from_dict(PlotConfig, {**values, "runs": runs})


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if {"-h", "--help"} & set(arguments):
        print(__doc__, end="")
        return 0
    try:
        print(f"wrote {plot(parse(arguments))}")
    except ValueError as error:
        print("error:", " ".join(str(error).split()), file=sys.stderr)
        return 2
    return 0


def _rows_with(run: Run, metric: str, setting: str) -> pd.DataFrame:
    """The rows that have a value of a metric."""
    names = list(run.metrics.columns)
    if metric not in names:
        near = ", ".join(difflib.get_close_matches(metric, names, n=5, cutoff=0.0))
        raise ValueError(f"{setting}={metric} is no metric of {run.path}; the nearest of its {len(names)} are {near}")
    if not pd.api.types.is_numeric_dtype(run.metrics[metric]):
        if run.metrics[metric].notna().any():
            raise ValueError(
                f"{setting}={metric} of {run.path} is no metric that can be drawn: it holds other values than numbers"
            )
    rows = run.metrics.dropna(subset=[metric])
    if rows.empty:
        raise ValueError(f"{run.path} has no value of {metric} yet")
    return rows


def _draw(axes: Any, label: str, runs: Sequence[Run], y: str, config: PlotConfig) -> None:
    measured = [curve(run, config.x, y) for run in runs]
    try:
        drawn = mean_and_band([each.ewm(alpha=1 - config.smooth).mean() for each in measured], config.band)
    except ValueError as error:
        raise ValueError(f"{label}: {error} ({', '.join(str(run.path) for run in runs)})") from error
    if len(runs) > 1:
        label += f" (n = {len(runs)})"
    (line,) = axes.plot(drawn.index, drawn["mean"], label=label, marker="." if len(drawn) < 30 else "")
    intervals = runs[0].metrics.get(f"{y}_ci95", pd.Series())
    if len(runs) == 1 and config.smooth > 0:
        axes.plot(measured[0].index, measured[0], color=line.get_color(), alpha=0.25, linewidth=1)
    elif len(runs) == 1 and intervals.notna().any():
        half_width = curve(runs[0], config.x, f"{y}_ci95")
        drawn = drawn.assign(low=drawn["mean"] - half_width, high=drawn["mean"] + half_width).dropna()
    axes.fill_between(drawn.index, drawn["low"], drawn["high"], color=line.get_color(), alpha=0.2, linewidth=0)


if __name__ == "__main__":
    raise SystemExit(main())
