"""The picture of a comparison: a panel for each metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from enn_ppo.plot.config import PlotConfig, XAxis
from enn_ppo.plot.curves import line_of_group
from enn_ppo.plot.runs import Run
from enn_ppo.training.tracking.curve import new_figure, save_figure

__all__ = ["X_LABELS", "write_picture"]

X_LABELS: dict[XAxis, str] = {"step": "environment steps", "seconds": "seconds of training", "updates": "updates"}


def write_picture(groups: Mapping[str, Sequence[Run]], config: PlotConfig, output: Path) -> None:
    """Draw the curves of groups of runs over `config.x` into a PNG.

    Raises:
        ValueError: a run has no such metric.
        OSError: the file cannot be written.
    """
    figure = new_figure(8, 0.6 + 3.2 * len(config.y))
    panels = figure.subplots(len(config.y), 1, sharex=True, squeeze=False)[:, 0]
    for axes, y in zip(panels, config.y, strict=True):
        for label, runs in groups.items():
            line = line_of_group(label, runs, config.x, y, config)
            mean = line.band["mean"]
            (drawn,) = axes.plot(mean.index, mean, label=line.label, marker="." if len(mean) < 30 else "")
            if line.measured is not None:
                axes.plot(line.measured.index, line.measured, color=drawn.get_color(), alpha=0.25, linewidth=1)
            axes.fill_between(
                mean.index, line.band["low"], line.band["high"], color=drawn.get_color(), alpha=0.2, linewidth=0
            )
        axes.set_ylabel(y)
        axes.grid(alpha=0.3)
        axes.legend(loc="best", fontsize="small")
    panels[-1].set_xlabel(X_LABELS[config.x])
    save_figure(figure, output)
