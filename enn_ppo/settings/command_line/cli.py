"""The commands, which compose settings, run, report mistakes in one paragraph, and return an exit code."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import env_override
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

import enn_ppo
from enn_ppo.settings.cloning import CloneConfig
from enn_ppo.settings.command_line.composition import CONFIGS, compose, escaped, plain_values, prepare, store_defaults
from enn_ppo.settings.command_line.help import help_page
from enn_ppo.settings.command_line.mistakes import guarded, told
from enn_ppo.settings.config import EvalConfig, TrainConfig
from enn_ppo.settings.evaluation import WatchConfig
from enn_ppo.settings.resuming import resumed
from enn_ppo.settings.schema import from_dict, to_dict
from enn_ppo.settings.serving import ServeConfig
from enn_ppo.settings.sweeping import SweepCommand
from enn_ppo.training.errors import Interrupted
from entity_gym.output import accept_all_characters


def _main(name: str, schema: type[Any], run: Callable[[Any], object], argv: Sequence[str] | None = None) -> int:
    """Compose the settings of a command, `run` it with them, and return the exit code; see `guarded`.

    `argv` are the arguments without the program's name, by default those of the process.
    """
    accept_all_characters()
    typed = list(sys.argv[1:] if argv is None else argv)
    return guarded(lambda: _command(name, schema, run, typed), schema)


def _command(name: str, schema: type[Any], run: Callable[[Any], object], typed: Sequence[str]) -> None:
    """Show the help page, run the command, or leave it to Hydra where there are flags or settings of Hydra."""
    parser = argparse.ArgumentParser(f"python -m enn_ppo.{name}", add_help=False, allow_abbrev=False)
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("-cd", "--config-dir", type=Path)
    parser.add_argument("--version", action="version", version=enn_ppo.__version__)
    parser.add_argument("overrides", nargs="*")
    multirun = bool({"-m", "--multirun"} & set(typed))
    prepared = [prepare(each, schema, lists=multirun) for each in typed]
    given, others = parser.parse_known_intermixed_args(prepared)
    folder = given.config_dir
    if folder is not None and not folder.is_dir():
        raise ValueError(f"--config-dir: folder '{folder}' not found")
    if given.help:
        print(help_page(name, schema, given.overrides, folder))
    elif multirun and schema in (ServeConfig, SweepCommand, WatchConfig):
        raise ValueError("--multirun is for commands that train or evaluate")
    elif others or any(re.match(r"[+~]*hydra[./]", each) for each in given.overrides):
        _leave_to_hydra(name, schema, run, prepared, folder)
    else:
        run(_settings(schema, compose(name, given.overrides, folder), given.overrides, folder))


def _leave_to_hydra(
    name: str, schema: type[Any], run: Callable[[Any], object], arguments: Sequence[str], config_dir: Path | None
) -> None:
    """Let Hydra do what its flags say: run a job, or those of `--multirun` by its sweeper and launcher, or print settings."""

    def job(config: DictConfig) -> float | None:
        """Returns what a sweeper may optimize: the mean episodic reward of the last update."""
        of_hydra = HydraConfig.get()
        overrides = list(of_hydra.overrides.task)
        try:
            settings = _settings(schema, config, overrides, config_dir)
            if isinstance(settings, TrainConfig) and of_hydra.mode == RunMode.MULTIRUN:
                settings = replace(settings, run_dir=of_hydra.runtime.output_dir)
            result = run(settings)
        except Interrupted as interrupted:  # Hydra would go on with the next job
            print(interrupted, file=sys.stderr)
            raise SystemExit(interrupted.exit_code) from None
        except Exception as error:  # told at once, since the launcher goes on with the next job
            error.add_note(f"(job {' '.join(overrides)})")
            if (paragraph := told(error, schema)) is not None:
                print(f"error: {paragraph}", file=sys.stderr, flush=True)
            raise
        reward = (getattr(result, "metrics", None) or {}).get("episodic_reward")
        return None if reward is None else float(reward)

    store_defaults()
    # Hydra takes flags and settings in any order only where all settings stand together
    flags_first = sorted(arguments, key=lambda each: each[:1] != "-" and ("=" in each or each[:1] in "~+"))
    of_process, sys.argv = sys.argv, [name, *flags_first]
    try:
        with env_override({"HYDRA_FULL_ERROR": "1"}):  # Hydra raises its errors in place of printing them
            hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name=name)(job)()
    finally:
        sys.argv = of_process


def _settings(schema: type[Any], config: DictConfig, overrides: Sequence[str], config_dir: Path | None) -> Any:
    """The checked settings; those of a resumed run are the checkpoint's, changed by the overrides.

    Raises:
        ValueError: a setting is not allowed, there is no such checkpoint, or it names code and is not trusted.
    """
    if schema is not TrainConfig or config.get("resume") is None:
        return from_dict(schema, plain_values(config))

    def change(saved: TrainConfig) -> TrainConfig:
        base = escaped(to_dict(saved))
        # on resuming, `env=...` only selects the environment: the preset's other settings are for new runs
        typed = [override for override in overrides if not override.startswith("env=")]
        if len(typed) < len(overrides):
            base["env"] = escaped(OmegaConf.to_container(config.env, resolve=True))
        groups = ["_self_", *({group: None} for group in ("value_net", "distributed", "env", "experiment"))]
        ConfigStore.instance().store(name="resumed", node={"defaults": groups, **base})
        return from_dict(TrainConfig, plain_values(compose("resumed", typed, config_dir)))

    return resumed(config.resume, change)


def run_eval(run: Callable[[EvalConfig], object], argv: Sequence[str] | None = None) -> int:
    """Evaluate, and print the result and the files that were written."""

    def evaluate(config: EvalConfig) -> None:
        print(run(config))
        for file in filter(None, (config.render, config.record)):
            print(f"wrote {file}")

    return _main("eval", EvalConfig, evaluate, argv)


def run_watch(run: Callable[[WatchConfig], object], argv: Sequence[str] | None = None) -> int:
    """Show a policy in the browser: the first argument without a name is the run; `--live` and `--play` set `live` and `play`."""
    named = []
    for argument in sys.argv[1:] if argv is None else argv:
        is_run = "=" not in argument and not argument.startswith("-")
        is_flag = argument in ("--live", "--play")
        named.append(f"{argument[2:]}=true" if is_flag else f"run={argument}" if is_run else argument)
    return _main("watch", WatchConfig, run, named)


def run_sweep(run: Callable[[SweepCommand, list[str]], object], argv: Sequence[str] | None = None) -> int:
    """Sweep; `run` also takes the arguments of each trial."""
    typed = list(sys.argv[1:] if argv is None else argv)
    arguments = [argument for argument in typed if not re.match(r"\+*(sweep[.=]|run_dir=)", argument)]
    return _main("sweep", SweepCommand, lambda config: run(config, arguments), typed)


run_train = partial(_main, "train", TrainConfig)
run_serve = partial(_main, "serve", ServeConfig)
run_clone = partial(_main, "clone", CloneConfig)
