"""Benchmark of distributed training: one process, Ray with one and two runners, torchrun with two ranks.

python scripts/bench.py distributed --json distributed.json
python scripts/bench.py distributed --sides local ray-1 ray-2 --worlds waiting
python scripts/bench.py distributed --sides local torchrun-2 --worlds defaults --num-envs 128 --steps 16 --updates 100

Every side is a user's command in separate processes, with the same settings; sides take turns, and results are medians over the
updates of a run and then over rounds. There are three environments: `cheap`, MultiSnake, where the policy takes most of the time;
`waiting`, where each step waits 200 microseconds, as for a remote simulator, without using the CPU; and `defaults`, MineSweeper.
Processes share the machine's cores: `waiting` shows the gain of more processes, and `cheap` their cost.

- steps: environment steps per second of training, all included.
- sampling: environment steps per second of the time spent on rollouts, over all runners or ranks.

The sides `ray-1-async` and `ray-2-async` are the same with `distributed.max_staleness=2`.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import Measurement, parser, report
from enn_ppo.training.tracking.logger import read_metrics

FOLDER = Path(__file__).parent
WARM_UP = 3  # updates that are not measured
WORLDS = {
    "cheap": ["env=MultiSnake", "env.kwargs.num_snakes=2"],
    "waiting": ["env=custom", "env.id=waiting_world:Elsewhere"],
    "defaults": ["env=MineSweeper", "net.relpos.kind=none"],
}


class Side(NamedTuple):
    """A way to train, and its options."""

    arguments: tuple[str, ...] = ()
    ranks: int = 0  # number of torchrun's ranks


def ray(runners: int, *more: str) -> Side:
    """Training on Ray, which is started here, and whose processes share the CPUs."""
    given = ("distributed=ray", f"distributed.num_env_runners={runners}")
    return Side((*given, *more))


SIDES = {
    "local": Side(),
    "ray-1": ray(1),
    "ray-2": ray(2),
    "ray-1-async": ray(1, "distributed.max_staleness=2"),
    "ray-2-async": ray(2, "distributed.max_staleness=2"),
    "torchrun-2": Side(("distributed=ddp",), ranks=2),
}
#: Side -> the side that it is compared with, if both were measured.
RATIOS = {"ray-1": "local", "ray-2": "ray-1", "ray-2-async": "ray-1-async", "torchrun-2": "local"}


def main() -> None:
    given = arguments().parse_args()
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    for _ in range(given.rounds):
        for world in given.worlds:
            for side in given.sides:
                found.setdefault((world, side), []).append(run(world, side, given))
    medians = {key: median_of(rounds) for key, rounds in found.items()}
    report([*measurements(medians, given), *ratios(medians)], given.json)


def arguments() -> ArgumentParser:
    made = parser(__doc__)
    made.add_argument("--worlds", nargs="+", choices=WORLDS, default=list(WORLDS))
    made.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    made.add_argument("--num-envs", type=int, default=64, help="environments of all runners or ranks together")
    made.add_argument("--steps", type=int, default=32, help="steps of each environment in a rollout")
    made.add_argument("--updates", type=int, default=20, help=f"measured updates, after {WARM_UP} of warm-up")
    made.add_argument("--rounds", type=int, default=3, help="rounds of all sides")
    made.add_argument(
        "--more", nargs="*", default=[], metavar="SETTING", help="settings of every side, as net.d_model=64"
    )
    return made


def command(world: str, side: str, given: Namespace, run_dir: str) -> list[str]:
    """The command line of a side."""
    way = SIDES[side]
    program = [sys.executable, "-m"]
    if way.ranks:
        program += ["torch.distributed.run", "--standalone", f"--nproc_per_node={way.ranks}", "-m"]
    settings = {
        "rollout.num_envs": given.num_envs,
        "rollout.steps": given.steps,
        "total_timesteps": (given.updates + WARM_UP) * given.num_envs * given.steps,
        "num_threads": 1,
        "device": "cpu",
        "checkpoint_interval": 10**9,
        "run_dir": run_dir,
    }
    overrides = [f"{name}={value}" for name, value in settings.items()]
    return [*program, "enn_ppo.train", *WORLDS[world], *way.arguments, *overrides, *given.more]


def run(world: str, side: str, given: Namespace) -> dict[str, float]:
    """Train once, and return the figures of the run."""
    path = os.pathsep.join([str(FOLDER), str(FOLDER.parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    with tempfile.TemporaryDirectory() as folder:
        typed = command(world, side, given, f"{folder}/run")
        done = subprocess.run(typed, env=environment, cwd=folder, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(typed)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        rows = read_metrics(Path(folder) / "run" / "metrics.jsonl")
    return figures(rows[WARM_UP:])


def figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Medians over the updates of a run, from the rows of its metrics."""
    each = []
    for row in rows:
        seconds = row["frames"] / row["steps_per_second"]
        gathering = (row["share_env"] + row["share_act"]) * seconds
        each.append({"steps": row["steps_per_second"], "sampling": row["frames"] / gathering})
    return median_of(each)


def median_of(each: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: statistics.median(one[name] for one in each) for name in each[0]}


def measurements(medians: Mapping[tuple[str, str], Mapping[str, float]], given: Namespace) -> list[Measurement]:
    settings = {"num_envs": given.num_envs, "steps": given.steps, "load": round(os.getloadavg()[0], 1)}
    return [
        Measurement(f"{world} {side} {name}", value, "steps/s", settings)
        for (world, side), found in medians.items()
        for name, value in found.items()
    ]


def ratios(medians: Mapping[tuple[str, str], Mapping[str, float]]) -> list[Measurement]:
    """Speed-ups of sides over others."""
    made = []
    for (world, side), found in medians.items():
        other = medians.get((world, RATIOS.get(side, "")))
        for name in ("steps", "sampling") if other else ():
            assert other is not None
            label = f"{world} {side} / {RATIOS[side]} {name}"
            made.append(Measurement(label, found[name] / other[name], "times", {}))
    return made
