"""Settings of a comparison of runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rogue_net.checks import HalfOpenUnitInterval, check_fields

XAxis = Literal["step", "seconds", "updates"]
Band = Literal["minmax", "ci95", "std"]


@dataclass(frozen=True, kw_only=True)
class PlotConfig:
    """Settings of a comparison of runs."""

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
    """File to write: a picture of the curves, `.png`, `.svg` or `.pdf`."""

    def __post_init__(self) -> None:
        if not self.runs:
            raise ValueError("give at least one run directory: python -m enn_ppo.plot outputs/my_run")
        check_fields(self)
        if not self.y or not all(self.y):
            raise ValueError(f"y must name metrics, with commas between them, got {','.join(self.y)!r}")
        if not self.output.lower().endswith((".png", ".svg", ".pdf")):
            raise ValueError(f"output must name a file that ends with .png, .svg or .pdf, got {self.output!r}")
