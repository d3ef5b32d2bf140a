"""Learning curves of runs: values of a metric over steps, and the mean of several seeds with a band."""

from __future__ import annotations

import difflib
import io
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from enn_ppo.settings.schema import flatten
from enn_ppo.training.files import replace_file
from enn_ppo.training.tracking.logger import read_metrics
from enn_ppo.training.tracking.run_dir import CONFIG, METRICS
from entity_gym.untrusted import YAML_BYTES, parse_yaml, read_regular

Curve = NDArray[np.float64]  # (2, n): ascending steps, and the values there

#: Settings that do not affect learning.
_IGNORED = r"(seed|run_dir|resume|overwrite|trust|logger\..*)"


class Run(NamedTuple):
    """Metrics and settings of a run."""

    path: Path
    rows: Sequence[dict[str, Any]]  # of metrics.jsonl
    #: Dotted name -> value as text, of settings that affect learning; empty without a config.yaml.
    settings: Mapping[str, str]


def read_run(metrics_jsonl: Path) -> Run:
    """Read the metrics of a run, and the settings beside them.

    Raises:
        ValueError: a file cannot be read, or is not that of a run.
    """
    rows, config = read_metrics(metrics_jsonl), metrics_jsonl.with_name(CONFIG)
    if not all(type(row["step"]) in (int, float) and math.isfinite(row["step"]) for row in rows):
        raise ValueError(f"{metrics_jsonl} is not that of a run: not every row has a number as its step")
    settings: Any = {}
    if config.exists():
        try:
            settings = parse_yaml(read_regular(config, YAML_BYTES))
        except (OSError, ValueError) as error:
            raise ValueError(f"{config} cannot be read: {error}") from error
    flat = flatten(settings) if isinstance(settings, Mapping) else {}
    affecting = {name: str(flat[name]) for name in flat if not re.fullmatch(_IGNORED, name)}
    return Run(metrics_jsonl.parent if metrics_jsonl.name == METRICS else metrics_jsonl, rows, affecting)


def group_runs(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Group runs that differ only in their seed and in settings that do not affect learning, in the given order.

    Returns:
        Label -> runs. The label names the settings that differ between groups, or the run's path if these are unknown or more
        than three.
    """
    groups: dict[object, list[Run]] = {}
    for run in runs:
        groups.setdefault(frozenset(run.settings.items()) or len(groups), []).append(run)
    known = [run.settings for run in runs if "env.id" in run.settings]  # runs of other programs have none
    names = dict.fromkeys(name for settings in known for name in settings)
    differing = [name for name in names if len({settings.get(name) for settings in known}) > 1]
    labelled: dict[str, list[Run]] = {}
    for members in groups.values():
        path, _, settings = members[0]
        label = ", ".join(f"{name}={settings.get(name)}" for name in differing) or settings.get("env.id", "")
        if "env.id" not in settings or len(differing) > 3 or label in labelled:
            label = str(path)
        labelled[label] = members
    return labelled


def draw(runs: Sequence[Run], metrics: Sequence[str]) -> Any:
    """Draw the curves of runs over steps, a panel for each metric, and return the figure; pyplot's backend and figures stay.

    Raises:
        ValueError: a run has no such metric, or seeds have no common range; the message names the runs.
    """
    # imported here: the import is slow, and only the end of a run needs it
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 0.6 + 3.2 * len(metrics)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(metrics), 1, sharex=True, squeeze=False)[:, 0]
    for axes, y in zip(panels, metrics, strict=True):
        for label, group in group_runs(runs).items():
            _draw_group(axes, label, group, y)
        axes.set_ylabel(y)
        axes.grid(alpha=0.3)
        axes.legend(loc="best", fontsize="small")
    panels[-1].set_xlabel("environment steps")
    return figure


def plot_learning_curve(metrics_jsonl: Path, output_png: Path) -> None:
    """Plot episodic reward and episode length over environment steps, of training and of evaluations, if an episode has ended.

    Raises:
        ValueError: the rows cannot be read.
        OSError: the picture cannot be written.
    """
    run = read_run(metrics_jsonl)
    names = ("episodic_reward", "eval/episodic_reward", "episode_length", "eval/episode_length")
    if known := [name for name in names if any(row.get(name) is not None for row in run.rows)]:
        save_figure(draw([run], known), output_png)


def save_figure(figure: Any, output: Path) -> None:
    """Write a figure, atomically, in the format that the file's name ends with; pixels are 120 per inch.

    Raises:
        OSError: the picture cannot be written; an older one is unchanged.
    """
    picture = io.BytesIO()
    figure.savefig(picture, format=output.suffix[1:].lower(), dpi=120)
    replace_file(output, picture.getvalue())


def _draw_group(axes: Any, label: str, runs: Sequence[Run], y: str) -> None:
    """Draw the mean of runs that differ only in their seed, and its band: of one run, the 95 % interval of evaluations."""
    curves = [curve(run, y) for run in runs]
    if max(each[0, 0] for each in curves) > min(each[0, -1] for each in curves):
        raise ValueError(f"the seeds have no common range of steps: {', '.join(str(run.path) for run in runs)}")
    places, mean, low, high = mean_and_band(curves)
    several = f" (n = {len(runs)})" if len(runs) > 1 else ""
    (line,) = axes.plot(places, mean, label=f"{label}{several}", marker="." if len(places) < 50 else "")
    if len(runs) == 1 and any(row.get(f"{y}_ci95") is not None for row in runs[0].rows):
        places, half_width = curve(runs[0], f"{y}_ci95")
        mean = np.interp(places, *curves[0])
        low, high = mean - half_width, mean + half_width
    axes.fill_between(places, low, high, color=line.get_color(), alpha=0.2, linewidth=0)


def curve(run: Run, y: str) -> Curve:
    """The values of a metric over steps. Evaluations are at the step of their checkpoint; of several there, the last counts.

    Raises:
        ValueError: the run has no such metric, or no value of it.
    """
    rows = _rows_with(run, y)
    at = [(y.startswith("eval/") and row.get("eval/step")) or row["step"] for row in rows]
    values = dict(zip(at, (row[y] for row in rows), strict=True))
    places = sorted(values)
    return np.array([places, [values[place] for place in places]], float)


def mean_and_band(curves: Sequence[Curve]) -> NDArray[np.float64]:
    """(4, n): places, mean, minimum and maximum over the range that all curves cover; a curve is linear between its points."""
    places = np.unique(np.concatenate([each[0] for each in curves]))
    places = places[(places >= max(each[0, 0] for each in curves)) & (places <= min(each[0, -1] for each in curves))]
    values = np.array([np.interp(places, *each) for each in curves])
    return np.array([places, values.mean(0), values.min(0), values.max(0)])


def _rows_with(run: Run, metric: str) -> list[dict[str, Any]]:
    """The rows that have a value of a metric."""
    names = dict.fromkeys(name for row in run.rows for name in row)
    if names and metric not in names:
        near = ", ".join(difflib.get_close_matches(metric, names, n=5, cutoff=0.0))
        raise ValueError(f"{metric} is no metric of {run.path}; the nearest of its {len(names)} are {near}")
    rows = [row for row in run.rows if row.get(metric) is not None]
    if not rows:
        raise ValueError(f"{run.path} has no value of {metric} yet")
    if not all(type(row[metric]) in (int, float) for row in rows):
        raise ValueError(f"{metric} of {run.path} is no metric that can be drawn: not all of it is numbers")
    return rows
