"""Worlds of others: policies of this package beside Stable-Baselines3, scripts and random actions, as one table.

python scripts/bench.py worlds                           # all measurements that are missing in docs/bench_worlds.jsonl
python scripts/bench.py worlds --rows Taxi-v4 --seeds 1 --steps-share 0.1 --results try.jsonl
python scripts/bench.py worlds --report                  # the results so far, as a table in docs/benchmarks.md

A measurement is a row, a method and a seed; each is a child process on one thread, and methods take turns. A finished one is a
line of JSON in the file of results, and is not measured again unless its settings have changed. All methods of a row have equally
many environments and environment steps, and the same discount if the row has one. The score is the mean sum of rewards (of all
agents together) over episodes with other seeds than training. Each learned policy is evaluated with its most likely actions and
with sampled ones; the table has the better of the two for every method, by the mean over seeds. Seconds are those of training,
with the making of environments and without evaluation. `timed` has the wall time of the peer in place of its steps, and two
threads, and is measured after the peer. A run of one update before shows how long a start takes, which is taken off its time.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pages import replace_table

from benchmarks.world_rows import INSTALL, LEARNED, METHODS, ROWS, Row, row_named, select

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "bench_worlds.jsonl"
EVAL_SEED = 7_000_000
MARK = "measured: "  # begins the line of the child's output that has the result
#: 97.5 % quantiles of Student's t by degrees of freedom; beyond, the last.
T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
GREEDY, SAMPLED, PLAYED = "greedy", "sampled", "played"


@dataclass(frozen=True)
class Measured:
    """The result of a measurement.

    Attributes:
        settings: all that decided about it but the seed.
        scores: name of the score -> greedy, sampled, or played by what does not learn -> mean over the episodes.
        seconds: wall time of training.
        cpu_seconds: time of all threads in training, without further processes, which only `timed` has.
        load: of the machine after it: work of others makes wall time longer.
        trained: environment steps of training, where time limits them.
    """

    row: str
    method: str
    seed: int
    settings: dict[str, Any]
    scores: dict[str, dict[str, float]]
    seconds: float
    cpu_seconds: float
    load: float
    trained: int | None = None


# --- Pure parts


def shortened(row: Row, share: float) -> Row:
    """Return the row with a share of its steps, at least one rollout of each method."""
    if share == 1:
        return row
    small = None if row.small is None else shortened(row.small, share)
    return replace(row, steps=max(2_048, int(row.steps * share)), small=small)


def read_results(file: Path) -> list[Measured]:
    """Read the finished measurements; a line that was cut off at the end is left out."""
    measured = []
    for line in file.read_text().splitlines() if file.exists() else ():
        try:
            measured.append(Measured(**json.loads(line)))
        except json.JSONDecodeError:
            continue
    return measured


def of_row(row: Row, method: str, measured: Iterable[Measured]) -> dict[int, Measured]:
    """Return seed -> the newest measurement with the row's settings."""
    settings = json.loads(json.dumps(row.settings(method)))
    return {
        each.seed: each
        for each in measured
        if each.row == row.name and each.method == method and each.settings == settings
    }


def interval(values: Sequence[float]) -> float | None:
    """Return the half-width of the 95 % confidence interval of the mean, by Student's t; None for a single value."""
    if len(values) < 2:
        return None
    return T[min(len(values) - 2, len(T) - 1)] * statistics.stdev(values) / math.sqrt(len(values))


def better(seeds: Sequence[Measured], score: str) -> tuple[str, list[float]]:
    """Return the way of acting with the higher mean over seeds, and its score of each seed."""
    ways = {way: [each.scores[score][way] for each in seeds] for way in seeds[0].scores[score]}
    return max(ways.items(), key=lambda item: statistics.fmean(item[1]))


def ahead(scores: Mapping[str, Sequence[float]]) -> str:
    """Name the method with the best mean, and those whose intervals overlap with its; empty without two methods."""
    if len(scores) < 2:
        return ""
    best = max(scores, key=lambda method: statistics.fmean(scores[method]))

    def bounds(method: str) -> tuple[float, float]:
        mean, half = statistics.fmean(scores[method]), interval(scores[method])
        return (-math.inf, math.inf) if half is None else (mean - half, mean + half)

    level = [method for method in scores if method != best and bounds(method)[1] >= bounds(best)[0]]
    return best if not level else f"{best} (not separated: {', '.join(level)})"


