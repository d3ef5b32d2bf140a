"""Pictures of replays: opens HTML files in a headless Chromium, and writes a PNG of each.

python scripts/screenshots.py out/replay.html
python scripts/screenshots.py a.html#episode=2&step=14 b.html --out docs/images --width 1100 --dark

A file may be followed by the link to a moment. Pictures have the names of their files. Exit codes: 0 done, 1 a page shows an
error, 2 a mistake in the command.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the browser's driver belongs to the tests

from tests.chromium import CHROMIUM, NO_CHROMIUM, Browser, Page  # noqa: E402

SHOWN = "(() => { const m = document.getElementById('message'); return m.hidden ? '' : m.textContent; })()"
READY = f"window.replay?.drawing.count > 1 || !['', 'Reading the replay…'].includes({SHOWN})"


def main() -> int:
    """Run the command, and return the exit code."""
    options = _parser().parse_args()
    if CHROMIUM is None:
        print(f"error: {NO_CHROMIUM}", file=sys.stderr)
        return 2
    missing = [file for file in options.files if not Path(file.partition("#")[0]).is_file()]
    if missing:
        print(f"error: there is no file {missing[0]!r}", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    problems = 0
    with Browser() as browser:
        for file in options.files:
            name, _, moment = file.partition("#")
            path = Path(name).resolve()
            url = path.as_uri() + (f"#{moment}" if moment else "")
            page = browser.open(url, options.width, options.height, dark=options.dark, scale=options.scale)
            picture = options.out / f"{path.stem}{'-dark' if options.dark else ''}.png"
            problems += take(page, options.select, picture)
            page.close()
    return 1 if problems else 0


def take(page: Page, entity: int | None, picture: Path) -> int:
    """Write a picture of a page, and return how many errors it shows."""
    page.wait_for(READY)
    if entity is not None:
        page.evaluate(f"replay.select({entity})")
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    page.screenshot(picture)
    print(picture)
    shown = page.evaluate(SHOWN)
    problems = [*page.errors, *([shown] if shown else [])]
    for problem in problems:
        print(f"{picture}: {problem}", file=sys.stderr)
    return len(problems)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Write a PNG of each replay.")
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="HTML files of replays, each with a #moment or without"
    )
    parser.add_argument("--out", type=Path, default=Path("."), help="folder for the pictures (.)")
    parser.add_argument("--width", type=int, default=1200, help="of the window in pixels (1200)")
    parser.add_argument("--height", type=int, default=900, help="of the window in pixels (900)")
    parser.add_argument("--scale", type=float, default=1, help="pixels of the picture per pixel of the window (1)")
    parser.add_argument("--dark", action="store_true", help="in dark colours")
    parser.add_argument(
        "--select", type=int, metavar="N", help="number of the selected entity; otherwise the first actor"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
