"""Train every environment with its preset and several seeds, evaluate the policies, and make a table of results.

python scripts/learn_zoo.py                              # all missing runs, into outputs/zoo
python scripts/learn_zoo.py --envs Xor CherryPick --seeds 1
python scripts/learn_zoo.py --report                     # also write the table into docs/benchmarks.md
python scripts/learn_zoo.py --variants --seeds 1         # presets with other sizes and counts than theirs

Each seed is trained by `python -m enn_ppo.train` and scored by `python -m enn_ppo.eval`, in separate processes, with evaluation
seeds that differ from training and `eval.greedy` of the preset. Finished runs are kept, interrupted ones are resumed, and runs
whose settings have changed are repeated.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pages import replace_table

from enn_ppo.training.tracking.logger import read_metrics

ROOT = Path(__file__).resolve().parents[1]
EPISODES, EVAL_SEED = 500, 7_000_000
WINDOW = 5  # rows over which the learning curve is averaged


@dataclass(frozen=True)
class World:
    """A row of the table."""

    name: str
    overrides: tuple[str, ...]  # of the training command
    score: float  # required mean score over the seeds
    minutes: float  # limit of training time
    most: float | None = None  # upper limit of the score, above which the environment would leak information
    ancestor: str = "-"  # steps and score of enn-trainer 0.1.16 with its own tuned settings


ZOO = (
    World("MultiArmedBandit", ("env=MultiArmedBandit",), 0.99, 1, ancestor="32,768: 1.0"),
    World("NotHotdog", ("env=NotHotdog",), 0.99, 1, ancestor="32,768: 1.0"),
    World("Count", ("env=Count", "env.kwargs.masked_choices=2"), 0.99, 1, ancestor="2,000: 1.0"),
    World("Xor", ("env=Xor",), 0.99, 1, ancestor="500,000: 1.0 with 2 of 3 seeds, 0.75 with the other"),
    World("RockPaperScissors", ("env=RockPaperScissors",), 0.9, 1, most=1.1, ancestor="4,000: 0.8 to 1.2"),
    World(
        "RockPaperScissors, cheating",
        ("env=RockPaperScissors", "env.kwargs.cheat=true"),
        1.9,
        1,
        ancestor="4,000: over 1.9",
    ),
    World("FloorIsLava", ("env=FloorIsLava",), 0.99, 1, ancestor="32,768: 0.997"),
    World("CartPole-v1", ("env=CartPole-v1",), 475, 1),
    World("CartPoleHidden", ("env=CartPoleHidden",), 475, 5),
    World("Corridor", ("env=Corridor",), 0.95, 5),
    World("Corridor, no memory", ("env=Corridor", "net.memory=none"), 0.4, 5, most=0.6),
    World("Shells", ("env=Shells",), 0.95, 5),
    World("Shells, no memory", ("env=Shells", "net.memory=none"), 0.2, 5, most=0.3),
    World("Pairs", ("env=Pairs",), 0.98, 5),
    World("PairsApart", ("env=Pairs", "env.id=entity_gym.envs.pairs:PairsApart"), 0.6, 5, most=0.67),
    World("MineSweeper", ("env=MineSweeper",), 0.97, 2, ancestor="400,000 to 530,000: 0.987"),
    World("MoveToOrigin", ("env=MoveToOrigin",), 0.99, 5, ancestor="1,000,000: 0.9905"),
    World("CherryPick", ("env=CherryPick",), 0.99, 10, ancestor="over 0.99, steps not known"),
    World(
        "PickMatchingBalls",
        ("env=PickMatchingBalls", "env.kwargs.one_hot=true", "env.kwargs.randomize=true"),
        0.99,
        10,
        ancestor="over 0.995, steps not known",
    ),
    World("TreasureHunt", ("env=TreasureHunt",), 4.5, 10),
    World("Minefield", ("env=Minefield",), 0.97, 15, ancestor="3,000,000: over 0.99"),
    World(
        "MultiSnake",
        ("env=MultiSnake",),
        0.95,
        30,
        ancestor="over 0.99, steps not known",
    ),
    World("MultiSnake2", ("env=MultiSnake2",), 0.9, 60, ancestor="100,000,000: about 0.99"),
    # the mean of 1 against random play, 0.9 (95 % of games) one step ahead, 0.2 (60 %) against minimax
    World("ConnectFour", ("env=ConnectFour",), 0.7, 45),
    World("Skirmish", ("env=Skirmish", "eval.interval=500000", "eval.env_kwargs.opponent=3"), 1.0, 60),
)


def _variant(env: str, score: float, minutes: float, **kwargs: Any) -> World:
    """The preset of a world with other parameters."""
    named = ", ".join(f"{name}={value}" for name, value in kwargs.items())
    return World(
        f"{env}, {named}",
        (f"env={env}", *(f"env.kwargs.{name}={value}" for name, value in kwargs.items())),
        score,
        minutes,
    )


#: Two of each world that has sizes or counts: presets are not fitted to one.
VARIANTS = (
    _variant("Count", 0.99, 1, masked_choices=5),
    _variant("Count", 0.99, 1, masked_choices=3),
    _variant("Corridor", 0.95, 1, length=20),
    _variant("Corridor", 0.95, 1, num_ways=4),
    _variant("Shells", 0.95, 1, num_shuffles=16),
    _variant("Shells", 0.95, 1, min_shells=2, max_shells=8),
    _variant("Pairs", 0.98, 1, min_gates=2, max_gates=2),
    _variant("Pairs", 0.98, 1, min_gates=3, max_gates=6),
    _variant("MineSweeper", 0.97, 5, width=9, height=9),
    _variant("MineSweeper", 0.97, 5, num_mines=8, num_robots=4),
    _variant("CherryPick", 0.99, 5, num_cherries=16),
    _variant("CherryPick", 0.99, 10, num_cherries=64),
    _variant("PickMatchingBalls", 0.99, 5, one_hot="true", randomize="true", max_balls=16),
    _variant("PickMatchingBalls", 0.99, 10, one_hot="true", randomize="true", max_balls=48),
    _variant("TreasureHunt", 2.8, 5, num_traps=3, num_treasures=3),
    _variant("TreasureHunt", 7.5, 5, num_traps=8, num_treasures=8),
    _variant("Minefield", 0.97, 15, max_mines=5),
    _variant("Minefield", 0.97, 15, max_mines=15),
    _variant("MultiSnake", 0.95, 15, board_size=8),
    _variant("MultiSnake", 0.95, 15, board_size=12),
    _variant("MultiSnake2", 0.9, 60, board_size=8),
    _variant("MultiSnake2", 0.9, 60, board_size=12),
)


@dataclass(frozen=True)
class Learned:
    """One seed, trained and scored."""

    world: str
    seed: int
    score: float
    ci95: float  # half-width of the score's 95 % confidence interval
    greedy: bool
    steps: int
    seconds: float  # training time, from the run's metrics
    steps_to_score: int | None  # steps until the learning curve reached the score; None: never
    seconds_to_score: float | None


# --- Pure parts ---


def select(names: Sequence[str] | None, rows: Sequence[World] = ZOO) -> list[World]:
    """The worlds with these names, or all of `rows`.

    Raises:
        ValueError: there is no such world.
    """
    if not names:
        return list(rows)
    known = {world.name: world for world in (*ZOO, *VARIANTS)}
    for name in names:
        if name not in known:
            raise ValueError(f"--envs {name!r} is no row of the table; allowed: {', '.join(map(repr, known))}")
    return [known[name] for name in names]


def reached(
    rows: Sequence[Mapping[str, Any]], score: float, curve: str = "episodic_reward", window: int = WINDOW
) -> tuple[int, float] | None:
    """The first point at which a learning curve reaches a score.

    Args:
        rows: of metrics.jsonl.
        score: required mean reward over `window` consecutive rows; rows in which no episode ended are left out.
        curve: name of the metric.

    Returns:
        Environment steps and seconds of training at the last of these rows, or None.
    """
    told = [row for row in rows if row.get(curve) is not None]
    for end in range(window, len(told) + 1):
        if statistics.fmean(row[curve] for row in told[end - window : end]) >= score:
            return int(told[end - 1]["step"]), float(told[end - 1]["seconds"])
    return None


def is_met(world: World, learned: Sequence[Learned]) -> bool:
    """Whether the mean over seeds meets the score, and the slowest seed the time limit."""
    mean = statistics.fmean(each.score for each in learned)
    in_time = max(each.seconds for each in learned) <= 60 * world.minutes
    return world.score <= mean <= (world.most or float("inf")) and in_time


def table(worlds: Sequence[World], learned: Sequence[Learned]) -> str:
    """The results as Markdown, without environments that have none. Unmet requirements are in bold."""
    header = (
        "| world | asked | score of each seed | mean ± deviation | acting | steps | to the score: steps | seconds | whole run, s "
        "| at most, s | ancestor's steps: score |"
    )
    lines = [header, "|---" * (header.count("|") - 1) + "|"]
    for world in worlds:
        seeds = sorted((each for each in learned if each.world == world.name), key=lambda each: each.seed)
        if seeds:
            lines.append(f"| {' | '.join(_row(world, seeds))} |")
    return "\n".join(lines)


def _row(world: World, seeds: Sequence[Learned]) -> list[str]:
    digits = _digits(world)
    return [
        world.name,
        f"≥ {world.score:g}" if world.most is None else f"{world.score:g} to {world.most:g}",
        ", ".join(f"{each.score:.{digits}f}" for each in seeds),
        _mean(world, seeds),
        "greedy" if seeds[0].greedy else "sampled",
        f"{max(each.steps for each in seeds):,}",
        ", ".join("never" if each.steps_to_score is None else f"{each.steps_to_score:,}" for each in seeds),
        ", ".join("never" if each.seconds_to_score is None else f"{each.seconds_to_score:.0f}" for each in seeds),
        ", ".join(f"{each.seconds:.0f}" for each in seeds),
        f"{60 * world.minutes:.0f}",
        world.ancestor,
    ]


def _mean(world: World, seeds: Sequence[Learned]) -> str:
    scores = [each.score for each in seeds]
    spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
    mean = f"{statistics.fmean(scores):.{_digits(world)}f} ± {spread:.{_digits(world)}f}"
    return mean if is_met(world, seeds) else f"**{mean}**"


def _digits(world: World) -> int:
    return 1 if world.score >= 100 else 3


# --- Training and scoring ---


def learn(world: World, seed: int, folder: Path, threads: int) -> Learned:
    """Train and score one seed, or read its stored result.

    Files beside the run directory: `.yaml` holds the settings at its start, `.json` the result.

    Raises:
        RuntimeError: a command failed; the message has the end of its output.
    """
    run_dir = folder / re.sub(r"\W+", "_", world.name) / f"seed_{seed}"
    begun, done = run_dir.with_suffix(".yaml"), run_dir.with_suffix(".json")
    train = ["enn_ppo.train", *world.overrides, f"seed={seed}", f"num_threads={threads}", f"run_dir={run_dir}"]
    settings = _command([*train, "--cfg", "job"], threads)
    same = begun.exists() and begun.read_text() == settings
    if same and done.exists():
        return Learned(**json.loads(done.read_text()))

    if same and (run_dir / "checkpoints").exists():
        _command(["enn_ppo.train", f"resume={run_dir}"], threads)
    else:
        begun.parent.mkdir(parents=True, exist_ok=True)
        done.unlink(missing_ok=True)
        begun.write_text(settings)
        _command([*train, "overwrite=true"], threads)

    evaluation = yaml.safe_load(settings)["eval"]
    greedy, kwargs = bool(evaluation["greedy"]), evaluation["env_kwargs"]
    output = run_dir / "score.json"
    how = [f"episodes={EPISODES}", f"seed={EVAL_SEED + seed}", f"greedy={str(greedy).lower()}", f"output={output}"]
    how += [f"env_kwargs.{name}={value}" for name, value in kwargs.items()]
    _command(["enn_ppo.eval", f"checkpoint={run_dir}", *how], threads)
    estimate = json.loads(output.read_text())["episodic_reward"]
    rows = read_metrics(run_dir / "metrics.jsonl")
    # where the score is of other parameters than training, so is the curve, in evaluations of many episodes each
    curve = ("eval/episodic_reward", 1) if kwargs else ("episodic_reward", WINDOW)
    steps_to_score, seconds_to_score = reached(rows, world.score, *curve) or (None, None)
    learned = Learned(
        world=world.name,
        seed=seed,
        score=estimate["mean"],
        ci95=estimate["ci95"],
        greedy=greedy,
        steps=int(rows[-1]["step"]),
        seconds=float(rows[-1]["seconds"]),
        steps_to_score=steps_to_score,
        seconds_to_score=seconds_to_score,
    )
    aside = done.with_suffix(".aside")
    aside.write_text(json.dumps(vars(learned), indent=2) + "\n")
    aside.replace(done)  # atomic
    return learned


def _command(arguments: Sequence[str], threads: int) -> str:
    """Run a module in a separate process, and return its output."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-10:])
        raise RuntimeError(f"python -m {' '.join(arguments)} ended with {done.returncode}:\n{tail}")
    return done.stdout


