"""The page of a comparison: results, curves and the settings that differ, in one HTML file without scripts or other files."""

from __future__ import annotations

import html
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pandas as pd

from enn_ppo.plot.config import Band, PlotConfig, XAxis
from enn_ppo.plot.curves import Line, line_of_group, t_quantile
from enn_ppo.plot.picture import X_LABELS
from enn_ppo.plot.runs import Run, differing_settings
from enn_ppo.training.files import replace_file

__all__ = ["write_page"]

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 300, 62, 24, 12, 40  # pixels of a panel, and of its margins
MOST_POINTS = 400  # of a line
LONGEST_TEXT = 80  # characters of a name or value
FINAL_ROWS = 10  # rows of metrics that the final value of a run averages

#: Of lines, on a light and on a dark page; from the ninth line on they repeat, dashed.
COLOURS = (
    ("#2767b0", "#7db4f2"),
    ("#b8500f", "#f0a06a"),
    ("#1b7f53", "#62cfa0"),
    ("#8a3fa8", "#cd93e6"),
    ("#b02a4c", "#f08aa3"),
    ("#6b5a10", "#d8c25a"),
    ("#127a8a", "#66c9d9"),
    ("#5a5f6b", "#b9bfcc"),
)

_BANDS: dict[Band, str] = {
    "minmax": "from the least to the greatest seed",
    "ci95": "95 % interval of the mean",
    "std": "one standard deviation to each side",
}

_STYLE = """
:root { color-scheme: light dark; --page: #fff; --text: #23252b; --soft: #63666f; --line: #d5d7dd; LIGHT }
@media (prefers-color-scheme: dark) {
  :root { --page: #16181d; --text: #e8e9ec; --soft: #a3a7b0; --line: #3b3f49; DARK }
}
body { margin: 2em auto; max-width: 60em; padding: 0 1em; background: var(--page); color: var(--text) }
body { font: 15px/1.45 system-ui, sans-serif }
h1 { font-size: 1.5em } h2 { font-size: 1.15em; margin: 2em 0 .6em } h3 { font-size: 1em; margin: 1em 0 .3em }
p { color: var(--soft); margin: .4em 0 }
.wide { overflow-x: auto } table { border-collapse: collapse; font-size: 14px }
th, td { text-align: left; padding: .35em 1.2em .35em 0; border-bottom: 1px solid var(--line); vertical-align: top }
td { font-variant-numeric: tabular-nums; overflow-wrap: anywhere; min-width: 3em }
th { color: var(--soft); font-weight: 600 }
a { color: var(--c0) } label { margin-right: 1.2em } .panels { display: none }
svg { display: block; width: 100%; height: auto } svg text { fill: var(--soft); font-size: 12px }
svg .grid { stroke: var(--line); fill: none } svg .band { stroke: none; opacity: .18 }
svg .mean { fill: none; stroke-width: 1.8 } svg .measured { fill: none; opacity: .35 }
.swatch { display: inline-block; width: 1.6em; height: .7em; margin-right: .5em; border-radius: 2px }
"""


def write_page(groups: Mapping[str, Sequence[Run]], config: PlotConfig, output: Path) -> None:
    """Write the page, atomically. Links to replays are relative to its folder.

    Raises:
        ValueError: a run has no such metric.
        OSError: the file cannot be written.
    """
    replace_file(output, _page(groups, config, output.parent).encode())


def _page(groups: Mapping[str, Sequence[Run]], config: PlotConfig, folder: Path) -> str:
    runs = [run for members in groups.values() for run in members]
    title = "Comparison of one run" if len(runs) == 1 else f"Comparison of {len(runs)} runs"
    parts = [
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>',
        f'<meta name="viewport" content="width=device-width"><style>{_style()}</style></head><body><h1>{title}</h1>',
        f"<h2>Results</h2><p>Mean of the last {FINAL_ROWS} values of each run. With several seeds: their mean, and the "
        f"95 % interval of the mean.</p>{_results(groups, config.y)}",
        f"<h2>Curves</h2>{_curves(groups, config)}",
        f"<h2>Runs</h2><p>With the settings that differ.</p>{_runs(groups, config.y, folder)}</body></html>\n",
    ]
    return "\n".join(parts)


