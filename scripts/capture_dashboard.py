"""Train in a tmux session of a given size, and write a picture of its dashboard.

python scripts/capture_dashboard.py                     # docs/images/dashboard.svg
python scripts/capture_dashboard.py --columns 40 --rows 10 --output narrow.svg
"""

from __future__ import annotations

import argparse
import io
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
COMMAND = "python -m enn_ppo.train env=MineSweeper"
POLL_SECONDS = 0.2
START_SECONDS = 180.0  # the first run on a machine compiles


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--columns", type=int, default=90)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument(
        "--steps", type=float, default=0.6, help="part of the training after which the picture is taken"
    )
    parser.add_argument("--output", type=Path, default=ROOT / "docs/images/dashboard.svg")
    options = parser.parse_args()
    screen = capture(options.columns, options.rows, options.steps)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(to_svg(screen, options.columns), encoding="utf-8")
    print(f"wrote {options.output}")


def capture(columns: int, rows: int, part: float) -> str:
    """Return the screen, with sequences for colours, of a training of which a part is done."""
    server = ["tmux", "-L", f"capture_dashboard_{time.time_ns()}", "-f", "/dev/null"]
    # the training may still write for a moment when its session has ended
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        training = [sys.executable, *COMMAND.split()[1:], "run_dir=outputs/MineSweeper", "total_timesteps=499968"]
        # in the folder, so that the run directory has a short name
        shell = f"cd {shlex.quote(folder)} && PYTHONPATH={shlex.quote(str(ROOT))} COLORTERM=truecolor {shlex.join(training)}"
        size = ["-x", str(columns), "-y", str(rows)]
        subprocess.run([*server, "new-session", "-d", *size, f"{shell}; sleep 60"], check=True)
        try:
            deadline = time.monotonic() + START_SECONDS
            while time.monotonic() < deadline:
                shown = subprocess.run(
                    [*server, "capture-pane", "-p", "-e"], check=True, capture_output=True, text=True
                )
                percent = re.search(r"(\d+)%.*━", shown.stdout)
                if percent and int(percent[1]) >= 100 * part:
                    return shown.stdout
                time.sleep(POLL_SECONDS)
        finally:
            subprocess.run([*server, "kill-server"], check=False)
    raise SystemExit(f"no dashboard was {part:.0%} done within {START_SECONDS:.0f} s; the screen was:\n{shown.stdout}")


def to_svg(screen: str, columns: int) -> str:
    """Draw a screen as an SVG without fonts of other sites."""
    console = Console(record=True, width=columns, file=io.StringIO(), color_system="truecolor", force_terminal=True)
    console.print(Text.from_ansi(screen.rstrip()), no_wrap=True, overflow="crop")
    svg = console.export_svg(title=COMMAND, unique_id="dashboard")
    return re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.S)


if __name__ == "__main__":
    main()
