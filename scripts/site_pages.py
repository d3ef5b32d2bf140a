"""Hook of MkDocs: makes the pages that are not in docs/.

Options and worlds are written down in the code, so their pages are made of it whenever the site is built: run
`make docs`. Pages of the repository's root (ARCHITECTURE.md and others) become pages of the site; their links are written for
readers of the repository, and the site has all pages in one folder.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from enn_ppo.clone.config import CloneConfig
from enn_ppo.plot import PlotConfig
from enn_ppo.settings.config import EvalConfig, TrainConfig
from enn_ppo.settings.evaluation import WatchConfig
from enn_ppo.settings.options import Option, options_of
from enn_ppo.settings.serving import ServeConfig
from enn_ppo.sweep.config import SweepCommand
from entity_gym.registry import bind, list_envs

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).resolve().parents[1]
ROOT_PAGES = {f"{name}.md": f"{name.lower()}.md" for name in ("ARCHITECTURE", "CHANGELOG", "CONTRIBUTING", "SECURITY")}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, and those of the root."""
    from mkdocs.structure.files import File

    made = {"options.md": options_page(), "environments.md": environments_page()}
    for name, page in ROOT_PAGES.items():
        made[page] = re.sub(r"\]\(docs/", "](", (ROOT / name).read_text(encoding="utf-8"))
    for page, text in made.items():
        files.append(File.generated(config, page, content=links_inside(text, "")))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Point links that leave docs/ to the pages of the site."""
    return links_inside(markdown, "../")


def links_inside(text: str, before: str) -> str:
    """Replace links to pages of the root; `before` is what precedes their names."""
    for name, page in ROOT_PAGES.items():
        text = re.sub(rf"\]\({re.escape(before + name)}(?=[)#])", f"]({page}", text)
    return text


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown; its cells may contain `|`."""
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


# --- Options

OPTIONS_HEAD = """\
# Options

Every option of every command. `--help` prints a shorter list with the values that the other arguments give; `--cfg job`
prints the values as YAML. In Python the options are arguments of the classes: `TrainConfig(optim=OptimConfig(lr=1e-3))`.

- On the command line an option is `name=value`: `optim.lr=1e-3`. A wrong name or value ends the command with an error message
  before training begins; `HYDRA_FULL_ERROR=1` before the command adds the traceback.
- A group sets several options at once: `env=MineSweeper`, `experiment=quick`, `value_net=default`. A file of your own,
  `mine/net/large.yaml`, is added by `--config-dir mine +net=large`.
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
        "shows episodes in the browser, with probabilities and attention: [replays](replays.md).",
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
        "searches for good settings. It also takes the options of train except `resume`, for every trial.",
        SweepCommand,
        besides=TrainConfig,
    ),
    Command("python -m enn_ppo.serve checkpoint=outputs/my_run", "serves a policy to other programs.", ServeConfig),
    Command("python -m enn_ppo.plot run1 run2", "compares runs: curves in a picture.", PlotConfig),
)


def options_page() -> str:
    """The page of all options, made of the docstrings of the settings."""
    return "\n".join([OPTIONS_HEAD, *(chapter(command) for command in COMMANDS)])


def chapter(command: Command) -> str:
    """The page's chapter about one command: a table for each section, without the options of another command's chapter."""
    name = command.call.rpartition(".")[2].partition(" ")[0]
    parts = [f"## {name}\n\n`{command.call}` {command.does}\n"]
    known = {option.name for option in options_of(command.besides)} - {""} if command.besides else set()
    options = [option for option in options_of(command.settings) if option.name not in known]
    optional: Option | None = None  # the outermost section that may be null
    for head in (option for option in options if option.type.startswith("section")):
        if optional and head.name.startswith(f"{optional.name}."):
            continue  # listed with its parent section
        if head.type == "section or null":
            optional = head
            parts.append(optional_section(head, [each for each in options if each.name.startswith(f"{head.name}.")]))
        elif own := [
            each for each in options if each.name.rpartition(".")[0] == head.name and each.type[:7] != "section"
        ]:
            parts.append(f"### {head.name or 'Without a section'}\n\n{head.meaning}\n\n{options_table(own)}\n")
    return "\n".join(parts)


def optional_section(section: Option, options: Sequence[Option]) -> str:
    """A section with the same settings as another section, by name only."""
    names = ", ".join(f"`{option.name}`" for option in options if not option.type.startswith("section"))
    like = section.name.replace("value_", "")
    return (
        f"### {section.name}\n\n{section.meaning} `{section.name}=default` gives it the defaults of `{like}`, and\n"
        f"`{section.name}=none` takes it away. Then each as in `{like}`: {names}.\n"
    )


def options_table(options: Sequence[Option]) -> str:
    """One line for every option."""
    rows = [(f"`{o.name}`", o.type, f"`{o.default}`" if o.default else "required", o.range, o.meaning) for o in options]
    return table(("Option", "Type", "Default", "Range", "Meaning"), rows)


# --- Worlds

SECTIONS = tuple(f"**{title}.**" for title in ("Observation", "Actions", "Reward", "End", "Best score"))
COLUMNS = 5  # of the table of pictures
ENVIRONMENTS_HEAD = """\
# Environments

The worlds that come with the package, by their names in `env=` and `make`. All are compiled, seeded and drawn by `render`. Each
picture shows a policy that was trained with the world's preset for a few minutes on one core (`python scripts/pictures.py`;
PickMatchingBalls with `one_hot` and `randomize`). [Benchmarks](benchmarks.md#presets) has the scores of the presets.

The text is the contract of each world, from its docstring in `entity_gym/envs/`. The order of events in a step and the ranges
of parameters are in the docstrings alone.
"""


def environments_page() -> str:
    """The page of all worlds, made of their docstrings and declarations."""
    names = list_envs()
    cells = [f"[{' '.join([*picture(name), name])}](#{name.lower()})" for name in names]
    cells += [""] * (-len(cells) % COLUMNS)
    rows = [f"| {' | '.join(cells[i : i + COLUMNS])} |" for i in range(0, len(cells), COLUMNS)]
    gallery = "\n".join([rows[0], "|---" * COLUMNS + "|", *rows[1:]]) + "\n"
    return "\n".join([ENVIRONMENTS_HEAD, gallery, *map(world, names)])


def world(name: str) -> str:
    """The page's section about one world: its contract, parameters, and the score at which it is solved."""
    cls = type(bind(name))
    paragraphs = (inspect.getdoc(cls) or "").split("\n\n")
    first = next((i for i, text in enumerate(paragraphs) if text.startswith("**")), len(paragraphs))
    summary = [text for text in paragraphs[:first] if not text.startswith(("Args:", "Raises:"))]
    contract = [text for text in paragraphs[first:] if text.startswith((*SECTIONS, "|"))]  # tables too
    values = {**cls.parameters, "max_steps": cls.max_steps}
    parameters = ", ".join(f"`{parameter}={value!r}`" for parameter, value in values.items())
    solved = "" if cls.reward_threshold is None else f" Solved at a mean of {cls.reward_threshold:g}."
    parts = [f"## {name}", *picture(name), *summary, *contract, f"Parameters: {parameters}.{solved}"]
    return "\n\n".join(parts) + "\n"


def picture(name: str) -> list[str]:
    """The picture of a world, where scripts/pictures.py has made one."""
    file = f"images/worlds/{name}.gif"
    return [f"![{name}, played by a trained policy]({file})"] if (ROOT / "docs" / file).exists() else []
