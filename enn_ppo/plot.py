"""Compare runs: learning curves in one picture.

Runs that differ only in their seed become one line, their mean, with a band from the lowest to the highest.

python -m enn_ppo.plot RUN [RUN ...] [name=value ...]
python -m enn_ppo.plot outputs/a outputs/b y=episodic_reward,entropy output=comparison.svg

RUN     a run directory, or its metrics.jsonl
y       metrics, separated by commas, a panel each; default episodic_reward
output  file to write, .png, .svg, .pdf or another format of matplotlib; default plot.png

Exit codes: 0 done, 2 a mistake of the user.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from enn_ppo.settings.command_line.mistakes import guarded
from enn_ppo.settings.schema import from_dict
from enn_ppo.training.tracking.curves import draw, read_run, save_figure
from enn_ppo.training.tracking.run_dir import METRICS
from entity_gym.output import accept_all_characters
from rogue_net.checks import check_fields


@dataclass(frozen=True, kw_only=True)
class PlotConfig:
    """Settings of a comparison of runs."""

    runs: tuple[str, ...]
    """Run directories, or files of metrics; at least one."""
    y: tuple[str, ...] = ("episodic_reward",)
    """Metrics, a panel each."""
    output: str = "plot.png"
    """File to write: a picture of the curves, whose ending is a format of matplotlib: `.png`, `.svg`, `.pdf` and others."""

    def __post_init__(self) -> None:
        if not self.runs:
            raise ValueError("give at least one run directory: python -m enn_ppo.plot outputs/my_run")
        check_fields(self)


def plot(config: PlotConfig) -> Path:
    """Write the picture; returns its path.

    Raises:
        ValueError: a run or a metric does not exist, or the file cannot be written.
    """
    runs = [read_run(path / METRICS if path.is_dir() else path) for path in map(Path, config.runs)]
    figure, output = draw(runs, config.y), Path(config.output)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        save_figure(figure, output)
    except OSError as error:
        raise ValueError(f"output {output} cannot be written: {error}") from error
    return output


def parse(arguments: Sequence[str]) -> PlotConfig:
    """Parse arguments without the program's name: `name=value` is a setting; existing paths and arguments without `=` are runs.

    Raises:
        ValueError: an argument is invalid; the message names it.
    """
    runs = tuple(argument for argument in arguments if "=" not in argument or Path(argument).exists())
    values: dict[str, Any] = dict(argument.split("=", 1) for argument in arguments if argument not in runs)
    if "y" in values:
        values["y"] = tuple(each.strip() for each in values["y"].split(","))
    return from_dict(PlotConfig, {**values, "runs": runs})


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    accept_all_characters()
    arguments = list(sys.argv[1:] if argv is None else argv)
    if {"-h", "--help"} & set(arguments):
        print(__doc__, end="")
        return 0
    return guarded(lambda: print("wrote", plot(parse(arguments))), PlotConfig)


if __name__ == "__main__":
    raise SystemExit(main())
