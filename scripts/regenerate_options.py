"""Regenerate docs/options.md from the settings' docstrings.

python scripts/regenerate_options.py            # rewrite the page if it has changed
python scripts/regenerate_options.py --check    # write nothing: exit status 1 if the page is stale
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pages import regenerate

from enn_ppo.clone.config import CloneConfig
from enn_ppo.plot.config import PlotConfig
from enn_ppo.settings.command_line.options import Option, Section, sections_of
from enn_ppo.settings.config import EvalConfig, TrainConfig
from enn_ppo.settings.evaluation import WatchConfig
from enn_ppo.settings.serving import ServeConfig
from enn_ppo.sweep.config import SweepCommand

HEAD = """\
# Options

Every option of every command, made from the docstrings of the settings (`enn_ppo/settings/config.py`, `enn_ppo/settings/`,
`rogue_net/config.py` and others) by `python scripts/regenerate_options.py`. `--help` prints a shorter list with the values
that the other arguments give; `--cfg job` prints the values as YAML. In Python the options are arguments of the classes:
`TrainConfig(optim=OptimConfig(lr=1e-3))`.

- On the command line an option is `name=value`: `optim.lr=1e-3`. A wrong name or value ends the command with an error message
  before training begins.
- A group sets several options at once: `env=MineSweeper`, `experiment=quick`, `value_net=default`. A file of your own,
  `mine/net/large.yaml`, is selected by `--config-dir mine net=large`.
- Put arguments with characters that the shell interprets in single quotes: `'optim.lr=0.001@0 -> 0@1'`, `'env.info.x=[1,2]'`.
- A **schedule** is written as values over progress, joined by `->` (linear), `cos` (half a cosine) or `step` (a jump at the
  next point): `0@0 -> 0.001@0.1 cos 0.0001@1`. Progress is 0 at the start and 1 at the end of training: the larger fraction
  of `total_timesteps` and `max_train_seconds`. Before the first point and after the last the value is constant.
- `env.kwargs`, `env.info`, `eval.env_kwargs`, `env_kwargs` and `policies` accept any name below them:
  `env.kwargs.width=8 'env.info.num_mines={low: 1@0 -> 3@1, high: 8}'`.
- `null` means no value, a list is `[1,2]`, a mapping `{low: 1, high: 3}`; counts may be written as `1e6`.
"""


class Command(NamedTuple):
    """A command, and the class of its settings."""

    call: str
    does: str
    settings: type[Any]
    besides: type[Any] | None = None  # class of further settings, which another chapter documents


COMMANDS = (
    Command("python -m enn_ppo.train", "trains a policy.", TrainConfig),
    Command("python -m enn_ppo.eval", "plays episodes with a trained policy.", EvalConfig),
    Command(
        "python -m enn_ppo.watch",
        "shows episodes in the browser, with probabilities and attention: [replays.md](replays.md).",
        WatchConfig,
    ),
    Command(
        "python -m enn_ppo.clone",
        "trains a policy to imitate recordings. It also takes the options of train except `resume`: they apply to later\n"
        "training that starts from the clone.",
        CloneConfig,
        besides=TrainConfig,
    ),
    Command(
        "python -m enn_ppo.sweep",
        "searches for good settings. It also takes the options of train, for every trial.",
        SweepCommand,
    ),
    Command("python -m enn_ppo.serve checkpoint=outputs/my_run", "serves a policy to other programs.", ServeConfig),
    Command("python -m enn_ppo.plot run1 run2", "compares runs: curves in a picture, and a page.", PlotConfig),
)


def page() -> str:
    """The text of the page."""
    return "\n".join([HEAD, *(chapter(command) for command in COMMANDS)])


def chapter(command: Command) -> str:
    """The page's chapter about one command."""
    name = command.call.rpartition(".")[2].partition(" ")[0]
    parts = [f"## {name}\n\n`{command.call}` {command.does}\n"]
    optional: Section | None = None  # the outermost section that may be null
    for section in own_sections(command):
        if optional and section.path.startswith(optional.path + "."):
            continue  # listed with its parent section
        if section.optional:
            optional = section
            inside = [s for s in own_sections(command) if s.path.startswith(section.path)]
            parts.append(optional_table(section, [option for part in inside for option in part.options]))
        else:
            parts.append(
                f"### {section.path or 'Without a section'}\n\n{section.summary}\n\n{table(section.options)}\n"
            )
    return "\n".join(parts)


def own_sections(command: Command) -> list[Section]:
    """The sections and options that no other command's chapter documents."""
    elsewhere = sections_of(command.besides) if command.besides else []
    known = {option.name for section in elsewhere for option in section.options}
    sections = [
        section._replace(options=[option for option in section.options if option.name not in known])
        for section in sections_of(command.settings)
    ]
    return [section for section in sections if section.options]


def optional_table(section: Section, options: Sequence[Option]) -> str:
    """A section with the same settings as another section, by name only."""
    names = ", ".join(f"`{option.name}`" for option in options)
    like = section.path.replace("value_", "")
    return (
        f"### {section.path}\n\n{section.summary} `{section.path}=default` gives it the defaults of `{like}`, and\n"
        f"`{section.path}=none` takes it away. Then each as in `{like}`: {names}.\n"
    )


def table(options: Sequence[Option]) -> str:
    """One line for every option."""
    rows = [("Option", "Type", "Default", "Range", "Meaning"), ("---",) * 5]
    for option in options:
        default = f"`{option.default}`" if option.default else "required"
        rows.append((f"`{option.name}`", option.type, default, option.range, option.meaning))
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)


if __name__ == "__main__":
    raise SystemExit(regenerate("options.md", page, __doc__))
