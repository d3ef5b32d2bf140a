"""Regenerate the values on ARCHITECTURE.md's walk through one batch from the code.

python scripts/regenerate_architecture.py            # rewrite the blocks that have changed
python scripts/regenerate_architecture.py --check    # write nothing: exit status 1 if the page is stale

A block of the page is enclosed in `<!-- value: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
sys.path.insert(
    0, str(Path(__file__).parents[1])
)  # the walk plays the reference MineSweeper of tests/, which is not installed

import argparse
import re
from typing import NamedTuple

import torch
from architecture_walk import BLOCKS, Walk

PAGE = Path(__file__).parent.parent / "ARCHITECTURE.md"
DECIMAL = re.compile(r"-?\d+\.\d+")
BLOCK = re.compile(r"<!-- value: (?P<name>\w+) -->\n.*?<!-- end -->", re.DOTALL)


class Regenerated(NamedTuple):
    stale: list[str]  # names of the blocks that have changed
    page: str


def regenerate(page: str) -> Regenerated:
    """Replace every stale block of `page`.

    Raises:
        ValueError: the page has other blocks than the walk.
    """
    found = [match["name"] for match in BLOCK.finditer(page)]
    if sorted(found) != sorted(BLOCKS):
        problems = {
            "unknown": [name for name in found if name not in BLOCKS],
            "missing": [name for name in BLOCKS if name not in found],
            "repeated": [name for name in BLOCKS if found.count(name) > 1],
        }
        listed = "; ".join(f"{what}: {', '.join(names)}" for what, names in problems.items() if names)
        raise ValueError(f"the page must have every block once; {listed}")
    walk = Walk()
    stale = []

    def rewrite(match: re.Match[str]) -> str:
        name = match["name"]
        language = "python" if name == "observation" else "text"
        block = f"<!-- value: {name} -->\n```{language}\n{getattr(walk, name)()}\n```\n<!-- end -->"
        if same(match[0], block):
            return match[0]
        stale.append(name)
        return block

    return Regenerated(page=BLOCK.sub(rewrite, page), stale=stale)


def same(before: str, after: str) -> bool:
    """Whether two blocks are equal up to layout and the last digit of decimals: processors round differently."""
    words, other_words = (" ".join(DECIMAL.sub(" # ", text).split()) for text in (before, after))
    decimals, other_decimals = ([float(match) for match in DECIMAL.findall(text)] for text in (before, after))
    return words == other_words and all(abs(a - b) < 0.011 for a, b in zip(decimals, other_decimals, strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a block is stale")
    parser.add_argument("--page", type=Path, default=PAGE, help="default: ARCHITECTURE.md")
    given = parser.parse_args()
    torch.set_num_threads(1)
    old = given.page.read_text(encoding="utf-8")
    try:
        stale, new = regenerate(old)
    except ValueError as error:
        parser.error(f"{given.page}: {error}")
    if given.check:
        if stale:
            print(f"{given.page}: stale: {', '.join(stale)}; run python scripts/{Path(__file__).name}", file=sys.stderr)
        return int(bool(stale))
    if stale:
        given.page.write_text(new, encoding="utf-8")
    print(f"{given.page}: {', '.join(stale) or 'nothing'} rewritten")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
