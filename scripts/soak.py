"""Test for leaks: a long run with recording and evaluation, whose memory, file descriptors and threads are sampled.

python scripts/soak.py --minutes 30
python scripts/soak.py --minutes 30 --self-play                 # against its own past, which also evaluates it

Exits with code 1 if at the end the training process or its evaluation process has over 3 % more memory than at minute 3, or
another number of file descriptors or threads. Memory is the resident set size (RSS), including libraries. All are medians over a
minute, half a minute before the end.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from pathlib import Path
from typing import NamedTuple

import psutil

SETTLED = 180.0  # seconds until code is compiled and buffers have their final size
LIMIT = 1.03
WINDOW = 30.0  # seconds before and after a moment over which the median is taken
SELF_PLAY = ("env.kwargs.num_players=2", "self_play.enabled=true", "eval.opponent=past")


class Look(NamedTuple):
    """A sample of the processes. Those of evaluation are 0 without an evaluation process."""

    seconds: float
    training: float  # MiB
    evaluation: float  # MiB
    training_files: int  # file descriptors
    evaluation_files: int
    training_threads: int
    evaluation_threads: int


def main() -> int:
    given = _arguments().parse_args()
    env = given.env or ("MultiSnake2" if given.self_play else "MineSweeper")
    others = SELF_PLAY if given.self_play else ()
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        command = [
            *(sys.executable, "-m", "enn_ppo.train", f"env={env}", f"run_dir={run_dir}", *others),
            *("total_timesteps=1000000000", f"max_train_seconds={given.minutes * 60}", "optim.anneal_lr=false"),
            *(f"record={folder}/samples.arrow", "eval.interval=100000", "eval.episodes=100", *given.settings),
        ]
        looks = watch(command, given.every)
        size = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    found = {"minutes": looks[-1].seconds / 60, "written_mib": size / 2**20}
    good = True
    for who in ("training", "evaluation"):
        early, late = (_around(looks, moment, who) for moment in (SETTLED, looks[-1].seconds - WINDOW))
        found |= {f"{who}_mib_at_minute_3": early, f"{who}_mib_at_the_end": late, f"{who}_growth": late / early}
        good = good and late <= LIMIT * early
        for what in (f"{who}_files", f"{who}_threads"):
            early, late = (_around(looks, moment, what) for moment in (SETTLED, looks[-1].seconds - WINDOW))
            found |= {f"{what}_at_minute_3": early, f"{what}_at_the_end": late}
            good = good and late == early
    print(json.dumps(found, indent=2))
    return 0 if good else 1


def watch(command: list[str], every: float) -> list[Look]:
    """Run the command, and sample its memory until it ends."""
    started = time.monotonic()
    process = psutil.Popen(command, stdout=subprocess.DEVNULL)
    looks = []
    while process.poll() is None:
        time.sleep(every)
        try:
            mine, *children = (_sizes(each) for each in (process, *process.children(recursive=True)))
            theirs = [sum(sizes) for sizes in zip((0, 0, 0), *children, strict=True)]
            both = [size for sizes in zip(mine, theirs, strict=True) for size in sizes]
            looks.append(Look(time.monotonic() - started, both[0], both[1], *map(int, both[2:])))
        except psutil.NoSuchProcess:
            break
        if int(looks[-1].seconds / 60) != int((looks[-1].seconds - every) / 60):
            print(f"{looks[-1].seconds:6.0f} s  {looks[-1].training:8.1f}  {looks[-1].evaluation:8.1f} MiB", flush=True)
    if process.wait() != 0:
        raise SystemExit(f"the run ended with exit code {process.returncode}")
    return looks


def _sizes(process: psutil.Process) -> tuple[float, int, int]:
    """MiB of memory, file descriptors, threads."""
    try:
        with process.oneshot():
            return process.memory_info().rss / 2**20, process.num_fds(), process.num_threads()
    except psutil.NoSuchProcess:
        return 0.0, 0, 0


def _around(looks: list[Look], moment: float, who: str) -> float:
    near = [getattr(look, who) for look in looks if abs(look.seconds - moment) <= WINDOW and getattr(look, who) > 0]
    if not near:
        raise SystemExit(f"nothing was seen of {who} around second {moment:.0f}: the run was too short")
    return float(sorted(near)[len(near) // 2])


def _arguments() -> ArgumentParser:
    parser = ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=30, help="minutes of training (30)")
    parser.add_argument("--every", type=float, default=5, help="seconds between two samples (5)")
    parser.add_argument("--env", help="MineSweeper, or MultiSnake2 with --self-play")
    parser.add_argument(
        "--self-play", action="store_true", help="play against snapshots, and evaluate against the past"
    )
    parser.add_argument("settings", nargs="*", help="further settings of training")
    return parser


if __name__ == "__main__":
    sys.exit(main())
