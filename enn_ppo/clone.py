"""Behavioural cloning: a policy imitates recorded actions, and its value function learns the recorded returns.

python -m enn_ppo.clone data=expert.rec env=MineSweeper

Shapes: B frames.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
import yaml
from torch import Tensor

from enn_ppo.checkpoints.policy import select_device, set_determinism, set_threads
from enn_ppo.ppo import Samples, Stats, update
from enn_ppo.settings.cloning import CloneConfig
from enn_ppo.settings.learning import PPOSettings
from enn_ppo.settings.schema import to_dict
from enn_ppo.training.environment import bind_environment
from enn_ppo.training.errors import Interrupted
from enn_ppo.training.files import append_to_file, replace_file
from enn_ppo.training.frames import Frames
from enn_ppo.training.interrupt import EXIT_CODES, finish_on_interrupt
from enn_ppo.training.learning.actor_critic import ActorCritic
from enn_ppo.training.learning.learner import Learner
from enn_ppo.training.learning.optimizer import AdamW
from enn_ppo.training.learning.teacher import of_items
from enn_ppo.training.random_keys import Purpose, random_key
from enn_ppo.training.recording import RecordedFrames, read_all
from enn_ppo.training.start import make_state, take_run_dir
from enn_ppo.training.tracking.logger import Row
from enn_ppo.training.tracking.run_dir import CONFIG, RunLock, prepare_run_dir
from entity_gym.pools.source import EnvFactory
from rogue_net import RogueNet

SETTINGS, ROWS = "clone.yaml", "clone.jsonl"
_say = partial(print, flush=True)
#: Largest batch of frames when measuring losses without training.
FRAMES_AT_ONCE = 8192
MAX_GRAD_NORM = 1.0
#: Frames through which gradients flow back, unless `optim.sequence_length` says it. What came before them is not remembered.
SEQUENCE = 32


class CloneResult(NamedTuple):
    """A finished clone."""

    run_dir: Path
    metrics: Row  # of the last pass
    policy: RogueNet


def clone(config: CloneConfig, env: EnvFactory | None = None) -> CloneResult:
    """Learn a policy from recordings, and save it as a run with 0 training steps, which can be evaluated or resumed.

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
        with finish_on_interrupt(_say) as interrupted:
            for row in learn(learner.model, learned, held_out, config):
                _log(run_dir / ROWS, row)
                if interrupted():
                    break
            saved = state.save(run_dir)
            if how := interrupted():
                passes = f"{how} after pass {row['epoch']} of {config.clone.epochs}"
                raise Interrupted(f"{passes}; saved {saved}", EXIT_CODES[how])
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


# --- The frames


def hold_out(frames: RecordedFrames, share: float, seed: int) -> tuple[RecordedFrames, RecordedFrames]:
    """Hold out a random fraction of the episodes: at least one, unless `share` is 0 or there is only one.

    Returns:
        The training frames, and the held-out frames.
    """
    episodes = torch.unique(frames.episode)
    number = min(max(1, round(share * len(episodes))), len(episodes) - 1) if share else 0
    chosen = torch.randperm(len(episodes), generator=torch.Generator().manual_seed(seed))[:number]
    is_held_out = torch.isin(frames.episode, episodes[chosen])
    return frames.gather((~is_held_out).nonzero()[:, 0]), frames.gather(is_held_out.nonzero()[:, 0])


def make_samples(learner: Learner, learned: RecordedFrames, held_out: RecordedFrames) -> tuple[Samples, Samples]:
    """Initialise the input statistics, and the return scale of `ppo.normalize`, from the training frames.

    Returns:
        The training and the held-out samples on the learner's device; returns are NaN where unknown.
    """
    gamma = learner.ppo.schedules["gamma"](0.0)
    learner.measure(learned.to(learner.device).obs)
    returns = learned.returns(gamma)
    known = returns[~returns.isnan()]
    if learner.return_scale and len(known):
        learner.return_scale(known, learner.model.value_head)
    return samples_of(learned, returns, learner), samples_of(held_out, held_out.returns(gamma), learner)


def samples_of(frames: RecordedFrames, returns: Tensor, learner: Learner) -> Samples:
    """Samples on the learner's device; for a policy that remembers, in order of time within each episode."""
    follows = torch.zeros_like(returns, dtype=torch.bool)
    if learner.model.remembers and len(frames):
        order = torch.argsort(frames.step, stable=True)
        order = order[torch.argsort(frames.episode[order], stable=True)]
        frames, returns = frames.gather(order), returns[order]
        follows[1:] = (frames.episode.diff() == 0) & (frames.step.diff() == 1)
    columns = {field.name: getattr(frames, field.name) for field in fields(Frames)}
    advantages = torch.zeros_like(returns)
    return Samples(**columns, advantages=advantages, returns=returns, follows=follows).to(learner.device)