def table(rows: Sequence[Row], measured: Sequence[Measured], methods: Sequence[str] = tuple(METHODS)) -> str:
    """The results as Markdown; without rows and methods that have none."""
    found = {
        (row.name, method): list(of_row(row, method, measured).values()) if method in row.methods else []
        for row in rows
        for method in methods
    }
    shown = [method for method in methods if any(found[row.name, method] for row in rows)]
    header = f"| world | steps | environments | {' | '.join(shown)} | highest learned |"
    lines = [header, "|---" * (header.count("|") - 1) + "|"]
    for row in rows:
        if not any(found[row.name, method] for method in shown):
            continue
        for score in row.scores:
            name = row.name if len(row.scores) == 1 else f"{row.name}, wins against {score}"
            cells, learned = [], {}
            for method in shown:
                seeds = [each for each in found[row.name, method] if score in each.scores]
                cells.append(_cell(seeds, score) if seeds else "-")
                if seeds and method in LEARNED:
                    learned[method] = better(seeds, score)[1]
            lines.append(f"| {name} | {row.steps:,} | {row.num_envs} | {' | '.join(cells)} | {ahead(learned)} |")
    return "\n".join(lines)


def notes(rows: Sequence[Row], measured: Sequence[Measured]) -> str:
    """Return what the columns are, how many episodes and seeds there are, and reasons of settings, as a Markdown list."""
    present = {(each.row, each.method) for each in measured}
    lines = [f"- `{method}`: {what}." for method, what in METHODS.items() if any(m == method for _, m in present)]
    lines.append(
        "- Cells: mean score ± half-width of the 95 % confidence interval over seeds, of the most likely actions (g) or of "
        "sampled ones (s), the better of the two; then wall seconds of training ± likewise, and mean seconds of the processor. "
        "`highest learned`: `not separated` names methods whose intervals overlap with that of the best."
    )
    for row in rows:
        if not any(name == row.name for name, _ in present):
            continue
        seeds = sorted({each.seed for each in measured if each.row == row.name})
        script = f" The script: {row.script}." if row.script else ""
        of_seeds = f"seeds {', '.join(map(str, seeds))}; {row.episodes} episodes of evaluation."
        lines.append(f"- {row.name}: {of_seeds}{script} {row.why}".rstrip())
    return "\n".join(lines)


def _cell(seeds: Sequence[Measured], score: str) -> str:
    way, values = better(seeds, score)
    text = _with_interval(values, _digits(statistics.fmean(values)))
    if way == PLAYED:
        return text
    text, wall = f"{text} {way[0]};", f"{_with_interval([each.seconds for each in seeds], 0)} s"
    if trained := [each.trained for each in seeds if each.trained is not None]:
        return f"{text} {statistics.fmean(trained):,.0f} steps; {wall}"
    return f"{text} {wall}, cpu {statistics.fmean(each.cpu_seconds for each in seeds):.0f} s"


def _digits(value: float) -> int:
    size = abs(value)
    return 0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 1 else 3


def _number(value: float) -> str:
    return f"{value:.{_digits(value)}f}"


def _with_interval(values: Sequence[float], digits: int) -> str:
    half = interval(values)
    return f"{statistics.fmean(values):.{digits}f}" + ("" if half is None else f" ± {half:.{digits}f}")


# --- One measurement, in the child


