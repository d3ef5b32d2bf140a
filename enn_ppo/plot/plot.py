"""Compare runs: learning curves in one picture.

Runs that differ only in their seed become one line with a band.

python -m enn_ppo.plot RUN [RUN ...] [name=value ...]
python -m enn_ppo.plot outputs/a outputs/b x=seconds y=episodic_reward,entropy smooth=0.6 output=comparison.svg

RUN     a run directory, or its metrics.jsonl
x       step, seconds (of training) or updates; default step.
y       metrics, separated by commas, a panel each; default episodic_reward
smooth  weight of the past in a moving average, from 0 (none) to below 1; default 0
band    minmax (all seeds lie inside), ci95 (95 % interval of the mean) or std; default minmax
output  file to write, .png, .svg or .pdf; default plot.png

Exit codes: 0 done, 2 a mistake of the user.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from enn_ppo.plot.config import PlotConfig
from enn_ppo.plot.curves import draw
from enn_ppo.plot.runs import group_runs, read_run
from enn_ppo.settings.schema import from_dict
from enn_ppo.training.tracking.curve import save_figure
from entity_gym.errors import shortened
from entity_gym.output import accept_all_characters


def plot(config: PlotConfig) -> Path:
    """Write the picture; returns its path.

    Raises:
        ValueError: a run or a metric does not exist, or the file cannot be written.
    """
    figure, output = draw(group_runs([read_run(Path(path)) for path in config.runs]), config), Path(config.output)
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
    if options := [argument for argument in arguments if argument.startswith("-")]:
        raise ValueError(f"{options[0]} is no option: settings look like x=seconds, and --help lists them")
    if "runs" in values:
        raise ValueError(f"runs={values['runs']}: run directories are given by themselves, without a name")
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
    try:
        print("wrote", plot(parse(arguments)))
    except (ValueError, OSError) as error:
        print("error:", shortened(" ".join(str(error).split())), file=sys.stderr)
        return 2
    return 0
