"""The commands: they compose settings, run, report mistakes in one paragraph, and return an exit code.

Exit codes: 0 done, 1 an unexpected error (with its traceback), 2 a mistake of the user, 130 interrupted, 143
terminated.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from enn_ppo.cloning.config import CloneConfig
from enn_ppo.command_line.composition import Composed, Job, compose, config_directory, load_choice, parse, plain_values
from enn_ppo.command_line.help_page import help_page
from enn_ppo.command_line.mistakes import guarded
from enn_ppo.command_line.resuming import resolve_train_config
from enn_ppo.config import EvalConfig, TrainConfig, default_run_dir
from enn_ppo.settings.schema import from_dict, unknown_setting
from enn_ppo.settings.serving import ServeConfig

if TYPE_CHECKING:  # it imports torch, which `--help` does not need
    from enn_ppo.command_line.run_table import RunSummary

__all__ = ["config_directory", "run_clone", "run_eval", "run_serve", "run_train", "train_job"]


class Settings(Protocol):
    """Settings of any command."""

    @property
    def debug(self) -> bool: ...


C = TypeVar("C", bound=Settings)


def run_train(run: Callable[[TrainConfig], object], argv: Sequence[str] | None = None) -> int:
    """Compose the settings, train once, or for every job of `--multirun`, and return the exit code.

    With `--multirun`, `jobs=n` runs n jobs at a time, each in a process of its own.

    Args:
        run: trains with one config, whose `run_dir` is set.
        argv: arguments without the program's name; None takes the process's own.
    """
    started = datetime.now()
    return _main("train", lambda composed: train_job(composed, started), run, argv, TrainConfig)


def run_eval(run: Callable[[EvalConfig], object], argv: Sequence[str] | None = None) -> int:
    """Compose the settings, evaluate, and return the exit code. As `run_train`."""
    return _main("eval", _eval_job, run, argv, EvalConfig)


def run_serve(run: Callable[[ServeConfig], object], argv: Sequence[str] | None = None) -> int:
    """Compose the settings, serve, and return the exit code. As `run_train`."""
    return _main("serve", _serve_job, run, argv, ServeConfig)


def run_clone(run: Callable[[CloneConfig], object], argv: Sequence[str] | None = None) -> int:
    """Compose the settings, clone, and return the exit code. As `run_train`."""
    started = datetime.now()
    return _main("clone", lambda composed: _clone_job(composed, started), run, argv, CloneConfig)


def _main(
    name: str,
    make: Callable[[Composed], Job[C]],
    run: Callable[[C], object],
    argv: Sequence[str] | None,
    schema: type[Any],
) -> int:
    """Compose the settings, run every job, and return the exit code; a sweep of training ends with a table."""
    typed = list(sys.argv[1:] if argv is None else argv)
    debug = [any(re.fullmatch(r"\+{0,2}debug=true", argument, re.IGNORECASE) for argument in typed)]
    finished: list[RunSummary] = []

    def work() -> None:
        arguments = parse(typed)
        if arguments.help:
            print(help_page(name, schema, arguments))
            return
        if schema is not TrainConfig and arguments.jobs > 1:
            raise ValueError("jobs=... is for sweeps of training")
        from enn_ppo.command_line.parallel_jobs import run_parallel
        from enn_ppo.command_line.run_table import check_run_dirs, summarize_run

        jobs = compose(name, arguments, make)
        debug.extend(job.config.debug for job in jobs)
        check_run_dirs([str(job.config.run_dir) for job in jobs if isinstance(job.config, TrainConfig)])
        if arguments.jobs > 1:
            if any(isinstance(job.config, TrainConfig) and job.config.distributed.mode == "ddp" for job in jobs):
                raise ValueError(f"jobs={arguments.jobs} and distributed=ddp do not go together; leave one out")
            raise SystemExit(run_parallel(run, jobs, arguments.jobs, finished))
        for job in jobs:
            _run_job(job, len(jobs), run)
            if job.job is not None and isinstance(job.config, TrainConfig):
                finished.append(summarize_run(job.typed, str(job.config.run_dir)))

    code = guarded(work, lambda: schema, lambda: any(debug))
    if finished:
        from enn_ppo.command_line.run_table import format_table

        print(format_table(finished), flush=True)
    return code


def _run_job(job: Job[C], number_of_jobs: int, run: Callable[[C], object]) -> None:
    if job.job is not None:
        print(f"job {job.job + 1} of {number_of_jobs}: {' '.join(job.typed)}", file=sys.stderr, flush=True)
    if job.note:
        print(job.note, file=sys.stderr, flush=True)
    run(job.config)


def _eval_job(composed: Composed) -> Job[EvalConfig]:
    return Job(from_dict(EvalConfig, plain_values(composed.config)), composed.typed, composed.job, note="")


def _serve_job(composed: Composed) -> Job[ServeConfig]:
    if composed.job is not None:
        raise ValueError("--multirun is for commands that end by themselves")
    return Job(from_dict(ServeConfig, plain_values(composed.config)), composed.typed, composed.job, note="")


def train_job(composed: Composed, started: datetime) -> Job[TrainConfig]:
    """A training job with its run directory, which is named after the time `started` if it has no name."""
    config, note = resolve_train_config(composed.config, composed.typed)
    _check_env_kwargs(config, composed.opened)
    run_dir = config.run_dir
    if composed.job is not None:
        sweep = Path(default_run_dir(config.env.id, started))
        if run_dir is None:
            run_dir = str(sweep.with_name(f"sweep_{sweep.name}") / str(composed.job))
        elif composed.config.run_dir is not None:  # given, and another one than that of the resumed run
            run_dir = str(Path(run_dir) / str(composed.job))
    elif run_dir is None:
        run_dir = default_run_dir(config.env.id, started)
    return Job(dataclasses.replace(config, run_dir=run_dir), composed.typed, composed.job, note)


def _clone_job(composed: Composed, started: datetime) -> Job[CloneConfig]:
    config = from_dict(CloneConfig, plain_values(composed.config))
    _check_env_kwargs(config, composed.opened)
    run_dir = config.run_dir or default_run_dir(config.env.id, started)
    if composed.job is not None:
        run_dir = str(Path(run_dir) / str(composed.job))
    return Job(dataclasses.replace(config, run_dir=run_dir), composed.typed, composed.job, note="")


def _check_env_kwargs(config: TrainConfig, opened: frozenset[str]) -> None:
    """Check that a name typed without `+` is among the arguments that the environment's file in configs/env lists."""
    loader = GlobalHydra.instance().config_loader()
    for choice in loader.get_group_options("env"):
        source = load_choice(f"env/{choice}")
        if source is None:
            continue
        values = OmegaConf.to_container(source.config)
        values = (
            values.get("env", values) if isinstance(values, dict) else {}
        )  # a preset of everything, or a world alone
        same_world = values.get("id") == config.env.id and values.get("api", "entity") == config.env.api
        if same_world and values.get("kwargs"):
            for name in sorted(opened):
                section = name.rpartition(".")[0]
                known = [f"{section}.{argument}" for argument in values["kwargs"]]
                if section.endswith("kwargs") and name not in known:
                    message = unknown_setting(name, known)
                    raise ValueError(f"{message} To pass it to {config.env.id} nevertheless: +{name}=...")
            return
