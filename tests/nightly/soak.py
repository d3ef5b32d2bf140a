"""Test for leaks: a long run with evaluation, whose memory, file descriptors and threads are sampled.

python -m tests.nightly.soak --minutes 30
python -m tests.nightly.soak --minutes 30 --self-play                 # against its own past, which also evaluates it

Evaluations write replays, which `enn_ppo.watch --live` follows, and this script reads its page as a browser does.

Exits with code 1 if at the end the training process, its evaluation process or the one that watches has over 3 % more memory than
at minute 3, or another number of file descriptors or threads. Memory is the resident set size (RSS), including libraries. All
are medians over a minute, half a minute before the end. Entities of a frame are told beside it: where a policy that has learned
meets more of them, as in MultiSnake, whose snakes grow, its rollouts need more memory.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from argparse import ArgumentParser
from pathlib import Path
from statistics import fmean

import psutil

from enn_ppo.training.tracking.logger import read_metrics

SETTLED = 180.0  # seconds until code is compiled and buffers have their final size
LIMIT = 1.03
WINDOW = 30.0  # seconds before and after a moment over which the median is taken
# The pool is full when memory has settled, since each policy in it takes megabytes.
POOL = ("self_play.pool_size=4", "self_play.snapshot_interval=10000")
SELF_PLAY = ("self_play.enabled=true", "eval.opponent=past", *POOL)


EVERY = 5.0  # seconds between two samples
WHO, WHAT = ("training", "evaluation", "watching"), ("mib", "files", "threads")


#: Seconds, and of each of `WHO` MiB of memory, file descriptors and threads; 0 of one that is not there.
Look = tuple[float, dict[str, tuple[float, int, int]]]


def main() -> int:
    given = _arguments().parse_args()
    env = given.env or ("Skirmish" if given.self_play else "MineSweeper")
    others = SELF_PLAY if given.self_play else ()
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        command = [
            *(sys.executable, "-m", "enn_ppo.train", f"env={env}", f"run_dir={run_dir}", *others),
            *("total_timesteps=1000000000", f"max_train_seconds={given.minutes * 60}", "optim.lr=0.002"),
            *("eval.interval=100000", "eval.episodes=100", "eval.replay=2", *given.settings),
        ]
        looks = watch(command, run_dir)
        sizes = [
            (row["seconds"], row["entities"]) for row in read_metrics(run_dir / "metrics.jsonl") if "entities" in row
        ]
        size = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    found = {"minutes": looks[-1][0] / 60, "written_mib": size / 2**20}
    good = True
    for who in WHO:
        for k, what in enumerate(WHAT):
            early, late = (_around(looks, moment, who, k) for moment in (SETTLED, looks[-1][0] - WINDOW))
            found |= {f"{who}_{what}_at_minute_3": early, f"{who}_{what}_at_the_end": late}
            good = good and (late <= LIMIT * early if what == "mib" else late == early)
    for name, moment in (("at_minute_3", SETTLED), ("at_the_end", sizes[-1][0] - WINDOW)):
        found[f"entities_of_a_frame_{name}"] = fmean(n for seconds, n in sizes if abs(seconds - moment) <= WINDOW)
    print(json.dumps(found, indent=2))
    return 0 if good else 1


def watch(command: list[str], run_dir: Path) -> list[Look]:
    """Run the command, follow its run, and sample the memory of both until the command ends."""
    started = time.monotonic()
    process, follower = psutil.Popen(command, stdout=subprocess.DEVNULL), None
    looks: list[Look] = []
    pages = 0
    try:
        while process.poll() is None:
            time.sleep(EVERY)
            if follower is None and (run_dir / "config.yaml").exists():
                follower = _Follower(run_dir)
            pages += follower.read() if follower else 0
            try:
                mine, *children = (_sizes(each) for each in (process, *process.children(recursive=True)))
            except psutil.NoSuchProcess:
                break
            mib, files, threads = (sum(sizes) for sizes in zip((0, 0, 0), *children, strict=True))
            follows = _sizes(follower.process) if follower else (0.0, 0, 0)
            sizes = dict(zip(WHO, (mine, (mib, files, threads), follows), strict=True))
            looks.append((time.monotonic() - started, sizes))
            if int(looks[-1][0] / 60) != int((looks[-1][0] - EVERY) / 60):
                memory = "  ".join(f"{size:8.1f}" for size, *_ in sizes.values())
                print(f"{looks[-1][0]:6.0f} s  {memory} MiB  {pages} replays", flush=True)
    finally:
        if follower:
            follower.process.kill()
            follower.process.wait()
    if process.wait() != 0:
        raise SystemExit(f"the run ended with exit code {process.returncode}")
    return looks


class _Follower:
    """`enn_ppo.watch --live`, whose page is read as a browser reads it."""

    def __init__(self, run_dir: Path) -> None:
        self._said = run_dir.with_name("watch.log")
        command = [sys.executable, "-m", "enn_ppo.watch", str(run_dir), "--live", "open=false"]
        with self._said.open("w") as output:
            self.process = psutil.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        self._newest: str | None = None

    def read(self) -> int:
        """Read the newest replay. Returns how many new ones there were, 0 or 1."""
        if self.process.poll() is not None:
            raise SystemExit(f"watching has ended: {self._said.read_text()}")
        found = re.search(r"http://127\.0\.0\.1:\d+/", self._said.read_text())
        if found is None:
            return 0
        listing = json.loads(_get(f"{found[0]}replays.json"))
        if listing["newest"] == self._newest:
            return 0
        self._newest = listing["newest"]
        return bool(json.loads(_get(f"{found[0]}{self._newest}.json"))["episodes"])


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return bytes(answer.read())


def _sizes(process: psutil.Process) -> tuple[float, int, int]:
    """MiB of memory, file descriptors, threads."""
    try:
        with process.oneshot():
            return process.memory_info().rss / 2**20, process.num_fds(), process.num_threads()
    except psutil.NoSuchProcess:
        return 0.0, 0, 0


def _around(looks: list[Look], moment: float, who: str, k: int) -> float:
    near = [of[who][k] for seconds, of in looks if abs(seconds - moment) <= WINDOW and of[who][k] > 0]
    if not near:
        raise SystemExit(f"nothing was seen of {who} around second {moment:.0f}: the run was too short")
    return float(sorted(near)[len(near) // 2])


def _arguments() -> ArgumentParser:
    parser = ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=30, help="minutes of training (30)")
    parser.add_argument("--env", help="MineSweeper, or Skirmish with --self-play")
    parser.add_argument("--self-play", action="store_true", help="play, and evaluate, against past snapshots")
    parser.add_argument("settings", nargs="*", help="further settings of training")
    return parser


if __name__ == "__main__":
    sys.exit(main())
