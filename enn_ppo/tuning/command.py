"""The command line of a sweep: which arguments are its own, and which are training's."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra

from enn_ppo.command_line.cli import train_job
from enn_ppo.command_line.composition import Arguments, Composed, Job, compose, parse, plain_values
from enn_ppo.command_line.help_page import help_page
from enn_ppo.command_line.mistakes import guarded, told
from enn_ppo.config import TrainConfig, default_run_dir
from enn_ppo.settings.schema import from_dict
from enn_ppo.tuning.config import SweepCommand, SweepConfig
from enn_ppo.tuning.space import check_names

_OWN = "own_"  # before the name of a user's file, which must not be taken for one of configs/sweep
_NOT_COMPARED = ("run_dir", "overwrite")  # do not make it another sweep
_REFUSED = {
    "resume": "a sweep goes on with the same command",
    "jobs": "trials at a time are sweep.jobs",
}


class Parts(NamedTuple):
    """A command line in its parts: the same flags, and overrides of the sweep and of training."""

    sweep: Arguments
    training: Arguments


def run_sweep(sweep: Callable[..., object], argv: Sequence[str] | None = None) -> int:
    """Compose the settings of the sweep and of training, run the sweep, and return the exit code.

    Args:
        sweep: `enn_ppo.sweep.sweep`.
        argv: arguments without the program's name; None takes the process's own.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = any(re.fullmatch(r"\+{0,2}debug=true", argument, re.IGNORECASE) for argument in arguments)
    return guarded(lambda: _run(sweep, split(arguments)), lambda: SweepCommand, lambda: debug)


def split(arguments: Sequence[str]) -> Parts:
    """Tell the sweep's arguments from training's.

    Raises:
        ValueError: one of them does not go with a sweep.
    """
    for argument in arguments:
        name = argument.lstrip("+").partition("=")[0]
        if name in _REFUSED:
            raise ValueError(f"{argument} does not go with a sweep: {_REFUSED[name]}")
    given = parse(arguments)
    if given.multirun:
        raise ValueError("--multirun does not go with a sweep: its trials are drawn from sweep.space")
    own = [override for override in given.overrides if re.match(r"\+{0,2}(sweep[.=]|debug=)", override)]
    typed = [override for override in given.overrides if override not in own]
    return Parts(given._replace(overrides=own), given._replace(overrides=typed))


def _run(sweep: Callable[..., object], parts: Parts) -> None:
    started = datetime.now()
    own = parts.sweep._replace(overrides=[_stored(override) for override in parts.sweep.overrides])
    if own.help:
        print(help_page("sweep", SweepCommand, own))
        return
    commands = compose("sweep", own, _command)
    if not commands:  # --cfg has shown what it shows
        return
    config, name = commands[0].config.sweep, commands[0].note
    shared = _later_ones([*config.train, *parts.training.overrides])
    groups: list[str] = []

    def make(composed: Composed) -> Job[TrainConfig]:
        groups.extend(GlobalHydra.instance().config_loader().list_groups(""))
        return train_job(composed, started)

    def compose_training(parameters: Sequence[str]) -> TrainConfig:
        arguments = parts.training._replace(overrides=[*shared.values(), *parameters])
        try:
            (job,) = compose("train", arguments, make)
        except Exception as error:
            paragraph = told(error, TrainConfig)
            if paragraph is None:
                raise
            raise ValueError(paragraph) from error
        return job.config

    base = compose_training([])
    _check(config, base, list(shared), groups)
    sweep(
        config,
        _folder(base, name, given="run_dir" in shared),
        compose_training,
        arguments=[argument for name, argument in shared.items() if name not in _NOT_COMPARED],
        overwrite=base.overwrite,
    )


def _command(composed: Composed) -> Job[SweepCommand]:
    name = composed.choices["sweep"].removeprefix(_OWN)
    return Job(from_dict(SweepCommand, plain_values(composed.config)), composed.typed, composed.job, note=name)


def _check(config: SweepConfig, base: TrainConfig, shared: Sequence[str], groups: Sequence[str]) -> None:
    """Find before the first trial what would make all of them fail."""
    check_names(config.parameters, groups)
    for parameter in config.parameters:
        if parameter.name in shared:
            raise ValueError(f"{parameter.name} is given for all trials, and sweep.space varies it: leave one out")
    if config.metric.startswith("eval/") and base.eval.interval is None:
        raise ValueError(f"sweep.metric={config.metric} needs evaluations during training: add eval.interval=<steps>")


def _folder(base: TrainConfig, name: str, *, given: bool) -> Path:
    """The sweep's folder: `run_dir`, or one that the same command finds again."""
    if given and base.run_dir is not None:
        return Path(base.run_dir)
    return Path(default_run_dir(base.env.id, datetime.now())).with_name(f"sweep_{name}")


def _later_ones(arguments: Sequence[str]) -> dict[str, str]:
    """Arguments by name, of which the last counts where a name comes twice."""
    return {argument.partition("=")[0].lstrip("+"): argument for argument in arguments}


def _stored(override: str) -> str:
    """The override with a choice of Hydra's in place of `sweep=<file>.yaml`, which may lie anywhere.

    Raises:
        ValueError: there is no such file, or it is no YAML.
    """
    path = Path(override.removeprefix("sweep="))
    if not (override.startswith("sweep=") and path.suffix in (".yaml", ".yml")):
        return override
    try:
        space = yaml.safe_load(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{override}: there is no file {path}") from None
    except (OSError, yaml.YAMLError) as error:
        raise ValueError(f"{override}: {path} cannot be read: {error}") from error
    if not isinstance(space, dict):
        raise ValueError(f"{override}: {path} must hold settings of the sweep, such as space: and trials:")
    choice = _OWN + re.sub(r"\W+", "_", path.stem)
    ConfigStore.instance().store(group="sweep", name=choice, node=space)
    return f"sweep={choice}"
