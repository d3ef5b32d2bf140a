"""Behavioural cloning: a policy imitates recorded actions, and its value function learns the recorded returns.

python -m enn_ppo.clone data=expert.rec env=MineSweeper
"""

from __future__ import annotations

import json
import math
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
import yaml

from enn_ppo.checkpoints.policy import select_device, set_determinism, set_threads
from enn_ppo.clone.config import CloneConfig
from enn_ppo.clone.learning import hold_out, learn, make_samples
from enn_ppo.settings.schema import to_dict
from enn_ppo.training.environment import bind_environment
from enn_ppo.training.errors import Interrupted
from enn_ppo.training.files import append_to_file, replace_file
from enn_ppo.training.interrupt import EXIT_CODES, finish_on_interrupt
from enn_ppo.training.learning.learner import Learner
from enn_ppo.training.recording import read_all
from enn_ppo.training.start import make_state, take_run_dir
from enn_ppo.training.tracking.logger import Row
from enn_ppo.training.tracking.run_dir import CONFIG, RunLock, prepare_run_dir
from entity_gym.pools.source import EnvFactory
from rogue_net import RogueNet

SETTINGS, ROWS = "clone.yaml", "clone.jsonl"
_say = partial(print, flush=True)


class CloneResult(NamedTuple):
    """A finished clone."""

    run_dir: Path
    metrics: Row  # of the last pass
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
    device = select_device(config.device)
    bound = bind_environment(config.env, env)
    set_threads(config.num_threads)
    set_determinism(config.torch_deterministic)

    with ExitStack() as stack:
        lock = RunLock()
        stack.callback(lock.close)
        run_dir = take_run_dir(config, bound.config.id, lock)
        config = replace(config, env=bound.config, run_dir=str(run_dir))
        state = make_state(config.training, bound, device)
        stack.callback(state.close)
        spaces = state.sampler.obs_space(), state.sampler.action_space()
        frames, apart = hold_out(read_all(config.files, spaces), config.clone.holdout, config.seed)
        learner = state.learner
        assert isinstance(learner, Learner)
        learned, held_out = make_samples(learner, frames, apart)
        state.reset()
        prepare_run_dir(run_dir, resume=False, overwrite=config.overwrite)
        cloning = {name: value for name, value in to_dict(config).items() if name in ("data", "clone")}
        for name, settings in ((CONFIG, to_dict(config.training)), (SETTINGS, cloning)):
            replace_file(run_dir / name, yaml.safe_dump(settings, sort_keys=False).encode())
        _say(
            f"cloning {len(frames):,} frames of {len(torch.unique(frames.episode)):,} episodes into {run_dir}; "
            f"{len(torch.unique(apart.episode)):,} episodes are held out"
        )
        losses = [math.inf]  # held-out, after each pass
        with finish_on_interrupt(_say) as interrupted:
            for row in learn(learner.model, learned, held_out, config):
                _log(run_dir / ROWS, row)
                losses.append(row.get("holdout_loss") or 0.0)
                if interrupted():
                    break
            saved = state.save(run_dir)
            if how := interrupted():
                passes = f"{how} after pass {row['epoch']} of {config.clone.epochs}"
                raise Interrupted(f"{passes}; saved {saved}", EXIT_CODES[how])
        best = min(losses[:-1])
        if losses[-1] < best - 1e-3 * abs(best):
            _say("the held-out loss still fell in the last pass: more passes (clone.epochs) may make a better clone")
        _say(
            f"done: {run_dir}; to go on from it without forgetting: python -m enn_ppo.train resume={run_dir} "
            f"ppo.teacher={run_dir}"
        )
    return CloneResult(run_dir, row, learner.model.policy)


def _log(path: Path, row: Row) -> None:
    """Print the metrics of a pass, and append them to `path`."""
    append_to_file(path, json.dumps(row).encode() + b"\n")
    shown = ("loss", "value_loss", "holdout_loss", "holdout_value_loss")
    numbers = "  ".join(f"{name} {row[name]:.4g}" for name in shown if row.get(name) is not None)
    _say(f"pass {row['epoch']}: {numbers}")
