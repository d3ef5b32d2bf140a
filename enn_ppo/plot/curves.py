"""Learning curves of runs: values of a metric over steps or time, the mean of several seeds with a band, and their picture."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from enn_ppo.plot.config import Band, PlotConfig, XAxis
from enn_ppo.plot.runs import Run
from enn_ppo.training.tracking.curve import new_figure

_LABELS: dict[XAxis, str] = {"step": "environment steps", "seconds": "seconds of training", "updates": "updates"}


def draw(groups: Mapping[str, Sequence[Run]], config: PlotConfig) -> Any:
    """Draw the curves of groups of runs over `config.x`, a panel for each metric, and return the figure.

    Raises:
        ValueError: a run has no such metric, or the curves of a group have no common range; the message names the runs.
    """
    figure = new_figure(8, 0.6 + 3.2 * len(config.y))
    panels = figure.subplots(len(config.y), 1, sharex=True, squeeze=False)[:, 0]
    for axes, y in zip(panels, config.y, strict=True):
        for label, runs in groups.items():
            _draw_group(axes, label, runs, y, config)
        axes.set_ylabel(y)
        axes.grid(alpha=0.3)
        axes.legend(loc="best", fontsize="small")
    panels[-1].set_xlabel(_LABELS[config.x])
    return figure


def _draw_group(axes: Any, label: str, runs: Sequence[Run], y: str, config: PlotConfig) -> None:
    """Draw the mean of runs that differ only in their seed, and its band: of one run, the 95 % interval of evaluations."""
    measured = [curve(run, config.x, y) for run in runs]
    try:
        band = mean_and_band([each.ewm(alpha=1 - config.smooth).mean() for each in measured], config.band)
    except ValueError as error:
        raise ValueError(f"{label}: {error} ({', '.join(str(run.path) for run in runs)})") from error
    if len(runs) == 1 and config.smooth == 0 and runs[0].metrics.get(f"{y}_ci95", pd.Series()).notna().any():
        half_width = curve(runs[0], config.x, f"{y}_ci95")
        band = band.assign(low=band["mean"] - half_width, high=band["mean"] + half_width).dropna()
    mean, several = band["mean"], f" (n = {len(runs)})" if len(runs) > 1 else ""
    (line,) = axes.plot(mean.index, mean, label=f"{label}{several}", marker="." if len(mean) < 30 else "")
    if len(runs) == 1 and config.smooth > 0:
        axes.plot(measured[0].index, measured[0], color=line.get_color(), alpha=0.25, linewidth=1)
    axes.fill_between(mean.index, band["low"], band["high"], color=line.get_color(), alpha=0.2, linewidth=0)


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
