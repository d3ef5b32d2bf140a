"""Runs the ancestor's trainer: `bench.py train --peer PYTHON` runs this with an interpreter with enn-trainer.

    PYTHON train_peer.py UPDATES SETTING=VALUE ...

Prints a line of JSON: medians of the trainer's own steps per second and entities per frame, without the first two updates.
"""

import json
import re
import statistics
import subprocess
import sys
import tempfile

COLOURS = re.compile(r"\x1b\[[0-9;]*m")
FIGURES = re.compile(r"entities\s+([\d.]+).*?fps\s+(\d+)")


def main() -> None:
    updates, overrides = int(sys.argv[1]), sys.argv[2:]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-W", "ignore", "-m", "enn_trainer.train", f"data_dir={folder}", *overrides]
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    figures = FIGURES.findall(COLOURS.sub("", done.stdout))
    if done.returncode or len(figures) != updates:
        sys.exit(f"{len(figures)} of {updates} updates\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    entities, steps_per_second = zip(*[(float(entities), float(fps)) for entities, fps in figures[2:]], strict=True)
    print(
        json.dumps(
            {"steps_per_second": statistics.median(steps_per_second), "entities_per_frame": statistics.median(entities)}
        )
    )


if __name__ == "__main__":
    main()
