"""PPO's optimizer steps on a CPU by compiled programs, without torch's operations.

`CompiledPPO` does what `enn_ppo.ppo.learn_minibatch` does: `enn_ppo.ppo.update` is given `FrameNumbers` for samples, and
`CompiledPPO.learn` for `learn`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from enn_ppo.ppo import Samples, Stats
from enn_ppo.settings.learning import OptimConfig, PPOSettings
from enn_ppo.training.frames import Columns
from enn_ppo.training.learning import compiled_loss
from enn_ppo.training.learning.actor_critic import ActorCritic, part_of
from enn_ppo.training.ranks import ALONE, Ranks
from entity_gym.batch.ragged import RaggedBuffer
from entity_gym.batch.vec_obs import VecActionMask
from rogue_net import ObsBatch, RaggedTensor, RogueNet
from rogue_net.kernels.cpu.adamw import CompiledAdamW
from rogue_net.kernels.cpu.calling import entry


@dataclass(frozen=True, kw_only=True)
class FrameNumbers(Columns):
    """Frames of a rollout by their numbers. In `update` they stand for `Samples`, of which little is copied."""

    frames: Tensor  # (B,) int64
    num_actors: Tensor  # (B,) int64; these and the following are as in `Samples`
    advantages: Tensor
    values: Tensor
    returns: Tensor
    weights: Tensor | None = None
    frame_weights: Tensor | None = None
    follows: Tensor | None = None


class CompiledPPO:
    """The programs of the networks, and their optimizer's steps.

    Args:
        model: policy and value function.
        optimizer: AdamW, with a group of parameters for each network.
    """

    def __init__(self, model: ActorCritic, optimizer: torch.optim.Optimizer) -> None:
        self._model, self._loss, critic = model, entry(compiled_loss.ppo), model.value_net
        self._nets = [CompiledAdamW(model.policy, optimizer, 0, value=critic is None)]
        if critic is not None:
            self._nets.append(CompiledAdamW(critic, optimizer, 1, actions=False))
        self._columns: list[Any] = []  # of each network, during an update

    @contextmanager
    def holding(self, samples: Samples, num_envs: int) -> Iterator[Any]:  # FrameNumbers, in the place of Samples
        """Hold the samples of a rollout of N environments in the programs.

        Raises:
            ValueError: an action is no choice of its space.
        """
        check_choices(self._model.policy, samples.obs, samples.actions)
        old = {name: ragged.values for name, ragged in samples.log_probs.items()}
        for each in self._nets:
            each.begin()
        frames, before = torch.arange(len(samples)), None
        if self._model.remembers:
            before = torch.where(samples.follows, frames - num_envs, -1)
        parts = ("policy", "value") if len(self._nets) > 1 else (None,)
        with torch.no_grad():
            self._columns = [
                each.program.columns(
                    samples.obs,
                    samples.actions,
                    old,
                    None if each.actions else {},
                    samples.state if part is None else part_of(samples.state, part),
                    before,
                )
                for each, part in zip(self._nets, parts, strict=True)
            ]
        names = ("num_actors", "advantages", "values", "returns", "follows")
        try:
            yield FrameNumbers(frames=frames, **{name: getattr(samples, name) for name in names})
        finally:
            for each in self._nets:
                each.end()
            self._columns = []

    def learn(self, minibatch: FrameNumbers, optim: OptimConfig, settings: PPOSettings, ranks: Ranks = ALONE) -> Stats:
        """See `enn_ppo.ppo.learn_minibatch`; the network and the loss are those of the programs."""
        columns = torch.stack([getattr(minibatch, name) for name in compiled_loss.COLUMNS])
        found = torch.zeros(len(compiled_loss.STATS))
        frames, deviation = minibatch.frames.numpy(), float(self._model.value_head.deviation)
        starts = ~minibatch.follows.numpy() if self._model.remembers and minibatch.follows is not None else None
        for each, of_rollout in zip(self._nets, self._columns, strict=True):
            given = compiled_loss.settings_of(settings, deviation, has_value=each.value)
            found += each.program.gradient(
                of_rollout, frames, self._loss, given, columns, len(found), has_value=each.value, starts=starts
            )
        if ranks.size > 1:
            parts = [found, *(each.program.gradient_flat for each in self._nets)]
            sums = ranks.sum(torch.cat(parts)).split_with_sizes([len(part) for part in parts])
            torch._foreach_copy_(parts, list(sums))
        stats = dict(zip(compiled_loss.STATS, found.unbind(), strict=True))
        for name, each in zip(("grad_norm", "value_grad_norm"), self._nets, strict=False):
            stats[name] = torch.tensor(each.step(optim.max_grad_norm))
        return stats


def check_choices(net: RogueNet, obs: ObsBatch, actions: Mapping[str, RaggedTensor]) -> None:
    """Raise a ValueError where an action is no choice of its space, or a set none that was on offer."""
    for name, space in net.action_space.items():
        values = actions[name].values
        if space.per_pair:
            mask = obs.action_masks[name]
            parts: list[Any] = [mask.actors, mask.actees, mask.mask]
            offered = VecActionMask(*(each and RaggedBuffer(*(part.numpy() for part in each)) for each in parts))
            allowed = space.is_allowed(values.numpy(), offered)
            if not allowed.all():
                chosen = values[offered.pair_actors == int(allowed.argmin()), 0]
                raise ValueError(f"action {name!r}{space.refusal(chosen.numpy())}")
        elif space.num_choices and len(values):
            low, high = (int(each) for each in values.aminmax())
            if low < 0 or high >= space.num_choices:
                given = low if low < 0 else high
                raise ValueError(f"action {name!r} is {given}; choices are 0 to {space.num_choices - 1}")
