"""Learning curves of runs: values of a metric over steps or time, and the mean of several seeds with a band."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from enn_ppo.plot.config import Band, PlotConfig, XAxis
from enn_ppo.plot.runs import Run
from enn_ppo.training.tracking.curve import new_figure

_LABELS: dict[XAxis, str] = {"step": "environment steps", "seconds": "seconds of training", "updates": "updates"}


class Curve(NamedTuple):
    """Values over ascending places."""

    x: NDArray[np.float64]
    y: NDArray[np.float64]


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
        x, mean, low, high = mean_and_band([smoothed(each, config.smooth) for each in measured], config.band)
    except ValueError as error:
        raise ValueError(f"{label}: {error} ({', '.join(str(run.path) for run in runs)})") from error
    if len(runs) == 1 and not config.smooth and any(row.get(f"{y}_ci95") is not None for row in runs[0].rows):
        place, half_width = curve(runs[0], config.x, f"{y}_ci95")
        around = np.interp(place, x, mean)
        axes.fill_between(place, around - half_width, around + half_width, alpha=0.2, linewidth=0)
    several = f" (n = {len(runs)})" if len(runs) > 1 else ""
    (line,) = axes.plot(x, mean, label=f"{label}{several}", marker="." if len(x) < 30 else "")
    if len(runs) == 1 and config.smooth > 0:
        axes.plot(*measured[0], color=line.get_color(), alpha=0.25, linewidth=1)
    if len(runs) > 1:
        axes.fill_between(x, low, high, color=line.get_color(), alpha=0.2, linewidth=0)


def curve(run: Run, x: XAxis, y: str) -> Curve:
    """The values of a metric over `x`. Evaluations are at the step of their checkpoint; of several there, the last counts.

    Raises:
        ValueError: the run has no such metric, or no value of it.
    """
    rows = _rows_with(run, y, "y")
    at = [(y.startswith("eval/") and row.get("eval/step")) or row["step"] for row in rows]
    if x != "step":  # linear between updates
        updates = _rows_with(run, "seconds", "x")
        along = [row["seconds"] for row in updates] if x == "seconds" else range(1, len(updates) + 1)
        at = np.interp(at, [0, *(row["step"] for row in updates)], [0, *along]).tolist()
    values = dict(zip(at, (row[y] for row in rows), strict=True))
    places = sorted(values)
    return Curve(np.array(places, float), np.array([values[place] for place in places], float))


def smoothed(curve: Curve, past: float) -> Curve:
    """The moving average of a curve in which the weight of each earlier value falls by the factor `past`."""
    total = weight = 0.0
    means = []
    for value in curve.y.tolist():
        total, weight = total * past + value, weight * past + 1
        means.append(total / weight)
    return Curve(curve.x, np.array(means))


def mean_and_band(curves: Sequence[Curve], band: Band) -> tuple[NDArray[np.float64], ...]:
    """Places, mean, low and high over the range that all curves cover; a curve is linear between its points.

    Raises:
        ValueError: the curves have no common range.
    """
    first, last = max(each.x[0] for each in curves), min(each.x[-1] for each in curves)
    if first > last:
        raise ValueError(
            f"the seeds have no common range of x: one begins at {first:g}, and one ends at {last:g} before it"
        )
    places = np.unique(np.concatenate([each.x for each in curves]))
    places = places[(places >= first) & (places <= last)]
    values = np.array([np.interp(places, *each) for each in curves])
    mean, low, high = values.mean(0), values.min(0), values.max(0)
    if band != "minmax" and len(curves) > 1:
        spread = values.std(0, ddof=1)
        if band == "ci95":
            spread *= t_quantile(len(curves) - 1) / math.sqrt(len(curves))
        low, high = mean - spread, mean + spread
    return places, mean, low, high


def t_quantile(freedom: int) -> float:
    """97.5 % quantile of Student's t, by numerical integration of its density, which avoids a dependency on scipy."""
    t = np.linspace(0, 13, 100_001)
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)
    density = scale * (1 + t**2 / freedom) ** (-(freedom + 1) / 2)
    above_0 = np.cumsum((density[1:] + density[:-1]) / 2 * t[1])
    return float(np.interp(0.475, above_0, t[1:]))


def _rows_with(run: Run, metric: str, setting: str) -> list[dict[str, Any]]:
    """The rows that have a value of a metric."""
    names = dict.fromkeys(name for row in run.rows for name in row)
    if metric not in names:
        near = ", ".join(difflib.get_close_matches(metric, names, n=5, cutoff=0.0))
        raise ValueError(f"{setting}={metric} is no metric of {run.path}; the nearest of its {len(names)} are {near}")
    rows = [row for row in run.rows if row.get(metric) is not None]
    if not rows:
        raise ValueError(f"{run.path} has no value of {metric} yet")
    if not all(type(row[metric]) in (int, float) for row in rows):
        raise ValueError(f"{setting}={metric} of {run.path} is no metric that can be drawn: not all of it is numbers")
    return rows