def _style() -> str:
    light, dark = (" ".join(f"--c{i}: {pair[mode]};" for i, pair in enumerate(COLOURS)) for mode in (0, 1))
    shown = "".join(f"#x-{x}:checked ~ .panels.{x} {{ display: block }}\n" for x in X_LABELS)
    return _STYLE.replace("LIGHT", light).replace("DARK", dark) + shown


# ---- Tables


def _results(groups: Mapping[str, Sequence[Run]], metrics: Sequence[str]) -> str:
    rows = []
    for place, (label, runs) in enumerate(groups.items()):
        finals = [_mean_of_seeds([_final(run, metric) for run in runs]) for metric in metrics]
        rows.append([_swatch(place) + _text(label), _number(len(runs)), *finals])
    return _table(["settings", "runs", *metrics], rows)


def _runs(groups: Mapping[str, Sequence[Run]], metrics: Sequence[str], folder: Path) -> str:
    names = differing_settings([run for runs in groups.values() for run in runs])
    evaluated = any("eval/episodic_reward" in run.metrics for runs in groups.values() for run in runs)
    rows = []
    for place, runs in enumerate(groups.values()):
        for run in runs:
            row = [_swatch(place) + _text(run.path), _text(run.seed)]
            row += [_text(run.settings.get(name, "")) for name in names]
            row += [_number(_last(run, "step")), _number(_last(run, "seconds"))]
            row += [_number(_final(run, metric)) for metric in metrics]
            row += [_evaluation(run)] if evaluated else []
            rows.append([*row, _replay(run, folder)])
    evaluation = ["last evaluation"] if evaluated else []
    return _table(["run", "seed", *names, "steps", "seconds", *metrics, *evaluation, "replay"], rows)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells are HTML, names of columns are text."""
    head = "".join(f"<th>{_text(name)}</th>" for name in header)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def _text(value: object) -> str:
    """A name or value of a run, which may be anything, as text: cut, and with its own direction of writing."""
    text = str(value)
    short = text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 1]}…"
    return f"<bdi>{html.escape(short)}</bdi>"


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:,.4g}"


def _mean_of_seeds(values: Sequence[float]) -> str:
    """The mean over seeds, with the half-width of its 95 % interval where there are several."""
    known = np.array([value for value in values if math.isfinite(value)])
    if len(known) < 2:
        return _number(float(known[0]) if len(known) else math.nan)
    half_width = known.std(ddof=1) / len(known) ** 0.5 * t_quantile(len(known) - 1)
    return f"{_number(float(known.mean()))} ± {half_width:.2g}"


def _values(run: Run, metric: str) -> pd.Series:
    """The finite values of a metric, in the order of rows."""
    column = pd.to_numeric(run.metrics.get(metric, pd.Series(dtype=float)), errors="coerce")
    return column[np.isfinite(column)]


def _last(run: Run, metric: str) -> float:
    values = _values(run, metric)
    return float(values.iloc[-1]) if len(values) else math.nan


def _final(run: Run, metric: str) -> float:
    values = _values(run, metric)
    return float(values.iloc[-FINAL_ROWS:].mean()) if len(values) else math.nan


def _evaluation(run: Run) -> str:
    half_width = _last(run, "eval/episodic_reward_ci95")
    mean = _number(_last(run, "eval/episodic_reward"))
    return f"{mean} ± {half_width:.2g}" if math.isfinite(half_width) else mean


def _replay(run: Run, folder: Path) -> str:
    """A link to the newest replay of a run."""
    names = (re.fullmatch(r"(?:step|watched)_(\d{12,})\.html", each.name) for each in run.path.glob("replays/*.html"))
    newest = max(filter(None, names), key=lambda name: int(name[1]), default=None)
    if newest is None:
        return "-"
    file = os.path.relpath(run.path / "replays" / newest[0], folder)
    address = quote(file.replace(os.sep, "/"))
    return f'<a href="./{html.escape(address)}">step {int(newest[1]):,}</a>'


# ---- Curves


def _curves(groups: Mapping[str, Sequence[Run]], config: PlotConfig) -> str:
    """Panels over each horizontal axis, a switch between them, and the legend."""
    switch, panels = [], []
    for x, label in X_LABELS.items():
        try:
            drawn = "".join(_panel(groups, x, y, config) for y in config.y)
        except ValueError as error:
            if x == config.x:
                raise
            drawn = f"<p>{_text(error)}</p>"
        checked = " checked" if x == config.x else ""
        switch.append(f'<input type="radio" name="x" id="x-{x}"{checked}> <label for="x-{x}">{label}</label>')
        panels.append(f'<div class="panels {x}">{drawn}</div>')
    legend = "".join(f"<div>{_swatch(place)}{_text(label)}</div>" for place, label in enumerate(groups))
    several = any(len(runs) > 1 for runs in groups.values())
    about = f"<p>Line: mean of the seeds. Band: {_BANDS[config.band]}.</p>" if several else ""
    return f"{about}{legend}<div>{''.join(switch)}{''.join(panels)}</div>"


def _panel(groups: Mapping[str, Sequence[Run]], x: XAxis, y: str, config: PlotConfig) -> str:
    lines = [line_of_group(label, runs, x, y, config) for label, runs in groups.items()]
    scale = _Scale.of(lines)
    drawn = "".join([scale.grid(X_LABELS[x]), *(_drawn(line, i, scale) for i, line in enumerate(lines))])
    return f'<h3>{_text(y)}</h3><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{drawn}</svg>'


@dataclass(frozen=True)
class _Scale:
    """Positions of a panel's numbers, in pixels. The horizontal axis begins at 0."""

    right: float
    low: float
    high: float

    @staticmethod
    def of(lines: Sequence[Line]) -> _Scale:
        numbers = np.concatenate([line.band.to_numpy(float).ravel() for line in lines])
        low, high = float(numbers.min()), float(numbers.max())
        margin = 0.05 * (high - low) or abs(high) or 1.0
        right = max(float(line.band.index[-1]) for line in lines)
        return _Scale(right if right > 0 else 1.0, low - margin, high + margin)

    def x(self, number: float) -> float:
        return LEFT + number / self.right * (WIDTH - LEFT - RIGHT)

    def y(self, number: float) -> float:
        return TOP + (self.high - number) / (self.high - self.low) * (HEIGHT - TOP - BOTTOM)

    def points(self, values: pd.Series) -> list[str]:
        """At most `MOST_POINTS` of a curve, evenly chosen, first and last included: `x,y` in pixels."""
        values = values.dropna()
        chosen = np.unique(np.linspace(0, len(values) - 1, min(len(values), MOST_POINTS)).round().astype(int))
        return [f"{self.x(at):.1f},{self.y(value):.1f}" for at, value in values.iloc[chosen].items()]

    def grid(self, label: str) -> str:
        """Lines at round numbers, with these numbers, and the name of the horizontal axis."""
        from matplotlib.ticker import MaxNLocator  # imported here: the import is slow

        drawn, locator = [], MaxNLocator(6)
        for number in (each for each in locator.tick_values(self.low, self.high) if self.low <= each <= self.high):
            y = self.y(number)
            drawn.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
            drawn.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{number:,.6g}</text>')
        for number in (each for each in locator.tick_values(0, self.right) if 0 <= each <= self.right):
            x = self.x(number)
            drawn.append(f'<path class="grid" d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}"/>')
            drawn.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{number:,.10g}</text>')
        middle = (LEFT + WIDTH - RIGHT) / 2
        return f'{"".join(drawn)}<text x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">{label}</text>'


def _drawn(line: Line, place: int, scale: _Scale) -> str:
    colour = f"var(--c{place % len(COLOURS)})"
    dashed = ' stroke-dasharray="6 4"' if place >= len(COLOURS) else ""
    around = scale.points(line.band["high"]) + scale.points(line.band["low"])[::-1]
    drawn = [f'<polygon class="band" style="fill: {colour}" points="{" ".join(around)}"/>']
    if line.measured is not None:
        points = " ".join(scale.points(line.measured))
        drawn.append(f'<polyline class="measured" style="stroke: {colour}" points="{points}"/>')
    mean = " ".join(scale.points(line.band["mean"]))
    title = f"<title>{html.escape(line.label[:LONGEST_TEXT])}</title>"
    drawn.append(f'<polyline class="mean" style="stroke: {colour}"{dashed} points="{mean}">{title}</polyline>')
    return "".join(drawn)


def _swatch(place: int) -> str:
    """The colour of a group."""
    dashed = "background: repeating-linear-gradient(90deg, {0} 0 6px, transparent 6px 10px)"
    plain = "background: {0}"
    style = (dashed if place >= len(COLOURS) else plain).format(f"var(--c{place % len(COLOURS)})")
    return f'<span class="swatch" style="{style}"></span>'
