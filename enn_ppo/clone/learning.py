"""Training on recorded frames: passes, minibatches, optimizer steps.

Shapes: B frames, M frames of a minibatch.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from itertools import repeat
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from enn_ppo.clone.config import CloneConfig, CloningConfig, Loss
from enn_ppo.clone.examples import Examples
from enn_ppo.clone.losses import choices_kl, cross_entropy, log_prob_error, numbers_kl, spread, value_error
from enn_ppo.ppo import unit_weights
from enn_ppo.settings.learning import Weighting
from enn_ppo.settings.schedule import parse_schedule
from enn_ppo.training.learning.actor_critic import ActorCritic
from enn_ppo.training.learning.learner import Learner, can_be_compiled
from enn_ppo.training.learning.optimizer import AdamW, clip_gradient, set_learning_rates
from enn_ppo.training.learning.return_scale import RewardScale
from enn_ppo.training.random_keys import dropout_seed
from enn_ppo.training.state import TrainState
from enn_ppo.training.tracking.logger import Row

if TYPE_CHECKING:
    from enn_ppo.training.learning.compiled import CompiledSteps

#: Largest batch of frames when measuring losses without training.
FRAMES_AT_ONCE = 8192


def frame_weights(value_targets: Tensor, num_actors: Tensor, weighting: Weighting) -> tuple[Tensor, Tensor]:
    """(B,) weight of each actor in a frame, and (B,) weight of the frame's value; both add up to 1, or to 0 without any.

    Actors or frames have equal weights, according to `weighting`. Values of frames with a known return have equal weights.

    Args:
        value_targets: (B,) NaN where the return is not known.
        num_actors: (B,) int64.
        weighting: see above.
    """
    known = (~value_targets.isnan()).float()
    actors = unit_weights(num_actors, ratio="per_actor", weighting=weighting)
    return actors, known / known.sum().clamp(min=1)


def match_scales(state: TrainState, learned: Examples, held_out: Examples) -> tuple[Examples, Examples]:
    """Initialise the input statistics, and the reward or return scale of `ppo.normalize`, from the training examples.

    Returns:
        The training examples and the held-out examples, with targets in the unit of values.
    """
    learner = state.learner
    assert isinstance(learner, Learner)
    for part in _parts(learned):
        learner.measure(part.to(learner.device).obs)
    known = learned.value_targets[~learned.value_targets.isnan()]
    return_scale, reward_scale = learner.return_scale, learner.reward_scale
    if return_scale and len(known):
        return_scale(known, state.model.value_head)
    if not reward_scale:
        return learned, held_out
    deviation = _measure_rewards(reward_scale, learned, parse_schedule("ppo.gamma", state.config.ppo.gamma)(0.0))
    learned, held_out = (replace(each, value_targets=each.value_targets / deviation) for each in (learned, held_out))
    return learned, held_out


def _measure_rewards(scale: RewardScale, examples: Examples, gamma: float) -> float:
    """Initialise the reward scale from all episodes, and return its standard deviation."""
    order = torch.argsort(examples.step, stable=True)
    order = order[torch.argsort(examples.episode[order], stable=True)]
    is_last = torch.cat([examples.episode[order].diff() != 0, torch.ones(1, dtype=torch.bool)])
    end_to_end = RewardScale(1)
    end_to_end(examples.rewards[order].unsqueeze(1), is_last.unsqueeze(1), gamma)
    scale.load_state(end_to_end.state())
    return scale.deviation


def learn(
    model: ActorCritic,
    learned: Examples,
    held_out: Examples,
    config: CloneConfig,
    log: Callable[[Row], None],
    interrupted: Callable[[], bool] = lambda: False,
) -> Row:
    """Train `model` to imitate the recorded actions.

    Args:
        model: changed in place; its input statistics are initialised already.
        learned: training examples.
        held_out: examples to measure after each pass; may be empty.
        config: settings of cloning.
        log: called with the metrics of each pass.
        interrupted: whether to end after the current pass.

    Returns:
        The metrics of the pass whose weights were kept.

    Raises:
        ValueError: the loss has become infinite or NaN; the message names the pass and the learning rate.
    """
    cloning, weighting = config.clone, config.ppo.weighting
    optimizer = AdamW(model.parameters(), lr=0.0, eps=1e-5, weight_decay=cloning.weight_decay, fused=True)
    steps = _compiled_steps(model, optimizer)
    generator = torch.Generator().manual_seed(config.seed)
    best: tuple[float, Row, dict[str, Any]] | None = None  # loss, metrics and weights of the best pass
    for epoch in range(1, cloning.epochs + 1):
        started = time.perf_counter()
        row: Row = {"epoch": epoch}
        with dropout_seed(int(torch.randint(2**62, (), generator=generator)), model.value_head.deviation.device):
            row |= _learn_once(model, optimizer, learned, cloning, weighting, epoch, generator, steps)
        measured = measure(model, held_out, cloning, weighting, steps)
        row |= {f"holdout_{name}": value for name, value in measured.items()}
        row["seconds"] = time.perf_counter() - started
        if not measured and epoch == cloning.epochs:  # the losses of a pass do not show its last step
            measured = measure(model, _parts(learned)[0], cloning, weighting, steps)
        _check_finite(row | measured, cloning)
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


def _check_finite(row: Row, cloning: CloningConfig) -> None:
    for name, value in row.items():
        if value is not None and not math.isfinite(value):
            raise ValueError(
                f"cloning has diverged in pass {row['epoch']}: {name} is {value}; nothing is saved: set a clone.lr below "
                f"{cloning.lr!r}"
            )


def _learn_once(
    model: ActorCritic,
    optimizer: torch.optim.Optimizer,
    examples: Examples,
    cloning: CloningConfig,
    weighting: Weighting,
    epoch: int,
    generator: torch.Generator,
    steps: CompiledSteps | None = None,
) -> Row:
    """Do one pass over the examples, by compiled steps or by torch. Returns means over its minibatches."""
    schedule = parse_schedule("clone.lr", cloning.lr)
    device = model.value_head.deviation.device
    minibatches = torch.randperm(len(examples), generator=generator).tensor_split(
        math.ceil(len(examples) / cloning.batch_size)
    )
    totals = torch.zeros(4, device=device)  # stays on the device until the end
    num_actors = examples.num_actors
    with steps.frames(examples.obs, examples.actions, examples.log_probs, examples.logits) if steps else nullcontext():
        for number, rows in enumerate(minibatches):
            rate = schedule((epoch - 1 + number / len(minibatches)) / cloning.epochs)
            set_learning_rates(optimizer, repeat(rate))
            if steps:
                weights = frame_weights(examples.value_targets[rows], num_actors[rows], weighting)
                losses = _compiled_losses(steps, rows, examples, *weights, cloning, learning=True)
                norm = torch.tensor(steps.step(cloning.max_grad_norm))
            else:
                minibatch = examples.gather(rows).to(device)
                weights = frame_weights(minibatch.value_targets, minibatch.num_actors, weighting)
                losses = _losses(model, minibatch, *weights, cloning.loss)
                optimizer.zero_grad(set_to_none=True)
                (losses[0] + cloning.vf_coef * losses[1]).backward()  # type: ignore[no-untyped-call]
                norm = clip_gradient(list(model.parameters()), cloning.max_grad_norm).reshape(1)
                optimizer.step()
            totals += torch.cat([losses.detach(), norm])
    names = ("loss", "value_loss", "log_prob", "grad_norm")
    return {**dict(zip(names, (totals / len(minibatches)).tolist(), strict=True)), "learning_rate": rate}


@torch.no_grad()
def measure(
    model: ActorCritic,
    examples: Examples,
    cloning: CloningConfig,
    weighting: Weighting,
    steps: CompiledSteps | None = None,
) -> Row:
    """`loss`, `value_loss` and `log_prob` of all examples, without dropout; empty if there are no examples.

    Args:
        model: policy and value function.
        examples: frames to measure on.
        cloning: settings of cloning.
        weighting: whether actors or frames have equal weights.
        steps: of the model; None: torch computes the losses.
    """
    if not len(examples):
        return {}
    device = model.value_head.deviation.device
    actors, values = frame_weights(examples.value_targets, examples.num_actors, weighting)
    totals = torch.zeros(3, device=device)
    if steps:
        with steps.frames(examples.obs, examples.actions, examples.log_probs, examples.logits):
            everything = torch.arange(len(examples))
            totals = _compiled_losses(steps, everything, examples, actors, values, cloning, learning=False)
    else:
        model.eval()
        weights = (torch.split(each, FRAMES_AT_ONCE) for each in (actors, values))
        for part, of_actors, of_values in zip(_parts(examples), *weights, strict=True):
            totals += _losses(model, part.to(device), of_actors.to(device), of_values.to(device), cloning.loss)
        model.train()
    return dict(zip(("loss", "value_loss", "log_prob"), totals.tolist(), strict=True))


def _losses(model: ActorCritic, examples: Examples, actors: Tensor, values: Tensor, loss: Loss) -> Tensor:
    """(3,) the loss, the value error, and the mean log-probability of the recorded actions; weights as `frame_weights`."""
    evaluation = model.evaluate(examples.obs, examples.actions)
    policy, log_prob = actors.new_zeros(()), actors.new_zeros(())
    for name in examples.actions:
        own, log_probs = spread(actors, evaluation.log_probs[name]), evaluation.log_probs[name].values
        log_prob = log_prob + own.dot(log_probs.detach())
        if loss == "cross_entropy":
            policy = policy + cross_entropy(log_probs, own)
        elif loss == "log_prob":
            policy = policy + log_prob_error(log_probs, examples.log_probs[name].values, own)
        else:
            assert examples.logits is not None, "checked when the examples were loaded"
            recorded = examples.logits[name]
            divergence = choices_kl if model.policy.action_space[name].discrete else numbers_kl
            policy = policy + divergence(evaluation.logits[name], recorded.values, spread(actors, recorded))
    value = value_error(evaluation.values, examples.value_targets, values, model.value_head.deviation)
    return torch.stack([policy, value, log_prob])


def _compiled_steps(model: ActorCritic, optimizer: torch.optim.Optimizer) -> CompiledSteps | None:
    if not can_be_compiled(model):
        return None
    from enn_ppo.training.learning.compiled import CompiledSteps  # the compiler is needed by those who use it

    return CompiledSteps(model, optimizer)


def _compiled_losses(
    steps: CompiledSteps,
    rows: Tensor,
    examples: Examples,
    actors: Tensor,
    values: Tensor,
    cloning: CloningConfig,
    *,
    learning: bool,
) -> Tensor:
    """See `_losses`, of the frames `rows`; if `learning`, their gradient is computed, too."""
    from enn_ppo.training.learning import compiled_loss
    from rogue_net.kernels.cpu.calling import entry

    def given(deviation: float, has_value: bool) -> Any:
        return compiled_loss.clone_settings(cloning.loss, cloning.vf_coef, deviation, has_value=has_value)

    columns = torch.stack([actors, values, examples.value_targets[rows]]).numpy()
    names = compiled_loss.CLONE_STATS
    stats = steps.gradient(rows, entry(compiled_loss.clone), given, columns, names, learning=learning)
    return torch.stack([stats[name] for name in names])


def _parts(examples: Examples) -> list[Examples]:
    """Split the examples into consecutive parts that are small enough for the memory."""
    return examples.split([len(each) for each in torch.split(torch.arange(len(examples)), FRAMES_AT_ONCE)])