def measure(row: Row, method: str, seed: int, seconds: float) -> Measured:
    """Train if the method learns, and evaluate; `seconds` are those that `timed` has."""
    started, cpu = time.perf_counter(), time.process_time()
    spent, trained = (0.0, 0.0), None
    if method in ("random", "script"):
        scores = _play_unlearned(row, method, seed)
    elif method.startswith("sb3"):
        from benchmarks import world_peers
        from benchmarks.world_players import make_world, play

        started, cpu = time.perf_counter(), time.process_time()
        model = world_peers.learn(row, method, seed, row.steps)
        spent = time.perf_counter() - started, time.process_time() - cpu
        wrappers = (world_peers.FlatTsp,) if row.name.startswith("TSP") else ()
        env = make_world(row.env_id, row.kwargs, wrappers)
        ways = {
            way: play(env, world_peers.player(model, env, way == GREEDY), row.episodes, EVAL_SEED + 1000 * seed)
            for way in (GREEDY, SAMPLED)
        }
        scores = {row.scores[0]: {way: statistics.fmean(returns) for way, returns in ways.items()}}
    else:
        with tempfile.TemporaryDirectory() as folder:
            run_dir = Path(folder) / "run"
            from enn_ppo import train

            if method == "timed":
                config = training(row, "flat" if row.view is None else "view", seed, run_dir)
                rollout = replace(config.rollout, num_processes=row.processes)
                config = replace(config, rollout=rollout, total_timesteps=10**9, num_threads=2)
                started = time.perf_counter()  # what a start takes: `max_train_seconds` begin after it
                train(replace(config, max_train_seconds=1e-3, run_dir=str(Path(folder) / "one_update")))
                left = max(seconds - (time.perf_counter() - started), 1e-3)
                config = replace(config, max_train_seconds=left)
            elif method == "transfer":
                assert row.small is not None
                config = training(row.small, "view", seed, run_dir)
            else:
                config = training(row, method, seed, run_dir)
            started, cpu = time.perf_counter(), time.process_time()
            result = train(config)
            trained = result.step if method == "timed" else None
            spent = time.perf_counter() - started, time.process_time() - cpu
            scores = _evaluate(row, run_dir, seed)
    return Measured(
        row=row.name,
        method=method,
        seed=seed,
        settings=row.settings(method),
        scores=scores,
        seconds=round(spent[0], 2),
        cpu_seconds=round(spent[1], 2),
        load=round(os.getloadavg()[0], 2),
        trained=trained,
    )


def training(row: Row, method: str, seed: int, run_dir: Path) -> Any:
    """The training settings of this package: those of the command line's preset, and the row's."""
    from enn_ppo import preset

    overrides = [
        f"env.id={row.env_id}",
        f"env.view={row.view}" if method == "view" else "",
        f"rollout.num_envs={row.num_envs}",
        f"ppo.gamma={row.gamma}" if row.gamma is not None else "",
        *row.ours,
        *(row.viewed if method == "view" else ()),
    ]
    config = preset(
        row.api,
        *(each for each in overrides if each),
        total_timesteps=row.steps,
        seed=seed,
        run_dir=str(run_dir),
        num_threads=1,
        device="cpu",
    )
    wrappers = list(row.flat_wrappers if method == "flat" else ())
    return replace(config, env=replace(config.env, kwargs=dict(row.kwargs), wrappers=wrappers))


def _evaluate(row: Row, run_dir: Path, seed: int) -> dict[str, dict[str, float]]:
    from enn_ppo import EvalConfig, evaluate

    scores: dict[str, dict[str, float]] = {score: {} for score in row.scores}
    for way in (GREEDY, SAMPLED):
        config = EvalConfig(
            checkpoint=str(run_dir),
            episodes=row.episodes,
            greedy=way == GREEDY,
            seed=EVAL_SEED + 1000 * seed,
            num_envs=min(row.num_envs, row.episodes),
            env_kwargs=dict(row.kwargs),
            device="cpu",
            trust=True,
        )
        if row.name == "connect four":
            from benchmarks.world_connect_four import policy_win_rate

            for opponent in row.scores:
                scores[opponent][way] = policy_win_rate(run_dir, opponent, config)
        else:
            scores[row.scores[0]][way] = evaluate(config).estimates["episodic_reward"].mean
    return scores


def _play_unlearned(row: Row, method: str, seed: int) -> dict[str, dict[str, float]]:
    import numpy as np

    if row.name == "connect four":
        from benchmarks.world_connect_four import DEPTHS, win_rate

        depth = DEPTHS["random" if method == "random" else str(row.script)]
        return {name: {PLAYED: win_rate(depth, DEPTHS[name], row.episodes, EVAL_SEED + seed)} for name in row.scores}
    from benchmarks.world_players import SCRIPTS, make_world, play, random_player

    env, rng = make_world(row.env_id, row.kwargs), np.random.default_rng(seed)
    player = random_player(env, rng) if method == "random" else SCRIPTS[str(row.script)](env, rng)
    returns = play(env, player, row.episodes, EVAL_SEED + 1000 * seed)
    return {row.scores[0]: {PLAYED: statistics.fmean(returns)}}


