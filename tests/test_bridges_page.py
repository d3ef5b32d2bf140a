"""The Python of docs/bridges.md runs as written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs/bridges.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.parametrize(
    ("block", "libraries"),
    [
        (BLOCKS[0], ["gymnasium"]),
        (BLOCKS[1], ["gymnasium"]),
        (BLOCKS[2], ["stable_baselines3"]),
        (BLOCKS[3], ["gymnasium"]),
        (BLOCKS[4], ["pettingzoo", "pygame"]),
    ],
    ids=["from Gymnasium", "episodes", "to Gymnasium", "measured room", "PettingZoo"],
)
def test_what_the_page_shows_runs(block: str, libraries: list[str]) -> None:
    for library in libraries:
        pytest.importorskip(library)
    exec(compile(block, str(PAGE), "exec"), {"__name__": "page"})


def test_every_block_is_run() -> None:
    assert len(BLOCKS) == 5
