"""Helpers of the scripts that write a page of docs/, or a table on one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


def regenerate(name: str, make: Callable[[], str], description: str | None) -> int:
    """Rewrite docs/`name` if it has changed, or with `--check` only compare; returns the exit status.

    Args:
        name: of the page.
        make: returns the page's text.
        description: of the script, for `--help`.
    """
    script, page = Path(sys.argv[0]).name, DOCS / name
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the page is stale")
    parser.add_argument("--page", type=Path, default=page, help=f"default: docs/{name}")
    given = parser.parse_args()
    new = make()
    stale = not given.page.exists() or given.page.read_text(encoding="utf-8") != new
    if given.check:
        if stale:
            print(f"{given.page}: stale; run python scripts/{script}", file=sys.stderr)
        return int(stale)
    if stale:
        given.page.write_text(new, encoding="utf-8")
    print(f"{given.page}: {'rewritten' if stale else 'nothing rewritten'}")
    return 0


def replace_table(page: Path, script: str, new: str) -> None:
    """Replace the table on a page between the marks `<!-- table: scripts/SCRIPT -->` and `<!-- end of table -->`.

    Raises:
        ValueError: a mark is missing.
    """
    mark, end = f"<!-- table: scripts/{script} -->", "<!-- end of table -->"
    before, begins, rest = page.read_text("utf-8").partition(mark)
    _, ends, after = rest.partition(end)
    if not begins or not ends:
        raise ValueError(f"{page} needs a line {mark} and after it a line {end}: the table goes between them")
    page.write_text(f"{before}{mark}\n\n{new}\n\n{end}{after}", "utf-8")
