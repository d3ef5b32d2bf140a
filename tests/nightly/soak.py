"""Test for leaks: a long run with evaluation, whose memory, file descriptors and threads are sampled.

python -m tests.nightly.soak --minutes 30
python -m tests.nightly.soak --minutes 30 --self-play                 # against its own past, which also evaluates it

Evaluations write replays. Exits with code 1 if at the end the training process or its evaluation process has over 3 % more
memory than at minute 3, or another number of file descriptors or threads. Memory is the resident set size (RSS), including
libraries. All are medians over a minute, half a minute before the end. Entities of a frame are told beside it: where a policy
that has learned meets more of them, as in MultiSnake, whose snakes grow, its rollouts need more memory.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import psutil

from enn_ppo.training.tracking.logger import read_metrics

SETTLED = 180.0  # seconds until code is compiled and buffers have their final size
LIMIT = 1.03
WINDOW = 30.0  # seconds before and after a moment over which the median is taken
# The pool is full when memory has settled, since each policy in it takes megabytes.
POOL = ("self_play.pool_size=4", "self_play.snapshot_interval=10000")
SELF_PLAY = ("self_play.enabled=true", "eval.opponent=past", *POOL)


WHO, WHAT = ("training", "evaluation"), ("mib", "files", "threads")


class Look(NamedTuple):
    """A sample of the processes: of each MiB of memory, file descriptors and threads; 0 of one that is not there."""

    seconds: float
    sizes: dict[str, tuple[float, int, int]]


def main() -> int:
    given = _arguments().parse_args()
    env = given.env or ("Skirmish" if given.self_play else "MineSweeper")
    others = SELF_PLAY if given.self_play else ()
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        command = [
            *(sys.executable, "-m", "enn_ppo.train", f"env={env}", f"run_dir={run_dir}", *others),
            *("total_timesteps=1000000000", f"max_train_seconds={given.minutes * 60}", "optim.lr=0.002"),
            *(
                "eval.interval=100000",
                "eval.episodes=100",
                "eval.replay=2",
                *given.settings,
            ),
        ]
        looks = watch(command, given.every)
        sizes = [
            (row["seconds"], row["entities"]) for row in read_metrics(run_dir / "metrics.jsonl") if "entities" in row
        ]
        size = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    found = {"minutes": looks[-1].seconds / 60, "written_mib": size / 2**20}
    good = True
    for who in WHO:
        for k, what in enumerate(WHAT):
            early, late = (_around(looks, moment, who, k) for moment in (SETTLED, looks[-1].seconds - WINDOW))
            found |= {f"{who}_{what}_at_minute_3": early, f"{who}_{what}_at_the_end": late}
            good = good and (late <= LIMIT * early if what == "mib" else late == early)
    for name, moment in (("at_minute_3", SETTLED), ("at_the_end", sizes[-1][0] - WINDOW)):
        found[f"entities_of_a_frame_{name}"] = fmean(n for seconds, n in sizes if abs(seconds - moment) <= WINDOW)
    print(json.dumps(found, indent=2))
    return 0 if good else 1


def watch(command: list[str], every: float) -> list[Look]:
    """Run the command, and sample its memory until it ends."""
    started = time.monotonic()
    process = psutil.Popen(command, stdout=subprocess.DEVNULL)
    looks: list[Look] = []
    while process.poll() is None:
        time.sleep(every)
        try:
            mine, *children = (_sizes(each) for each in (process, *process.children(recursive=True)))
        except psutil.NoSuchProcess:
            break
        mib, files, threads = (sum(sizes) for sizes in zip((0, 0, 0), *children, strict=True))
        sizes = dict(zip(WHO, (mine, (mib, files, threads)), strict=True))
        looks.append(Look(time.monotonic() - started, sizes))
        if int(looks[-1].seconds / 60) != int((looks[-1].seconds - every) / 60):
            memory = "  ".join(f"{size:8.1f}" for size, *_ in sizes.values())
            print(f"{looks[-1].seconds:6.0f} s  {memory} MiB", flush=True)
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


def _around(looks: list[Look], moment: float, who: str, k: int) -> float:
    near = [look.sizes[who][k] for look in looks if abs(look.seconds - moment) <= WINDOW and look.sizes[who][k] > 0]
    if not near:
        raise SystemExit(f"nothing was seen of {who} around second {moment:.0f}: the run was too short")
    return float(sorted(near)[len(near) // 2])


def _arguments() -> ArgumentParser:
    parser = ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=30, help="minutes of training (30)")
    parser.add_argument("--every", type=float, default=5, help="seconds between two samples (5)")
    parser.add_argument("--env", help="MineSweeper, or Skirmish with --self-play")
    parser.add_argument(
        "--self-play", action="store_true", help="play against snapshots, and evaluate against the past"
    )
    parser.add_argument("settings", nargs="*", help="further settings of training")
    return parser


if __name__ == "__main__":
    sys.exit(main())
