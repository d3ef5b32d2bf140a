"""Learning curves of runs: values of a metric over steps or time, and the mean of several seeds with a band."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from enn_ppo.plot.config import Band, PlotConfig, XAxis
from enn_ppo.plot.runs import Run

__all__ = ["Line", "curve", "line_of_group", "mean_and_band", "t_quantile"]


@dataclass(frozen=True)
class Line:
    """The curve of a group of runs."""

    label: str
    band: pd.DataFrame  # columns `mean`, `low`, `high` over x
    measured: pd.Series | None  # values before smoothing, of a single run that was smoothed


def line_of_group(label: str, runs: Sequence[Run], x: XAxis, y: str, config: PlotConfig) -> Line:
    """The line of runs that differ only in their seed.

    The band of a single run is the 95 % interval of its evaluations, or nothing.

    Raises:
        ValueError: a run has no such metric, or the curves have no common range; the message names the runs.
    """
    measured = [curve(run, x, y) for run in runs]
    try:
        band = mean_and_band([each.ewm(alpha=1 - config.smooth).mean() for each in measured], config.band)
    except ValueError as error:
        raise ValueError(f"{label}: {error} ({', '.join(str(run.path) for run in runs)})") from error
    if len(runs) > 1:
        return Line(f"{label} (n = {len(runs)})", band, None)
    if config.smooth > 0:
        return Line(label, band, measured[0])
    if runs[0].metrics.get(f"{y}_ci95", pd.Series()).notna().any():
        half_width = curve(runs[0], x, f"{y}_ci95")
        band = band.assign(low=band["mean"] - half_width, high=band["mean"] + half_width).dropna()
    return Line(label, band, None)


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