# --- All measurements


def run_all(given: Namespace, rows: Sequence[Row]) -> bool:
    """Run the measurements that are missing, one at a time; return whether all went well."""
    done = read_results(given.results)
    well = True
    told: set[tuple[str, str]] = set()
    for seed in given.seeds:
        for row in rows:
            for method in (each for each in given.methods if each in row.methods):
                if (module := row.missing(method)) is not None:
                    if (row.name, module) not in told:
                        told.add((row.name, module))
                        print(
                            f"{row.name}, {method}: skipped, {module} is not installed: {INSTALL[module]}", flush=True
                        )
                    continue
                if seed in of_row(row, method, done):
                    continue
                peer = of_row(row, "sb3", read_results(given.results)).get(seed) if method == "timed" else None
                if method == "timed" and peer is None:
                    print(f"{row.name}, timed, seed {seed}: skipped, it takes the time of sb3, which is not measured")
                    continue
                well &= _measure_apart(given, row, method, seed, peer.seconds if peer else 0.0)
    return well


def _measure_apart(given: Namespace, row: Row, method: str, seed: int, seconds: float) -> bool:
    """Run a measurement in a child process, and append its line to the results."""
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "ignore",
        "OMP_NUM_THREADS": "2" if method == "timed" else "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "MKL_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    }
    command = [
        sys.executable,
        str(ROOT / "scripts" / "bench.py"),
        "worlds",
        "--one",
        row.name,
        method,
        str(seed),
        "--steps-share",
        str(given.steps_share),
        "--seconds",
        str(seconds),
    ]
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    if done.returncode or not lines:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        print(f"{row.name}, {method}, seed {seed} failed:\n{tail}", file=sys.stderr, flush=True)
        return False
    line = lines[-1].removeprefix(MARK)
    given.results.parent.mkdir(parents=True, exist_ok=True)
    with given.results.open("a") as file:
        file.write(line + "\n")
    measured = Measured(**json.loads(line))
    scores = "; ".join(
        f"{name} " + ", ".join(f"{way} {value:.3f}" for way, value in ways.items())
        for name, ways in measured.scores.items()
    )
    print(f"{row.name}, {method}, seed {seed}: {scores}; {measured.seconds:.0f} s", flush=True)
    return True


def main() -> int:
    given = _arguments()
    rows = [shortened(row, given.steps_share) for row in select(given.rows)]
    if given.one:
        name, method, seed = given.one
        row = shortened(row_named(name), given.steps_share)
        measured = measure(row, method, int(seed), given.seconds)
        print(MARK + json.dumps(vars(measured)), flush=True)
        return 0
    well = True if given.report else run_all(given, rows)
    measured_ = read_results(given.results)
    text = f"{table(rows, measured_, given.methods)}\n\n{notes(rows, measured_)}"
    print(f"\n{text}")
    if given.report and given.results == RESULTS:
        replace_table(ROOT / "docs" / "benchmarks.md", "bench.py worlds", text)
    return int(not well)


def _arguments() -> Namespace:
    parser = ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--rows", nargs="+", metavar="NAME", help=f"rows of the table (all): {', '.join(row.name for row in ROWS)}"
    )
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS), metavar="METHOD")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--steps-share", type=float, default=1.0, help="share of each row's steps, to try the command")
    parser.add_argument("--results", type=Path, default=RESULTS, help="file of the measurements")
    parser.add_argument("--report", action="store_true", help="measure nothing: write the table of the results so far")
    parser.add_argument("--seconds", type=float, default=0.0, help="of --one with the method timed")
    parser.add_argument("--one", nargs=3, help="a row, a method and a seed, measured in this process")
    given = parser.parse_args()
    if given.one and given.one[1] == "timed" and not given.seconds:
        parser.error("--one ROW timed SEED needs --seconds, the time of its training")
    return given
