"""The command line of a sweep: separates the sweep's arguments from those of training."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from enn_ppo.settings.command_line.cli import is_debug, settings_of
from enn_ppo.settings.command_line.composition import Arguments, Composed, compose, parse, plain_values
from enn_ppo.settings.command_line.mistakes import as_value_error, guarded
from enn_ppo.settings.command_line.options import help_page
from enn_ppo.settings.config import TrainConfig, default_run_dir
from enn_ppo.settings.schema import from_dict
from enn_ppo.sweep.config import SweepCommand, SweepConfig
from enn_ppo.sweep.space import check_names
from entity_gym.output import accept_all_characters

_OWN = "own_"  # prefix for the name of a user's file, which must differ from the names in configs/sweep
_NOT_COMPARED = ("run_dir", "overwrite")  # may differ when a sweep is continued
_REFUSED = {
    "resume": "a sweep goes on with the same command",
    "jobs": "trials at a time are sweep.jobs",
}


def run_sweep(sweep: Callable[..., object], argv: Sequence[str] | None = None) -> int:
    """Compose the settings of the sweep and of training, run the sweep, and return the exit code.

    Args:
        sweep: `enn_ppo.sweep.sweep`.
        argv: arguments without the program's name; None: those of the process.
    """
    accept_all_characters()
    typed = list(sys.argv[1:] if argv is None else argv)
    return guarded(lambda: _run(sweep, *split(typed)), SweepCommand, debug=lambda: is_debug(typed))


def split(typed: Sequence[str]) -> tuple[Arguments, Arguments]:
    """Split arguments into those of the sweep and those of training, both with all flags.

    Raises:
        ValueError: an argument is not allowed in a sweep.
    """
    for argument in typed:
        name = argument.lstrip("+").partition("=")[0]
        if name in _REFUSED:
            raise ValueError(f"{argument} does not go with a sweep: {_REFUSED[name]}")
    given = parse(typed)
    if given.multirun:
        raise ValueError("--multirun does not go with a sweep: its trials are drawn from sweep.space")
    own = [override for override in given.overrides if re.match(r"\+{0,2}(sweep[.=]|debug=)", override)]
    others = [override for override in given.overrides if override not in own]
    return given._replace(overrides=own), given._replace(overrides=others)


def _run(sweep: Callable[..., object], own: Arguments, training: Arguments) -> None:
    started = datetime.now()
    own = own._replace(overrides=[_stored(override) for override in own.overrides])
    if own.help:
        print(help_page("sweep", SweepCommand, own))
        return
    commands = compose("sweep", own, _sweep_settings)
    if not commands:  # --cfg has shown them
        return
    ((config, name),) = commands
    # Of arguments with the same name the last one counts.
    shared = {argument.partition("=")[0].lstrip("+"): argument for argument in [*config.train, *training.overrides]}

    def make(composed: Composed) -> TrainConfig:
        check_names(config.parameters, GlobalHydra.instance().config_loader().list_groups(""))
        return settings_of(TrainConfig, composed, started)[0]

    def compose_training(parameters: Sequence[str]) -> TrainConfig:
        with as_value_error(TrainConfig):
            (made,) = compose("train", training._replace(overrides=[*shared.values(), *parameters]), make)
        return made

    base = compose_training([])
    for parameter in config.parameters:
        if parameter.name in shared:
            raise ValueError(f"{parameter.name} is given for all trials, and sweep.space varies it: leave one out")
    if config.metric.startswith("eval/") and base.eval.interval is None:
        raise ValueError(f"sweep.metric={config.metric} needs evaluations during training: add eval.interval=<steps>")
    # the default folder depends only on the command, so that the same command continues the sweep
    unnamed = Path(default_run_dir(base.env.id, started)).with_name(f"sweep_{name}")
    sweep(
        config,
        Path(str(base.run_dir)) if "run_dir" in shared else unnamed,
        compose_training,
        arguments=[argument for name, argument in shared.items() if name not in _NOT_COMPARED],
        overwrite=base.overwrite,
    )


def _sweep_settings(composed: Composed) -> tuple[SweepConfig, str]:
    """The settings of the sweep, and the name of its file."""
    command = from_dict(SweepCommand, plain_values(composed.config))
    return command.sweep, composed.choices["sweep"].removeprefix(_OWN)


def _stored(override: str) -> str:
    """Register the user's file of `sweep=<file>.yaml` with Hydra, and return an override that selects it.

    Raises:
        ValueError: there is no such file, or it is no YAML.
    """
    path = Path(override.removeprefix("sweep="))
    if not (override.startswith("sweep=") and path.suffix in (".yaml", ".yml")):
        return override
    try:
        space = OmegaConf.to_container(OmegaConf.load(path))  # which refuses a key that a mapping has twice
    except FileNotFoundError:
        raise ValueError(f"{override}: there is no file {path}") from None
    except (OSError, yaml.YAMLError) as error:
        raise ValueError(f"{override}: {path} cannot be read: {error}") from error
    if not isinstance(space, dict):
        raise ValueError(f"{override}: {path} must hold settings of the sweep, such as space: and trials:")
    choice = _OWN + re.sub(r"\W+", "_", path.stem)
    ConfigStore.instance().store(group="sweep", name=choice, node=space)
    return f"sweep={choice}"
