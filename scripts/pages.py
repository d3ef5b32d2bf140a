"""Tables of measurements on a page of docs/."""

from __future__ import annotations

from pathlib import Path


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
