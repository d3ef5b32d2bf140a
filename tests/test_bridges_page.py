"""The Python of docs/bridges.md runs as written."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
import yaml

from entity_gym.bridges.views import EntityView, View, included_views, view_mapping

PAGE = Path(__file__).parents[1] / "docs/bridges.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.parametrize(
    ("block", "libraries"),
    [
        (BLOCKS[0], ["gymnasium"]),
        (BLOCKS[1], ["gymnasium"]),
        (BLOCKS[2], ["gymnasium"]),
        (BLOCKS[3], ["stable_baselines3"]),
        (BLOCKS[4], ["gymnasium"]),
        (BLOCKS[5], ["pettingzoo", "pygame"]),
    ],
    ids=["from Gymnasium", "episodes", "views", "to Gymnasium", "measured room", "PettingZoo"],
)
def test_what_the_page_shows_runs(block: str, libraries: list[str]) -> None:
    for library in libraries:
        pytest.importorskip(library)
    exec(compile(block, str(PAGE), "exec"), {"__name__": "page"})


def test_every_block_is_run() -> None:
    assert len(BLOCKS) == 6


def test_the_page_has_the_view_that_comes_with_the_package_and_names_them_all() -> None:
    text = PAGE.read_text(encoding="utf-8")
    block = text.split("```yaml\n")[1].split("```")[0]
    assert yaml.safe_load(block) == view_mapping("highway")
    for name in included_views():
        assert f"| `{name}` |" in text


def test_the_page_explains_every_key_of_a_view() -> None:
    text = PAGE.read_text(encoding="utf-8")
    keys = {field.name for cls in (EntityView, View) for field in dataclasses.fields(cls)} - {"name", "entities"}
    assert [key for key in sorted(keys) if f"`{key}`" not in text] == []
