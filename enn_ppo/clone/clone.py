"""Behavioural cloning: a policy imitates recorded actions, and its value function learns the recorded returns.

python -m enn_ppo.clone data=expert.rec env=MineSweeper
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
import yaml

from enn_ppo.checkpoints.policy import select_device, set_determinism, set_threads
from enn_ppo.clone.config import CloneConfig
from enn_ppo.clone.learning import hold_out, learn, load_frames, make_samples
from enn_ppo.settings.config import default_run_dir
from enn_ppo.settings.schema import to_dict
from enn_ppo.training.environment import bind_environment
from enn_ppo.training.errors import Interrupted
from enn_ppo.training.files import append_to_file, replace_file
from enn_ppo.training.interrupt import EXIT_CODES, finish_on_interrupt
from enn_ppo.training.learning.learner import Learner
from enn_ppo.training.memory import check_memory
from enn_ppo.training.state import TrainState
from enn_ppo.training.tracking.logger import Row
from enn_ppo.training.tracking.run_dir import CONFIG, RunLock, prepare_run_dir
from entity_gym.pools.source import EnvFactory
from rogue_net import RogueNet

SETTINGS, ROWS = "clone.yaml", "clone.jsonl"


class CloneResult(NamedTuple):
    """A finished clone."""

    run_dir: Path
    metrics: Row  # of the pass whose weights were kept
    policy: RogueNet


def clone(config: CloneConfig, env: EnvFactory | None = None) -> CloneResult:
    """Learn a policy from recordings, and save it as a run with 0 training steps, which can be evaluated or resumed.

    Args:
        config: every setting.
        env: the environment, as in `train`.

    Raises:
        ValueError: a setting, a recording, the environment or the run directory is invalid, or the loss has diverged; nothing is
            saved then.
        Interrupted: after Ctrl-C or SIGTERM; the weights after the last pass were saved.
    """
    check_memory(config)
    device = select_device(config.device)
    bound = bind_environment(config.env, env)
    run_dir = config.run_dir or default_run_dir(bound.config.id, datetime.now())
    config = replace(config, env=bound.config, run_dir=run_dir)
    set_threads(config.num_threads)
    set_determinism(config.torch_deterministic)

    with ExitStack() as stack:
        lock = RunLock()
        stack.callback(lock.close)
        lock.take(Path(run_dir))
        state = TrainState(config.training, bound, device)
        stack.callback(state.close)
        spaces = state.sampler.obs_space(), state.sampler.action_space()
        frames, apart = hold_out(load_frames(config, *spaces, bound.config.id), config.clone.holdout, config.seed)
        assert isinstance(state.learner, Learner)
        learned, held_out = make_samples(state.learner, frames, apart)
        state.reset()
        _prepare(config, Path(run_dir))
        _say(
            f"cloning {len(frames):,} frames of {len(torch.unique(frames.episode)):,} episodes into {run_dir}; "
            f"{len(torch.unique(apart.episode)):,} episodes are held out"
        )
        with finish_on_interrupt(_say) as interrupted:
            row = learn(
                state.model, learned, held_out, config, partial(_log, Path(run_dir) / ROWS), lambda: bool(interrupted())
            )
            saved = state.save(Path(run_dir))
            if how := interrupted():
                passes = f"{how} after pass {row['epoch']} of {config.clone.epochs}"
                raise Interrupted(f"{passes}; saved {saved}", EXIT_CODES[how])
        _say(
            f"done: {run_dir}; to go on from it without forgetting: python -m enn_ppo.train resume={run_dir} "
            f"ppo.teacher={run_dir}"
        )
    return CloneResult(Path(run_dir), row, state.net)


def _prepare(config: CloneConfig, run_dir: Path) -> None:
    """Create the run directory with `config.yaml`, `clone.yaml` and an empty `clone.jsonl`.

    Raises:
        ValueError: the directory holds a run and `overwrite` is not set, or the directory cannot be written.
    """
    prepare_run_dir(run_dir, resume=False, overwrite=config.overwrite)
    cloning = {name: value for name, value in to_dict(config).items() if name in ("data", "clone")}
    try:
        replace_file(run_dir / CONFIG, yaml.safe_dump(to_dict(config.training), sort_keys=False).encode())
        replace_file(run_dir / SETTINGS, yaml.safe_dump(cloning, sort_keys=False).encode())
        replace_file(run_dir / ROWS, b"")
    except OSError as error:
        raise ValueError(f"run_dir {run_dir} cannot be written: {error}") from error


def _log(path: Path, row: Row) -> None:
    """Print the metrics of a pass, and append them to `path`.

    Raises:
        ValueError: the file cannot be written.
    """
    try:
        append_to_file(path, json.dumps(row).encode() + b"\n")
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error}; nothing was saved") from error
    shown = ("loss", "value_loss", "holdout_loss", "holdout_value_loss")
    numbers = "  ".join(f"{name} {row[name]:.4g}" for name in shown if row.get(name) is not None)
    _say(f"pass {row['epoch']}: {numbers}")


def _say(text: str) -> None:
    print(text, flush=True)
