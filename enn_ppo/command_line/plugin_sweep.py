"""Sweeps by one of Hydra's plugins, such as `hydra/sweeper=optuna`, and jobs that such a sweep runs side by side.

A plugin chooses the next jobs by the results of those before. So here, and only here, a job runs inside Hydra's task, and
the task returns what is maximised: the reward that stands in the table of the sweep.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from omegaconf import DictConfig

from enn_ppo.command_line.composition import Composed, Job, composed_job, enter_hydra, noted, opened_names
from enn_ppo.command_line.mistakes import USER_ERROR, JobFailed, told
from enn_ppo.command_line.run_table import RunSummary, summarize_run
from enn_ppo.config import Interrupted, TrainConfig
from entity_gym.pools.processes.handle import WorkerDied

_RESULTS = "optimization_results.yaml"  # what the Optuna sweeper writes at its end


class Sweep(NamedTuple):
    """How the arguments say that the jobs are to be run."""

    arguments: list[str]  # the rest of them
    plugin: bool  # whether one of Hydra's plugins chooses the jobs
    jobs: int  # how many run at a time


def sweep_of(arguments: Sequence[str]) -> Sweep:
    """Take `jobs=n` out of the arguments, and complete what is meant for a plugin.

    Raises:
        ValueError: `jobs` is not a number of jobs or there is no sweep, or a launcher comes without a sweeper.
    """
    rest = [argument for argument in arguments if not argument.startswith("jobs=")]
    numbers = [argument.removeprefix("jobs=") for argument in arguments if argument.startswith("jobs=")]
    multirun = any(argument in ("-m", "--multirun") for argument in arguments)
    for number in numbers:
        if not re.fullmatch(r"[1-9]\d*", number):
            raise ValueError(f"jobs must be how many jobs of a sweep run at a time, at least 1, got {number!r}")
        if not multirun:
            raise ValueError(f"jobs={number} is about the jobs of a sweep: add --multirun")
    at_once = int(numbers[-1]) if numbers else 1
    sweepers = [argument for argument in rest if re.match(r"hydra/sweeper=(?!basic$)", argument)]
    launchers = [argument for argument in rest if re.match(r"hydra/launcher=(?!basic$)", argument)]
    if launchers and not sweepers:
        raise ValueError(f"{launchers[0]} goes with hydra/sweeper=optuna; here jobs=2 runs two jobs at a time")
    if not sweepers:
        return Sweep(rest, plugin=False, jobs=at_once)
    given = {argument.partition("=")[0].lstrip("+") for argument in rest}
    optuna = sweepers[-1] == "hydra/sweeper=optuna"  # minimises one job after another, unless it is told otherwise
    defaults = {"hydra.sweeper.direction": "maximize"} if optuna else {}
    if at_once > 1:
        defaults |= {"hydra/launcher": "joblib", "hydra.launcher.n_jobs": str(at_once)}
        defaults |= {"hydra.sweeper.n_jobs": str(at_once)} if optuna else {}
    added = [f"{name}={value}" for name, value in defaults.items() if name not in given]
    return Sweep(rest + added, plugin=multirun, jobs=at_once)


def run_inside_hydra(
    name: str,
    arguments: Sequence[str],
    make: Callable[[Composed], Job[TrainConfig]],
    run: Callable[[TrainConfig], object],
    finished: list[RunSummary],
) -> None:
    """Let the sweeper choose jobs and run them one after another, or as many at a time as its launcher does.

    Args:
        name: the primary config.
        arguments: of the command line.
        make: checks what was composed for a job.
        run: trains.
        finished: takes a summary of each job that is done, in their order, also where the sweep ends by an error.

    Raises:
        JobFailed: a job ended with an error, and the sweeper gave up.
    """
    opened = opened_names(arguments)
    with tempfile.TemporaryDirectory(prefix="enn_ppo_") as scratch:

        def task(config: DictConfig) -> float:  # perhaps in another process, so what it found goes through files
            composed = composed_job(config, opened)
            try:
                job = make(composed)
                summary = _run_job(job, run)
            except Interrupted as interrupted:  # Hydra takes an Exception for the failure of one job
                print(interrupted, file=sys.stderr)
                raise KeyboardInterrupt from interrupted
            except Exception as error:
                raise _failed(noted(error, composed), composed.config.debug is True) from None
            (Path(scratch) / f"job_{composed.job or 0:06d}.json").write_text(json.dumps(summary))
            assert summary.reward is not None
            return summary.reward

        try:
            enter_hydra(name, arguments, task, scratch)
        finally:
            for file in sorted(Path(scratch).glob("job_*.json")):
                overrides, *rest = json.loads(file.read_text())
                finished.append(RunSummary(tuple(overrides), *rest))
            _keep_results(Path(scratch) / _RESULTS, finished)


def _failed(error: Exception, debug: bool) -> JobFailed:
    """An error as it travels between processes. Its traceback does not: that is printed here, where it is wanted."""
    paragraph = told(error, TrainConfig)
    if paragraph is None or debug:
        traceback.print_exception(error, file=sys.stderr)
    if paragraph is None:
        return JobFailed(f"{type(error).__name__}: {error} {' '.join(getattr(error, '__notes__', []))}", 1)
    return JobFailed(paragraph, 1 if isinstance(error, WorkerDied) else USER_ERROR)


def _run_job(job: Job[TrainConfig], run: Callable[[TrainConfig], object]) -> RunSummary:
    if job.job is not None:
        print(f"job {job.job + 1}: {' '.join(job.typed)}", file=sys.stderr, flush=True)
    if job.note:
        print(job.note, file=sys.stderr, flush=True)
    run(job.config)
    summary = summarize_run(job.typed, str(job.config.run_dir))
    if summary.reward is None:
        raise ValueError(
            f"no episode ended in the last updates, so that {summary.run_dir} has no episodic_reward to compare: train for "
            "longer, or limit the length of an episode"
        )
    return summary


def _keep_results(results: Path, finished: Sequence[RunSummary]) -> None:
    if results.exists() and finished:
        kept = Path(finished[0].run_dir).parent / results.name
        shutil.copyfile(results, kept)
        print(f"best values: {kept}", file=sys.stderr, flush=True)
