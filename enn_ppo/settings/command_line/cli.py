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
from functools import partial
from typing import Any, TypeVar

from enn_ppo.clone.config import CloneConfig
from enn_ppo.settings.command_line.composition import (
    Composed,
    compose,
    compose_one,
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

C = TypeVar("C")


def run_eval(run: Callable[[EvalConfig], object], argv: Sequence[str] | None = None) -> int:
    """Compose the settings, evaluate, print the result and the files that were written, and return the exit code."""

    def evaluate(config: EvalConfig) -> None:
        print(run(config))
        for file in filter(None, (config.render, config.replay_file, config.record)):
            print(f"wrote {file}")

    return _main("eval", EvalConfig, evaluate, argv)


def run_watch(run: Callable[[WatchConfig], object], argv: Sequence[str] | None = None) -> int:
    """Compose the settings, show a policy in the browser, and return the exit code.

    The first argument without a name is the run, and `--live` stands for `live=true`.
    """
    named = []
    for argument in sys.argv[1:] if argv is None else argv:
        if argument == "--live":
            argument = "live=true"
        elif "=" not in argument and not argument.startswith("-"):
            argument = f"run={argument}"
        named.append(argument)
    return _main("watch", WatchConfig, run, named)


def run_sweep(run: Callable[[SweepCommand, list[str]], object], argv: Sequence[str] | None = None) -> int:
    """Compose the settings, sweep, and return the exit code; `run` also takes the arguments of each trial."""
    typed = list(sys.argv[1:] if argv is None else argv)
    arguments = [argument for argument in typed if not re.match(r"\+*(sweep[.=]|run_dir=)", argument)]
    return _main("sweep", SweepCommand, lambda config: run(config, arguments), typed)


def _main(name: str, schema: type[C], run: Callable[[C], object], argv: Sequence[str] | None = None) -> int:
    """Compose the settings, run the command or each job of `--multirun`, and return the exit code.

    `--multirun` is Hydra's: its sweeper makes the jobs, and its launcher runs them.

    Args:
        name: of the command.
        schema: class of its settings.
        run: does the work; the `run_dir` of its settings is set.
        argv: arguments without the program's name; None: those of the process.
    """
    accept_all_characters()
    typed = list(sys.argv[1:] if argv is None else argv)
    started = datetime.now()
    debug = [re.fullmatch(r"\+*debug=true", argument, re.IGNORECASE) is not None for argument in typed]

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
            multirun(name, schema, arguments, lambda composed: _job(schema, run, make, composed))
        elif (config := compose(name, schema, arguments, make)) is not None:
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


run_train = partial(_main, "train", TrainConfig)
run_serve = partial(_main, "serve", ServeConfig)
run_clone = partial(_main, "clone", CloneConfig)


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
        if config.resume is None:
            _check_env_kwargs(composed)
        run_dir = composed.output_dir or config.run_dir or default_run_dir(config.env.id, started)
        config = dataclasses.replace(config, run_dir=run_dir)
    return config, note


def _check_env_kwargs(composed: Composed) -> None:
    """Check that names typed without `+` are among the arguments that the environment's file lists, if it lists any."""
    opened = sorted({name for override in composed.typed if (name := open_name(override)) and "kwargs." in name})
    if not opened:
        return
    chosen = [override for override in composed.typed if re.match(r"\+*(env|experiment)=", override)]
    listed = compose_one("train", chosen, composed.config_dir).config.env.get("kwargs")
    for name in opened if listed else ():
        known = [f"{name.rpartition('.')[0]}.{argument}" for argument in listed]
        if name not in known:
            world = composed.config.env.id
            raise ValueError(f"{unknown_setting(name, known)}; to pass it to {world} nevertheless: +{name}=...")