def windows(num_frames: int, length: int) -> Tensor:
    """(S, L) int64: frames in parts of `length` one behind the other; the last one begins earlier where it must to be whole."""
    length = min(length, num_frames)
    starts = torch.tensor(sorted({*range(0, num_frames - length + 1, length), num_frames - length}))
    return starts.unsqueeze(1) + torch.arange(length)


# --- The loss


def clone_loss(net: RogueNet | ActorCritic, batch: Samples, settings: PPOSettings) -> tuple[Tensor, Stats]:
    """L = L_policy + c_V L_value of recorded actions and returns, in place of `enn_ppo.ppo.ppo_loss`.

        L_policy = -sum_a w_a log q(a) of the recorded actions a
        L_value = 0.5 sum_b w_b ((V_b - G_b) / deviation)², over the frames whose return G is known

    Returns:
        The loss, and `loss` (L_policy) and `value_loss`.
    """
    new = net.evaluate(batch.obs, batch.actions, batch.state, batch.follows)
    log_probs = [of_items(batch.weights, each).dot(each.values) for each in new.log_probs.values()]
    policy = -torch.stack(log_probs).sum()
    errors = (new.values - batch.returns.nan_to_num()) / net.value_head.deviation
    value = 0.5 * batch.frame_weights.dot(torch.where(batch.returns.isnan(), 0.0, errors).square())
    return policy + settings.vf_coef * value, {"loss": policy, "value_loss": value}


# --- Passes


def learn(model: ActorCritic, learned: Samples, held_out: Samples, config: CloneConfig) -> Iterator[Row]:
    """Train `model` in place to imitate the actions of `learned`; yields the metrics of each pass.

    Its input statistics are initialised already. `held_out` may be empty.

    Raises:
        ValueError: the loss has become infinite or NaN; the message names the pass and the learning rate.
    """
    cloning, schedule = config.clone, config.optim.schedule
    optimizer = AdamW(model.parameters(), lr=0.0, eps=1e-5, weight_decay=0.0, fused=True)
    optim = replace(config.optim, epochs=1, max_grad_norm=MAX_GRAD_NORM)
    sequences = windows(len(learned), optim.sequence_length or SEQUENCE) if model.remembers else None
    settings, generator = settings_of(config), torch.Generator()
    for epoch in range(1, cloning.epochs + 1):
        started = time.perf_counter()
        generator.manual_seed(random_key(config.seed, epoch, Purpose.SHUFFLING))
        rate = schedule((epoch - 1) / cloning.epochs)
        optimizer.param_groups[0]["lr"] = rate
        stats = update(
            model, optimizer, learned, optim, settings, generator=generator, loss=clone_loss, sequences=sequences
        )
        row: Row = {"epoch": epoch} | {name: stats[name] for name in ("loss", "value_loss", "grad_norm")}
        measured = measure(model, held_out, settings)
        row |= {"learning_rate": rate} | {f"holdout_{name}": value for name, value in measured.items()}
        row["seconds"] = time.perf_counter() - started
        if not measured and epoch == cloning.epochs:  # the losses of a pass do not show its last step
            measured = measure(model, learned.gather(torch.arange(min(512, len(learned)))), settings)
        for name, value in (row | measured).items():
            if value is not None and not math.isfinite(value):
                raise ValueError(
                    f"cloning has diverged in pass {epoch}: {name} is {value}; nothing is saved: set an optim.lr below "
                    f"{config.optim.lr!r}"
                )
        yield row


def settings_of(config: CloneConfig) -> PPOSettings:
    """The settings that `update` needs: an actor is a unit, and advantages do not count."""
    return replace(PPOSettings.at(config.ppo), target_kl=None, ratio="per_actor", normalize_advantages=False)


@torch.no_grad()
def measure(model: ActorCritic, samples: Samples, settings: PPOSettings) -> dict[str, float]:
    """`loss` and `value_loss` of all samples, without dropout; empty if there are no samples."""
    sums: dict[str, float] = {}
    if not len(samples):
        return sums
    minibatch = samples.weighed(settings)  # weights are of all, so the losses of its parts add up
    model.eval()
    for part in minibatch.split([len(each) for each in torch.split(minibatch.weights, FRAMES_AT_ONCE)]):
        sums = {
            name: sums.get(name, 0.0) + float(number) for name, number in clone_loss(model, part, settings)[1].items()
        }
    model.train()
    return sums


if __name__ == "__main__":
    from enn_ppo.settings.command_line.cli import run_clone

    raise SystemExit(run_clone(clone))
