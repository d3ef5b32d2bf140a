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
from typing import Any, TypeVar

from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from enn_ppo.clone.config import CloneConfig
from enn_ppo.settings.command_line.composition import (
    Composed,
    compose,
    config_directory,
    multirun,
    open_name,
    parse,
    plain_values,
)
from enn_ppo.settings.command_line.mistakes import guarded, told
from enn_ppo.settings.command_line.options import help_page
from enn_ppo.settings.command_line.resuming import resolve_train_config
from enn_ppo.settings.config import EvalConfig, TrainConfig, default_run_dir
from enn_ppo.settings.evaluation import WatchConfig
from enn_ppo.settings.schema import from_dict, unknown_setting
from enn_ppo.settings.serving import ServeConfig
from enn_ppo.sweep.config import SweepCommand
from enn_ppo.training.errors import Interrupted
from entity_gym.output import accept_all_characters

__all__ = [
    "config_directory",
    "is_debug",
    "run_clone",
    "run_eval",
    "run_serve",
    "run_sweep",
    "run_train",
    "run_watch",
    "settings_of",
]

C = TypeVar("C")


def run_train(run: Callable[[TrainConfig], object], argv: Sequence[str] | None = None) -> int:
    """Compose the settings, train once, or for every job of `--multirun`, and return the exit code.

    `--multirun` is Hydra's: its sweeper makes the jobs, and its launcher runs them.

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


def run_sweep(run: Callable[[SweepCommand, list[str]], object], argv: Sequence[str] | None = None) -> int:
    """Compose the settings, sweep, and return the exit code. As `run_train`; `run` also takes the arguments of each trial."""
    typed = list(sys.argv[1:] if argv is None else argv)
    arguments = [argument for argument in typed if not re.match(r"\+*(sweep[.=]|run_dir=)", argument)]
    return _main("sweep", SweepCommand, lambda config: run(config, arguments), typed)


def _main(name: str, schema: type[C], run: Callable[[C], object], argv: Sequence[str] | None) -> int:
    """Compose the settings, run the command or each job of `--multirun`, and return the exit code."""
    accept_all_characters()
    typed = list(sys.argv[1:] if argv is None else argv)
    started = datetime.now()
    debug = [is_debug(typed)]

    def make(composed: Composed) -> C:
        config, note = settings_of(schema, composed, started)
        debug.append(config.debug)  # type: ignore[attr-defined]
        if note:
            print(note, file=sys.stderr, flush=True)
        return config

    def work() -> None:
        arguments = parse(typed)
        if arguments.help:
            print(help_page(name, schema, arguments))
        elif arguments.multirun and not arguments.show:
            if schema in (ServeConfig, SweepCommand, WatchConfig):
                raise ValueError("--multirun is for commands that train or evaluate")
            multirun(name, arguments, lambda composed: _job(schema, run, make, composed))
        elif (config := compose(name, arguments, make)) is not None:
            run(config)

    return guarded(work, schema, debug=lambda: any(debug))


def _job(
    schema: type[C], run: Callable[[C], object], make: Callable[[Composed], C], composed: Composed
) -> float | None:
    """Run a job of `--multirun`. Returns what a sweeper may optimize: the mean episodic reward of the last update.

    Errors are printed at once, since the launcher goes on with the next job; after Ctrl-C it does not.
    """
    try:
        result = run(make(composed))
    except Interrupted as interrupted:
        print(interrupted, file=sys.stderr)
        raise SystemExit(interrupted.exit_code) from None
    except Exception as error:
        error.add_note(f"(job {' '.join(composed.typed)})")
        if (paragraph := told(error, schema)) is not None:
            print(f"error: {paragraph}", file=sys.stderr, flush=True)
        raise
    reward = (getattr(result, "metrics", None) or {}).get("episodic_reward")
    return None if reward is None else float(reward)


def is_debug(typed: Sequence[str]) -> bool:
    """Whether the arguments contain `debug=true`, even if they are invalid."""
    return any(re.fullmatch(r"\+{0,2}debug=true", argument, re.IGNORECASE) for argument in typed)


def settings_of(schema: type[C], composed: Composed, started: datetime) -> tuple[C, str]:
    """The checked settings, and a note about them for the user, or "".

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
        run_dir = composed.output_dir or config.run_dir or default_run_dir(config.env.id, started)
        config = dataclasses.replace(config, run_dir=run_dir)
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
