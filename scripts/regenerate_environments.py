"""Regenerate docs/environments.md from the docstrings and declarations of the package's environments.

python scripts/regenerate_environments.py            # rewrite the page if it has changed
python scripts/regenerate_environments.py --check    # write nothing: exit status 1 if the page is stale
"""

from __future__ import annotations

import inspect

from pages import DOCS, regenerate

from entity_gym.compiled import CompiledEnvironment
from entity_gym.registry import list_envs, look_up

SECTIONS = ("Observation", "Actions", "Reward", "End", "Best score")
COLUMNS = 5  # of the table of pictures
HEAD = """\
# Environments

The worlds that come with the package, by their names in `env=` and `make`. All are compiled, seeded and drawn by `render`. Each
picture shows a policy that was trained with the world's preset for a few minutes on one core (`python scripts/gallery.py`;
PickMatchingBalls with `one_hot` and `randomize`).

The text is the contract of each world, from its docstring in `entity_gym/envs/`, by `python scripts/regenerate_environments.py`.
The order of events in a step and the ranges of parameters are in the docstrings alone.
"""


def page() -> str:
    """The text of the page."""
    return "\n".join([HEAD, gallery(list_envs()), *(section(name) for name in list_envs())])


def gallery(names: list[str]) -> str:
    """The pictures of all worlds as a table, each a link to its section."""
    cells = [f"[{' '.join([*picture(name), name])}](#{name.lower()})" for name in names]
    cells += [""] * (-len(cells) % COLUMNS)
    rows = [f"| {' | '.join(cells[i : i + COLUMNS])} |" for i in range(0, len(cells), COLUMNS)]
    return "\n".join([rows[0], "|---" * COLUMNS + "|", *rows[1:]]) + "\n"


def section(name: str) -> str:
    """The page's section about one environment."""
    cls: type[CompiledEnvironment] = look_up(name).load()
    paragraphs = (inspect.getdoc(cls) or "").split("\n\n")
    titles = [f"**{title}.**" for title in SECTIONS]
    first = next((i for i, text in enumerate(paragraphs) if text.startswith("**")), len(paragraphs))
    summary = [text for text in paragraphs[:first] if not text.startswith(("Args:", "Raises:"))]
    chosen = [text for text in paragraphs[first:] if text.startswith((*titles, "|"))]  # tables too
    return "\n\n".join([f"## {name}", *picture(name), *summary, *chosen, settings(cls)]) + "\n"


def picture(name: str) -> list[str]:
    """The picture of a world, where scripts/gallery.py has made one."""
    file = DOCS / "images" / "worlds" / f"{name}.gif"
    if not file.exists():
        return []
    return [f"![{name}, played by a trained policy]({file.relative_to(DOCS).as_posix()})"]


def settings(cls: type[CompiledEnvironment]) -> str:
    """Parameters with their defaults, the step limit, and the score that counts as solved."""
    parameters = ", ".join(
        f"`{name}={value!r}`" for name, value in {**cls.parameters, "max_steps": cls.max_steps}.items()
    )
    solved = "" if cls.reward_threshold is None else f" Solved at a mean of {cls.reward_threshold:g}."
    return f"Parameters: {parameters}.{solved}"


if __name__ == "__main__":
    raise SystemExit(regenerate("environments.md", page, __doc__))
