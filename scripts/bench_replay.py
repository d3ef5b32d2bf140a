"""Benchmark of the page of replays: frames per second in a headless Chromium, with hundreds of entities that all act.

python scripts/bench_replay.py
python scripts/bench_replay.py --entities 10 2000 --seconds 10 --speed 60

The page plays at `--speed` steps per second with an actor selected, its decision and its attention shown; each step is drawn
once. A headless Chromium without a GPU draws in software, which takes longer than in an ordinary browser; the page with few
entities shows how many frames that browser draws at all.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the browser's driver and the replays belong to the tests

from entity_gym.replay.page import page_html  # noqa: E402
from tests import replays  # noqa: E402
from tests.chromium import CHROMIUM, NO_CHROMIUM, Browser  # noqa: E402

MEASURE = """(async () => {{
  const before = {{ ...replay.drawing }};
  replay.state.speed = {speed};
  replay.play();
  const begin = performance.now();
  await new Promise((done) => setTimeout(done, {seconds} * 1000));
  const elapsed = (performance.now() - begin) / 1000;
  replay.pause();
  const draws = replay.drawing.count - before.count;
  return {{ draws, elapsed, milliseconds: (replay.drawing.milliseconds - before.milliseconds) / draws }};
}})()"""


def main() -> int:
    """Run the command, and return the exit code."""
    parser = argparse.ArgumentParser(description="Frames per second of the page of replays.")
    parser.add_argument(
        "--entities", type=int, nargs="+", default=[10, 500], help="of each frame, one page each (10 500)"
    )
    parser.add_argument("--seconds", type=float, default=5, help="how long it plays (5)")
    parser.add_argument("--speed", type=float, default=30, help="steps per second that it is to play (30)")
    options = parser.parse_args()
    if CHROMIUM is None:
        print(f"error: {NO_CHROMIUM}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder, Browser() as browser:
        for count in options.entities:
            measure(browser, Path(folder) / "crowd.html", count, options.seconds, options.speed)
    return 0


def measure(browser: Browser, path: Path, count: int, seconds: float, speed: float) -> None:
    """Play frames of `count` entities from a file at `path`, and print how fast that was."""
    length = round(speed * seconds * 1.2)
    path.write_text(page_html(replays.crowd(count, length)), encoding="utf-8")
    begin = time.monotonic()
    page = browser.open(path.as_uri())
    page.wait_for("window.replay?.drawing.count > 0")
    opened = time.monotonic() - begin
    found = page.evaluate(MEASURE.format(speed=speed, seconds=seconds))
    page.close()
    print(
        f"{count} entities: {found['draws'] / found['elapsed']:.1f} of {speed:g} frames/s, "
        f"{found['milliseconds']:.1f} ms of script per frame; {path.stat().st_size / 1e6:.1f} MB opened in {opened:.1f} s"
    )


if __name__ == "__main__":
    sys.exit(main())
