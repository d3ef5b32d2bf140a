"""The command line of a sweep: which arguments are its own, and which are training's."""

from __future__ import annotations

import contextlib
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig

from enn_ppo.command_line.cli import train_job
from enn_ppo.command_line.composition import Composed, Job, compose, plain_values
from enn_ppo.command_line.help_page import asks_for_help, help_page
from enn_ppo.command_line.mistakes import guarded, told
from enn_ppo.config import TrainConfig, default_run_dir
from enn_ppo.settings.schema import from_dict
from enn_ppo.tuning.config import SweepCommand, SweepConfig
from enn_ppo.tuning.space import check_names

_OWN = "own_"  # before the name of a user's file, which must not be taken for one of configs/sweep
_NOT_COMPARED = ("run_dir", "overwrite")  # do not make it another sweep
_REFUSED = {
    "--multirun": "its trials are drawn from sweep.space",
    "-m": "its trials are drawn from sweep.space",
    "resume": "a sweep goes on with the same command",
    "jobs": "trials at a time are sweep.jobs",
}


class Arguments(NamedTuple):
    """A command line in its parts."""

    flags: list[str]  # for both
    own: list[str]  # for the sweep
    typed: list[str]  # for training


def run_sweep(sweep: Callable[..., object], argv: Sequence[str] | None = None) -> int:
    """Compose the settings of the sweep and of training, run the sweep, and return the exit code.

    Args:
        sweep: `enn_ppo.sweep.sweep`.
        argv: arguments without the program's name; None takes the process's own.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = any(re.fullmatch(r"\+{0,2}debug=true", argument, re.IGNORECASE) for argument in arguments)
    return guarded(lambda: _run(sweep, split(arguments)), lambda: SweepCommand, lambda: debug)


def split(arguments: Sequence[str]) -> Arguments:
    """Tell the sweep's arguments from training's.

    Raises:
        ValueError: one of them does not go with a sweep.
    """
    for argument in arguments:
        name = argument.lstrip("+").partition("=")[0]
        if name in _REFUSED:
            raise ValueError(f"{argument} does not go with a sweep: {_REFUSED[name]}")
    flags = [argument for argument in arguments if argument.startswith("-") or "=" not in argument]
    settings = [argument for argument in arguments if argument not in flags]
    own = [argument for argument in settings if re.match(r"\+{0,2}(sweep[.=]|debug=)", argument)]
    return Arguments(flags, own, [argument for argument in settings if argument not in own])


def _run(sweep: Callable[..., object], arguments: Arguments) -> None:
    started = datetime.now()
    with _own_files(arguments.own) as own:
        if asks_for_help(arguments.flags):
            print(help_page("sweep", SweepCommand, [*arguments.flags, *own]))
            return
        commands = compose("sweep", [*arguments.flags, *own], _command)
    if not commands:  # --cfg has shown what it shows
        return
    config, name = commands[0].config.sweep, commands[0].note
    shared = _later_ones([*config.train, *arguments.typed])
    groups: list[str] = []

    def make(composed: Composed) -> Job[TrainConfig]:
        groups.extend(GlobalHydra.instance().config_loader().list_groups(""))
        return train_job(composed, started)

    def compose_training(parameters: Sequence[str]) -> TrainConfig:
        try:
            (job,) = compose("train", [*arguments.flags, *shared.values(), *parameters], make)
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
    name = str(HydraConfig.get().runtime.choices["sweep"]).removeprefix(_OWN)
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


@contextlib.contextmanager
def _own_files(own: Sequence[str]) -> Iterator[list[str]]:
    """Let `sweep=<file>.yaml` name a file anywhere, which Hydra does not: it is copied to where Hydra looks.

    Raises:
        ValueError: there is no such file.
    """
    with tempfile.TemporaryDirectory(prefix="enn_ppo_") as scratch:
        arguments = []
        for argument in own:
            path = Path(argument.removeprefix("sweep="))
            if not (argument.startswith("sweep=") and path.suffix in (".yaml", ".yml")):
                arguments.append(argument)
                continue
            if not path.is_file():
                raise ValueError(f"{argument}: there is no file {path}")
            choice = _OWN + re.sub(r"\W+", "_", path.stem)
            (Path(scratch) / "sweep").mkdir(exist_ok=True)
            shutil.copyfile(path, Path(scratch) / "sweep" / f"{choice}.yaml")
            arguments += [f"sweep={choice}", f"hydra.searchpath=[file://{scratch}]"]
        yield arguments
