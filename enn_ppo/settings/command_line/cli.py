"""The commands, which compose settings, run, report mistakes in one paragraph, and return an exit code.

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
from typing import TYPE_CHECKING, Any, TypeVar

from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from enn_ppo.clone.config import CloneConfig
from enn_ppo.settings.command_line.composition import (
    Composed,
    compose,
    config_directory,
    open_name,
    parse,
    plain_values,
)
from enn_ppo.settings.command_line.mistakes import guarded
from enn_ppo.settings.command_line.options import help_page
from enn_ppo.settings.command_line.resuming import resolve_train_config
from enn_ppo.settings.config import EvalConfig, TrainConfig, default_run_dir
from enn_ppo.settings.evaluation import WatchConfig
from enn_ppo.settings.schema import from_dict, unknown_setting
from enn_ppo.settings.serving import ServeConfig
from entity_gym.output import accept_all_characters

if TYPE_CHECKING:  # imports numpy, which `--help` does not need
    from enn_ppo.settings.command_line.jobs import Job

__all__ = [
    "config_directory",
    "is_debug",
    "run_clone",
    "run_eval",
    "run_serve",
    "run_train",
    "run_watch",
    "settings_of",
]

C = TypeVar("C")


def run_train(run: Callable[[TrainConfig], object], argv: Sequence[str] | None = None) -> int:
    """Compose the settings, train once, or for every job of `--multirun`, and return the exit code.

    With `--multirun`, `jobs=n` runs n jobs in parallel, each in a separate process.

    Args:
        run: trains with one config, whose `run_dir` is set.
        argv: arguments without the program's name; None: those of the process.
    """
    return _main("train", TrainConfig, run, argv)


def run_eval(run: Callable[[EvalConfig], object], argv: Sequence[str] | None = None) -> int:
    """Compose the settings, evaluate, and return the exit code. As `run_train`."""
    return _main("eval", EvalConfig, run, argv)


def run_watch(run: Callable[[WatchConfig], object], argv: Sequence[str] | None = None) -> int:
    """Compose the settings, show a policy in the browser, and return the exit code. As `run_train`.

    The first argument without a name is the run, and `--live` stands for `live=true`.
    """
    named = []
    for argument in sys.argv[1:] if argv is None else argv:
        if argument == "--live":
            argument = "live=true"
        elif "=" not in argument and not argument.startswith("-"):
            argument = "run='{}'".format(argument.replace("'", "\\'"))
        named.append(argument)
    return _main("watch", WatchConfig, run, named)


def run_serve(run: Callable[[ServeConfig], object], argv: Sequence[str] | None = None) -> int:
    """Compose the settings, serve, and return the exit code. As `run_train`."""
    return _main("serve", ServeConfig, run, argv)


def run_clone(run: Callable[[CloneConfig], object], argv: Sequence[str] | None = None) -> int:
    """Compose the settings, clone, and return the exit code. As `run_train`."""
    return _main("clone", CloneConfig, run, argv)


def _main(name: str, schema: type[C], run: Callable[[C], object], argv: Sequence[str] | None) -> int:
    """Compose the settings of every job, run the jobs, and return the exit code."""
    accept_all_characters()
    typed = list(sys.argv[1:] if argv is None else argv)
    started = datetime.now()
    jobs: list[Job] = []

    def work() -> None:
        arguments = parse(typed)
        if arguments.help:
            print(help_page(name, schema, arguments))
            return
        if schema is not TrainConfig and arguments.jobs > 1:
            raise ValueError("jobs=... is for sweeps of training")
        if schema in (ServeConfig, WatchConfig) and arguments.multirun:
            raise ValueError("--multirun is for commands that train or evaluate")
        from enn_ppo.settings.command_line.jobs import Job, run_jobs

        def make(composed: Composed) -> Job:
            config, note = settings_of(schema, composed, started)
            return Job(config, composed.typed, composed.job, note)

        jobs.extend(compose(name, arguments, make))
        raise SystemExit(run_jobs(run, jobs, arguments.jobs))

    return guarded(work, schema, debug=lambda: is_debug(typed) or any(job.config.debug for job in jobs))


def is_debug(typed: Sequence[str]) -> bool:
    """Whether the arguments contain `debug=true`, even if they are invalid."""
    return any(re.fullmatch(r"\+{0,2}debug=true", argument, re.IGNORECASE) for argument in typed)


def settings_of(schema: type[C], composed: Composed, started: datetime) -> tuple[C, str]:
    """The checked settings of a job, and a note about them for the user, or "".

    The default run directory is named after the time `started`.

    Raises:
        ValueError: a setting is not allowed.
    """
    config: Any
    note = ""
    if schema is TrainConfig:
        config, note = resolve_train_config(composed)
    else:
        config = from_dict(schema, plain_values(composed.config))
    if isinstance(config, TrainConfig):  # training or cloning
        _check_env_kwargs(config, composed.typed)
        run_dir = Path(config.run_dir or default_run_dir(config.env.id, started))
        if composed.job is not None:
            if config.run_dir is None:
                run_dir = run_dir.with_name(f"sweep_{run_dir.name}")
            if config.run_dir is None or composed.config.run_dir is not None:  # not the directory of a resumed run
                run_dir /= str(composed.job)
        config = dataclasses.replace(config, run_dir=str(run_dir))
    return config, note


def _check_env_kwargs(config: TrainConfig, typed: Sequence[str]) -> None:
    """Check that a name typed without `+` is among the arguments that the environment's file in configs/env lists."""
    opened = sorted({name for override in typed if (name := open_name(override))})
    loader = GlobalHydra.instance().config_loader()
    sources = [source for source in loader.get_sources() if source.available()]
    for choice in loader.get_group_options("env") if opened else ():
        path = f"env/{choice}"
        source = next(source for source in sources if source.is_config(path))
        values = OmegaConf.to_container(source.load_config(path).config)
        assert isinstance(values, dict)
        values = values.get("env", values)  # the file sets all sections, or only `env`
        if values.get("id") != config.env.id or values.get("api", "entity") != config.env.api:
            continue
        for name in opened if values.get("kwargs") else ():
            section = name.rpartition(".")[0]
            known = [f"{section}.{argument}" for argument in values["kwargs"]]
            if section.endswith("kwargs") and name not in known:
                raise ValueError(
                    f"{unknown_setting(name, known)}; to pass it to {config.env.id} nevertheless: +{name}=..."
                )
