"""The learning curve of a run as a picture."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from enn_ppo.logger import read_metrics

__all__ = ["plot_learning_curve"]

_CURVES = {"episodic_reward": "episodic reward", "episode_length": "episode length (steps)"}


def plot_learning_curve(metrics_jsonl: Path, output_png: Path) -> None:
    """Draw episodic reward and episode length over environment steps.

    Updates in which no episode ended are left out. The picture is replaced in one move: no viewer sees half.

    Args:
        metrics_jsonl: the rows of a run, which may still be writing them.
        output_png: the picture.

    Raises:
        ValueError: the rows cannot be read.
    """
    rows = read_metrics(metrics_jsonl)
    figure = _figure(rows)
    aside = output_png.with_name(f".{output_png.name}.aside")
    try:
        figure.savefig(aside, format="png", dpi=120)
        os.replace(aside, output_png)
    except OSError:
        aside.unlink(missing_ok=True)
        raise


def _figure(rows: Sequence[dict[str, Any]]) -> Any:
    # Imported here because it takes long and only the end of a run needs it. Figure with its own canvas, and not
    # pyplot: a notebook or program that calls us keeps its backend and its current figure.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 5.5), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(_CURVES), 1, sharex=True)
    for axes, (key, label) in zip(panels, _CURVES.items(), strict=True):
        points = [(row["step"], row[key]) for row in rows if row.get(key) is not None]
        axes.plot([step for step, _ in points], [value for _, value in points], marker="." if len(points) < 50 else "")
        if not points:
            axes.text(0.5, 0.5, "no episode has ended yet", ha="center", va="center", transform=axes.transAxes)
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
    panels[-1].set_xlabel("environment steps")
    return figure
