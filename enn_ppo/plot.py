"""Comparing runs: their curves in one picture, runs that differ only in their seed as a band.

python -m enn_ppo.plot outputs/a outputs/b x=seconds y=episodic_reward,entropy smooth=0.6 output=comparison.png

Exit codes: 0 done, 2 a mistake of the user.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import yaml
from numpy.typing import NDArray

from enn_ppo.settings.schema import flatten, from_dict
from enn_ppo.tracking.curve import new_figure, save_figure
from enn_ppo.tracking.logger import read_metrics
from enn_ppo.tracking.run_dir import CONFIG, METRICS
from rogue_net.checks import check_choice, check_float

__all__ = ["PlotConfig", "plot"]

XAxis = Literal["step", "seconds", "updates"]
Band = Literal["minmax", "ci95", "std"]
Array = NDArray[np.float64]

USAGE = """\
python -m enn_ppo.plot RUN [RUN ...] [name=value ...]

RUN     a run directory, or its metrics.jsonl; runs that differ only in their seed become one line with a band
x       step, seconds (of training) or updates; default step
y       metrics of docs/metrics.md, with commas between them, a panel each; default episodic_reward
smooth  weight of the past in a moving average, from 0 (none) to below 1; default 0
band    minmax (all seeds lie inside), ci95 (95 % interval of the mean) or std; default minmax
output  default plot.png
"""

_X_LABELS: dict[XAxis, str] = {"step": "environment steps", "seconds": "seconds of training", "updates": "updates"}
_GRID = 300  # points of a band whose runs were not measured at the same places
# settings that say nothing about what is learned
_APART = ("seed", "run_dir", "resume", "overwrite", "debug", "record", "record_logits")
_APART_SECTIONS = ("logger.",)
# 97.5 % quantiles of Student's t with 1, 2, ... degrees of freedom; beyond them the normal distribution's will do
_T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


@dataclass(frozen=True, kw_only=True)
class PlotConfig:
    """Settings of a plot."""

    runs: tuple[str, ...]
    """Run directories, or files of metrics; at least one. Required."""
    x: XAxis = "step"
    """What runs to the right: environment steps, seconds of training, or updates. Default `step`."""
    y: tuple[str, ...] = ("episodic_reward",)
    """Metrics, a panel each. Default `episodic_reward`."""
    smooth: float = 0.0
    """Weight of the past in a moving average. At least 0, below 1; 0: as measured. Default 0."""
    band: Band = "minmax"
    """What the band about the mean of several seeds spans: from the least to the greatest, the 95 % interval of the mean
    (Student's t), or a standard deviation to each side. Default `minmax`."""
    output: str = "plot.png"
    """The picture. Default `plot.png`."""

    def __post_init__(self) -> None:
        if not self.runs:
            raise ValueError("give at least one run directory: python -m enn_ppo.plot outputs/my_run")
        check_choice("x", self.x, get_args(XAxis))
        check_choice("band", self.band, get_args(Band))
        check_float("smooth", self.smooth, 0, 1, open_high=True)
        if not self.y or not all(self.y):
            raise ValueError(f"y must name metrics, with commas between them, got {','.join(self.y)!r}")
        if not self.output.lower().endswith(".png"):
            raise ValueError(f"output must name a file that ends with .png, got {self.output!r}")


@dataclass(frozen=True)
class Run:
    """Metrics and settings of a run. Without a `config.yaml` the settings are empty."""

    path: Path
    rows: list[dict[str, Any]]
    settings: dict[str, Any]  # dotted name -> value, without what says nothing about what is learned


class Points(NamedTuple):
    """A curve."""

    x: Array  # (n,) rising
    y: Array  # (n,)


class Curve(NamedTuple):
    """The mean of some curves, and the band about it."""

    x: Array  # (n,)
    mean: Array  # (n,)
    low: Array  # (n,)
    high: Array  # (n,)


def plot(config: PlotConfig) -> Path:
    """Draw the curves; returns the picture's path.

    Raises:
        ValueError: a run or a metric does not exist, or the picture cannot be written.
    """
    runs = [read_run(Path(path)) for path in config.runs]
    groups = group_runs(runs)
    figure = new_figure(8, 0.6 + 3.2 * len(config.y))
    panels = figure.subplots(len(config.y), 1, sharex=True, squeeze=False)[:, 0]
    for axes, y in zip(panels, config.y, strict=True):
        for label, members in groups.items():
            _draw(axes, members, label, y, config)
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
    """Read a run's metrics and settings.

    Raises:
        ValueError: there is no such run; names the runs that are inside the folder.
    """
    file = path / METRICS if path.is_dir() else path
    if not file.exists():
        inside = sorted(str(each.parent) for each in path.glob(f"*/{METRICS}")) if path.is_dir() else []
        hint = f"; the runs inside are {' '.join(inside)}" if inside else ""
        problem = f"{path} is no run directory: it holds no {METRICS}{hint}" if path.is_dir() else f"there is no {path}"
        raise ValueError(problem)
    rows = read_metrics(file)
    if not rows:
        raise ValueError(f"{file} has no rows yet")
    return Run(file.parent, rows, _settings(file.with_name(CONFIG)))


def group_runs(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Put runs that differ only in their seed together, in the order in which they were given.

    Returns:
        label -> runs. The label says the settings that tell the groups apart, or the run's path where that does not.
    """
    groups: list[list[Run]] = []
    for run in runs:
        home = next((group for group in groups if run.settings and group[0].settings == run.settings), None)
        if home is None:
            groups.append([run])
        else:
            home.append(run)
    labelled: dict[str, list[Run]] = {}
    for group in groups:
        label = _label(group[0], [other[0] for other in groups])
        if label in labelled:  # the same settings without a file that says so
            label = f"{label} ({group[0].path})"
        labelled[label] = group
    return labelled


def points(run: Run, x: XAxis, y: str) -> Points:
    """The known values of a metric. Those of evaluations stand at the policy that was evaluated.

    Raises:
        ValueError: the run has no such metric, or no value of it.
    """
    names = dict.fromkeys(name for row in run.rows for name in row)
    if y not in names:
        near = ", ".join(difflib.get_close_matches(y, names, n=5, cutoff=0.0))
        raise ValueError(f"y={y} is no metric of {run.path}; the nearest of its {len(names)} are {near}")
    found = [row for row in run.rows if row.get(y) is not None]
    if not found:
        raise ValueError(f"{run.path} has no value of {y} yet")
    key = "eval/step" if y.startswith("eval/") else "step"
    by_step = {row.get(key, row["step"]): row[y] for row in found}  # a resumed run may evaluate a policy again
    steps = sorted(by_step)
    return Points(_along(run, x, np.array(steps, np.float64)), np.array([by_step[step] for step in steps], np.float64))


def smoothed(values: Array, weight: float) -> Array:
    """(n,) moving average that forgets: s_t = sum_i w^(t-i) v_i / sum_i w^(t-i) over i <= t. Weight 0 changes nothing."""
    averages = np.empty_like(values)
    total = norm = 0.0
    for t, value in enumerate(values):
        total, norm = weight * total + value, weight * norm + 1.0
        averages[t] = total / norm
    return averages


def mean_and_band(curves: Sequence[Points], band: Band) -> Curve:
    """The mean of several curves and the band about it, over what all of them cover.

    Between its points a curve is straight.

    Raises:
        ValueError: they have no common range.
    """
    first, last = max(curve.x[0] for curve in curves), min(curve.x[-1] for curve in curves)
    if first > last:
        raise ValueError(
            f"the seeds have no common range of x: one begins at {first:g}, and one ends at {last:g} before it"
        )
    same = all(np.array_equal(curve.x, curves[0].x) for curve in curves)
    grid = curves[0].x if same else np.linspace(first, last, _GRID)
    values = np.stack([np.interp(grid, curve.x, curve.y) for curve in curves])
    mean = values.mean(0)
    if band == "minmax" or len(curves) == 1:
        return Curve(grid, mean, values.min(0), values.max(0))
    spread = values.std(0, ddof=1)
    if band == "ci95":
        freedom = len(curves) - 1
        spread *= (_T[freedom - 1] if freedom <= len(_T) else 1.96) / np.sqrt(len(curves))
    return Curve(grid, mean, mean - spread, mean + spread)


def parse(arguments: Sequence[str]) -> PlotConfig:
    """The config from arguments without the program's name: `name=value`, and what exists or has no `=` is a run.

    Raises:
        ValueError: naming what cannot be understood.
    """
    runs: list[str] = []
    values: dict[str, Any] = {}
    for argument in arguments:
        given = re.fullmatch(r"(\w+)=(.*)", argument)
        if given and not Path(argument).exists():
            values[given[1]] = given[2]
        elif argument.startswith("-"):
            raise ValueError(f"{argument} is no option: settings look like x=seconds, and --help lists them")
        else:
            runs.append(argument)
    if "runs" in values:
        raise ValueError(f"runs={values['runs']}: run directories are given by themselves, without a name")
    if "y" in values:
        values["y"] = tuple(name.strip() for name in values["y"].split(","))
    return from_dict(PlotConfig, {**values, "runs": tuple(runs)})


def main(argv: Sequence[str] | None = None) -> int:
    """Draw what the arguments ask for; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if {"-h", "--help"} & set(arguments):
        print(USAGE, end="")
        return 0
    try:
        print(f"wrote {plot(parse(arguments))}")
    except ValueError as error:
        paragraph = " ".join(str(error).split())
        print(f"error: {paragraph}", file=sys.stderr)
        return 2
    return 0


def _settings(file: Path) -> dict[str, Any]:
    if not file.exists():
        return {}
    try:
        loaded = yaml.safe_load(file.read_text("utf-8"))
    except (OSError, UnicodeError, yaml.YAMLError) as error:
        raise ValueError(f"{file} cannot be read: {error}") from error
    settings = flatten(loaded) if isinstance(loaded, Mapping) else {}
    return {
        name: value for name, value in settings.items() if name not in _APART and not name.startswith(_APART_SECTIONS)
    }


def _label(run: Run, all_groups: Sequence[Run]) -> str:
    if not run.settings:
        return str(run.path)
    names = dict.fromkeys(name for group in all_groups if group.settings for name in group.settings)
    telling = [
        name
        for name in names
        if any(group.settings.get(name) != run.settings.get(name) for group in all_groups if group.settings)
    ]
    if "env.id" in telling:  # worlds have different arguments, which would only repeat it
        telling = [name for name in telling if not name.startswith("env.kwargs")]
    if len(telling) > 3:
        return str(run.path)
    shown = ", ".join(f"{name}={run.settings.get(name)}" for name in telling)
    return shown or str(run.settings.get("env.id", run.path))


def _along(run: Run, x: XAxis, steps: Array) -> Array:
    """(n,) places on the axis of environment steps `steps`, straight between updates."""
    if x == "step":
        return steps
    updates = [row for row in run.rows if row.get("seconds") is not None]  # evaluations alone have none
    at = [0.0, *(row["step"] for row in updates)]
    along = [0.0, *(row["seconds"] for row in updates)] if x == "seconds" else np.arange(len(at))
    return np.interp(steps, at, along)


def _draw(axes: Any, runs: Sequence[Run], label: str, y: str, config: PlotConfig) -> None:
    measured = [points(run, config.x, y) for run in runs]
    curves = [Points(each.x, smoothed(each.y, config.smooth)) for each in measured]
    try:
        curve = mean_and_band(curves, config.band)
    except ValueError as error:
        raise ValueError(f"{label}: {error} ({', '.join(str(run.path) for run in runs)})") from error
    if len(runs) > 1:
        label += f" (n = {len(runs)})"
    (line,) = axes.plot(curve.x, curve.mean, label=label, marker="." if len(curve.x) < 30 else "")
    if len(runs) > 1:
        axes.fill_between(curve.x, curve.low, curve.high, color=line.get_color(), alpha=0.2, linewidth=0)
    elif config.smooth > 0:
        axes.plot(measured[0].x, measured[0].y, color=line.get_color(), alpha=0.25, linewidth=1)
    elif any(row.get(f"{y}_ci95") is not None for row in runs[0].rows):
        interval = points(runs[0], config.x, f"{y}_ci95")
        centre = np.interp(interval.x, curve.x, curve.mean)
        low, high = centre - interval.y, centre + interval.y
        axes.fill_between(interval.x, low, high, color=line.get_color(), alpha=0.2, linewidth=0)


if __name__ == "__main__":
    raise SystemExit(main())
