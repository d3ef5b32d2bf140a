"""Training on recorded frames: passes, minibatches, optimizer steps.

Shapes: B frames, M frames of a minibatch.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import repeat
from typing import Any, NamedTuple

import torch
from torch import Tensor

from enn_ppo.actor_critic import ActorCritic
from enn_ppo.cloning.config import CloneConfig, CloningConfig, Loss
from enn_ppo.cloning.examples import Examples, Split
from enn_ppo.cloning.losses import choices_kl, cross_entropy, log_prob_error, numbers_kl, spread, value_error
from enn_ppo.learner import Learner
from enn_ppo.optimizer import AdamW, set_learning_rates
from enn_ppo.ppo import Weighting, clip_gradient, dropout_seed, unit_weights
from enn_ppo.return_scale import RewardScale
from enn_ppo.settings.schedule import parse_schedule
from enn_ppo.state import TrainState
from enn_ppo.tracking.logger import Row
from entity_gym.actions import ActionSpace

#: Frames that are evaluated at a time where nothing is learned from them.
FRAMES_AT_ONCE = 8192


class Weights(NamedTuple):
    """Weights of the frames; each column adds up to 1, or to 0 if there is nothing to weight."""

    actors: Tensor  # (B,) the weight of each actor in the frame
    values: Tensor  # (B,) of the frame's value

    @staticmethod
    def of(examples: Examples, weighting: Weighting) -> Weights:
        """Equal weights for actors or for frames, according to `weighting`; for values, equal for frames with a known return."""
        known = (~examples.returns.isnan()).float()
        actors = unit_weights(examples.num_actors, ratio="per_actor", weighting=weighting)
        return Weights(actors, known / known.sum().clamp(min=1))


def match_scales(state: TrainState, split: Split) -> Split:
    """Measure the input statistics, and the scale of rewards or returns of `ppo.normalize`, on the examples.

    Returns:
        The examples, with returns in the unit of values.
    """
    learned, held_out = split
    learner = state.learner
    assert isinstance(learner, Learner)
    for part in _parts(learned):
        learner.measure(part.to(learner.device).frames.obs)
    known = learned.returns[~learned.returns.isnan()]
    return_scale, reward_scale = learner.return_scale, learner.reward_scale
    if return_scale and len(known):
        return_scale(known, state.model.value_head)
    if not reward_scale:
        return split
    deviation = _measure_rewards(reward_scale, learned, parse_schedule("ppo.gamma", state.config.ppo.gamma)(0.0))
    return Split(*(Examples(each.frames, each.returns / deviation) for each in (learned, held_out)))


def _measure_rewards(scale: RewardScale, examples: Examples, gamma: float) -> float:
    """Measure the reward scale on all episodes; returns the standard deviation."""
    frames = examples.frames
    order = torch.argsort(frames.step, stable=True)
    order = order[torch.argsort(frames.episode[order], stable=True)]
    is_last = torch.cat([frames.episode[order].diff() != 0, torch.ones(1, dtype=torch.bool)])
    end_to_end = RewardScale(1)
    end_to_end(frames.rewards[order].unsqueeze(1), is_last.unsqueeze(1), gamma)
    scale.load_state(end_to_end.state())
    return scale.deviation


def learn(
    model: ActorCritic,
    split: Split,
    config: CloneConfig,
    log: Callable[[Row], None],
    interrupted: Callable[[], bool] = lambda: False,
) -> Row:
    """Train `model` to imitate the recorded actions.

    Args:
        model: changed in place; its input statistics are measured already.
        split: training and held-out examples.
        config: settings of cloning.
        log: called with the metrics of each pass.
        interrupted: whether to end after the current pass.

    Returns:
        The metrics of the pass whose weights were kept.
    """
    cloning, weighting = config.clone, config.ppo.weighting
    optimizer = AdamW(model.parameters(), lr=0.0, eps=1e-5, weight_decay=cloning.weight_decay, fused=True)
    generator = torch.Generator().manual_seed(config.seed)
    best: tuple[float, Row, dict[str, Any]] | None = None  # loss, metrics and weights of the best pass
    for epoch in range(1, cloning.epochs + 1):
        started = time.perf_counter()
        row: Row = {"epoch": epoch}
        with dropout_seed(int(torch.randint(2**62, (), generator=generator)), model.value_head.deviation.device):
            row |= _learn_once(model, optimizer, split.learned, cloning, weighting, epoch, generator)
        row |= {f"holdout_{name}": value for name, value in measure(model, split.held_out, cloning, weighting).items()}
        row["seconds"] = time.perf_counter() - started
        log(row)
        if cloning.patience is not None:
            loss = float(row["holdout_loss"] or 0.0) + cloning.vf_coef * float(row["holdout_value_loss"] or 0.0)
            if best is None or loss < best[0]:
                best = loss, row, copy.deepcopy(model.state_dict())
            elif epoch - int(best[1]["epoch"] or 0) >= cloning.patience:
                break
        if interrupted():
            break
    if best is None:
        return row
    model.load_state_dict(best[2])
    return best[1]


def _learn_once(
    model: ActorCritic,
    optimizer: torch.optim.Optimizer,
    examples: Examples,
    cloning: CloningConfig,
    weighting: Weighting,
    epoch: int,
    generator: torch.Generator,
) -> Row:
    """One pass over the examples. Returns means over its minibatches."""
    schedule = parse_schedule("clone.lr", cloning.lr)
    device = model.value_head.deviation.device
    minibatches = torch.randperm(len(examples), generator=generator).tensor_split(
        math.ceil(len(examples) / cloning.batch_size)
    )
    totals = torch.zeros(4, device=device)  # stays on the device until the end
    for number, rows in enumerate(minibatches):
        rate = schedule((epoch - 1 + number / len(minibatches)) / cloning.epochs)
        set_learning_rates(optimizer, repeat(rate))
        minibatch = examples.gather(rows).to(device)
        losses = _losses(model, minibatch, Weights.of(minibatch, weighting), cloning.loss)
        optimizer.zero_grad(set_to_none=True)
        (losses[0] + cloning.vf_coef * losses[1]).backward()  # type: ignore[no-untyped-call]
        norm = clip_gradient(list(model.parameters()), cloning.max_grad_norm)
        optimizer.step()
        totals += torch.cat([losses.detach(), norm.reshape(1)])
    names = ("loss", "value_loss", "log_prob", "grad_norm")
    return {**dict(zip(names, (totals / len(minibatches)).tolist(), strict=True)), "learning_rate": rate}


@torch.no_grad()
def measure(model: ActorCritic, examples: Examples, cloning: CloningConfig, weighting: Weighting) -> Row:
    """`loss`, `value_loss` and `log_prob` of all examples, without dropout; empty if there are no examples."""
    if not len(examples):
        return {}
    device = model.value_head.deviation.device
    weights = Weights.of(examples, weighting)
    totals = torch.zeros(3, device=device)
    model.eval()
    start = 0
    for part in _parts(examples):
        own = Weights(*(column[start : start + len(part)].to(device) for column in weights))
        totals += _losses(model, part.to(device), own, cloning.loss)
        start += len(part)
    model.train()
    return dict(zip(("loss", "value_loss", "log_prob"), totals.tolist(), strict=True))


def _losses(model: ActorCritic, examples: Examples, weights: Weights, loss: Loss) -> Tensor:
    """(3,) the loss, the value error, and the mean log-probability of the recorded actions."""
    frames = examples.frames
    evaluation = model.evaluate(frames.obs, frames.actions)
    policy, log_prob = weights.actors.new_zeros(()), weights.actors.new_zeros(())
    for name, actions in frames.actions.items():
        own, log_probs = spread(weights.actors, actions), evaluation.log_probs[name]
        log_prob = log_prob + own.dot(log_probs.detach())
        if loss == "cross_entropy":
            policy = policy + cross_entropy(log_probs, own)
        elif loss == "log_prob":
            policy = policy + log_prob_error(log_probs, frames.log_probs[name].values, own)
        else:
            assert frames.logits is not None, "checked when the examples were loaded"
            recorded = frames.logits[name]
            rows = spread(weights.actors, recorded)
            divergence = numbers_kl if _is_continuous(model.policy.action_space, name) else choices_kl
            policy = policy + divergence(evaluation.logits[name].view_as(recorded.values), recorded.values, rows)
    value = value_error(evaluation.values, examples.returns, weights.values, model.value_head.deviation)
    return torch.stack([policy, value, log_prob])


def _is_continuous(action_space: Mapping[str, ActionSpace], name: str) -> bool:
    return not action_space[name].discrete


def _parts(examples: Examples) -> Iterator[Examples]:
    """Consecutive parts of the examples, each small enough for the memory."""
    for rows in torch.split(torch.arange(len(examples)), FRAMES_AT_ONCE):
        yield examples.gather(rows)
