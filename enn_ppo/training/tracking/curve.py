"""The learning curve of a run as a picture."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from enn_ppo.training.files import replace_file
from enn_ppo.training.tracking.logger import read_metrics

__all__ = ["new_figure", "plot_learning_curve", "save_figure"]

_CURVES = {"episodic_reward": "episodic reward", "episode_length": "episode length (steps)"}


def plot_learning_curve(metrics_jsonl: Path, output_png: Path) -> None:
    """Plot episodic reward and episode length over environment steps, and evaluations with 95 % intervals.

    Updates in which no episode ended are left out. The file is replaced atomically.

    Args:
        metrics_jsonl: metrics of a run, which may be running.
        output_png: the file to write.

    Raises:
        ValueError: the rows cannot be read.
        OSError: the picture cannot be written.
    """
    save_figure(_figure(read_metrics(metrics_jsonl)), output_png)


def new_figure(width: float, height: float) -> Any:
    """A matplotlib figure of `width` by `height` inches, not registered in pyplot, whose backend and current figure stay."""
    # imported here: the import is slow, and only the end of a run needs it
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Any, output: Path) -> None:
    """Write a figure, atomically, in the format that the file's name ends with; pixels are 120 per inch.

    Raises:
        OSError: the picture cannot be written; an older one is unchanged.
    """
    picture = io.BytesIO()
    figure.savefig(picture, format=output.suffix[1:].lower(), dpi=120)
    replace_file(output, picture.getvalue())


def _figure(rows: Sequence[dict[str, Any]]) -> Any:
    figure = new_figure(7, 5.5)
    panels = figure.subplots(len(_CURVES), 1, sharex=True)
    for axes, (key, label) in zip(panels, _CURVES.items(), strict=True):
        points = [(row["step"], row[key]) for row in rows if row.get(key) is not None]
        marker = "." if len(points) < 50 else ""
        axes.plot([step for step, _ in points], [value for _, value in points], marker=marker, label="training")
        evaluated = [row for row in rows if row.get(f"eval/{key}") is not None]
        if evaluated:
            _draw_evaluations(axes, evaluated, f"eval/{key}")
        elif not points:
            axes.text(0.5, 0.5, "no episode has ended yet", ha="center", va="center", transform=axes.transAxes)
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
    panels[-1].set_xlabel("environment steps")
    return figure


def _draw_evaluations(axes: Any, rows: Sequence[dict[str, Any]], key: str) -> None:
    """Draw evaluations at the steps of their checkpoints; the error bar is 0 without a confidence interval."""
    by_step = {row.get("eval/step", row["step"]): row for row in rows}  # a resumed run may evaluate a policy again
    steps = sorted(by_step)
    axes.errorbar(
        steps,
        [by_step[step][key] for step in steps],
        yerr=[by_step[step].get(f"{key}_ci95") or 0.0 for step in steps],
        fmt="o-",
        capsize=3,
        label="evaluation, 95 %",
    )
    axes.legend(loc="best")