def main() -> int:
    given = _arguments()
    worlds = select(given.envs, VARIANTS if given.variants else ZOO)
    learned: list[Learned] = []
    failed = False
    with ThreadPoolExecutor(given.jobs) as pool:
        tasks = [
            (world, seed, pool.submit(learn, world, seed, given.folder, given.threads))
            for world in worlds
            for seed in given.seeds
        ]
        for world, seed, task in tasks:
            try:
                learned.append(task.result())
                one = learned[-1]
                print(f"{world.name}, seed {seed}: {one.score:.3f} in {one.seconds:.0f} s", flush=True)
            except RuntimeError as error:
                failed = True
                print(f"{world.name}, seed {seed}: {error}", file=sys.stderr, flush=True)
    (given.folder / "results.json").write_text(json.dumps([vars(each) for each in learned], indent=2) + "\n")
    print("\n" + table(worlds, learned))
    if given.report:
        script = "learn_zoo.py --variants" if given.variants else "learn_zoo.py"
        replace_table(ROOT / "docs/benchmarks.md", script, table(worlds, learned))
    return int(failed)


def _arguments() -> Namespace:
    parser = ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--envs", nargs="+", metavar="ROW", help="rows of the table (all)")
    parser.add_argument(
        "--variants", action="store_true", help="presets with other sizes and counts, in a table of their own"
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--jobs", type=int, default=1, help="parallel runs; more than one makes each run slower")
    parser.add_argument("--threads", type=int, default=2, help="torch's threads in each run")
    parser.add_argument("--folder", type=Path, default=Path("outputs/zoo"), help="folder of the runs and results.json")
    parser.add_argument("--report", action="store_true", help="replace the table in docs/benchmarks.md")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
