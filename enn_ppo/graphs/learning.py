"""Optimizer steps as one graph: minibatches are filled up to a fixed size, and nothing of a step waits for the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from enn_ppo.actor_critic import ActorCritic
from enn_ppo.config import OptimConfig, PPOConfig
from enn_ppo.graphs.recording import Recording, copy_all
from enn_ppo.graphs.room import Room
from enn_ppo.ranks import ALONE, Ranks
from enn_ppo.update import Coefficients, Samples, learn_minibatch
from rogue_net import RogueNet
from rogue_net.padding import Capacity, fill_up, pad_ragged, padded


class _Recorded(NamedTuple):
    """What one recording reads and does."""

    samples: Samples  # in fixed places
    numbers: Tensor  # (3,) float32, the coefficients
    step: Recording[Tensor]


class MinibatchGraph:
    """`enn_ppo.update.learn_minibatch`, recorded.

    One recording serves all minibatches of a run, whose settings are the same but for the coefficients of the objective, until
    one of them is larger than it has room for: then there is a new one with more room, which is said.
    """

    def __init__(self) -> None:
        self._room = Room("minibatches have outgrown their graph")
        self._recorded: _Recorded | None = None
        self._coefficients: Coefficients | None = None  # that the recording reads

    def __call__(
        self,
        net: RogueNet | ActorCritic,
        optimizer: torch.optim.Optimizer,
        minibatch: Samples,
        optim: OptimConfig,
        ppo: PPOConfig,
        ranks: Ranks = ALONE,
    ) -> Tensor:
        """As `learn_minibatch`; the result is valid until the next call."""
        assert ranks.size == 1 and optim.micro_batch_size is None
        coefficients = Coefficients.of(ppo)
        if not self._room.fits(minibatch.obs, net):
            self._recorded = None  # the old graph's memory goes first
        full = pad_samples(minibatch, self._room.capacity)
        if self._recorded is None:
            self._recorded = _record(net, optimizer, full, optim, ppo)
            self._coefficients = None
        else:
            copy_all(_tensors(self._recorded.samples), _tensors(full))
        if coefficients != self._coefficients:  # they change from update to update
            self._coefficients = coefficients
            self._recorded.numbers.copy_(torch.tensor(coefficients))
        return self._recorded.step()


def _record(
    net: RogueNet | ActorCritic,
    optimizer: torch.optim.Optimizer,
    samples: Samples,
    optim: OptimConfig,
    ppo: PPOConfig,
) -> _Recorded:
    device = samples.values.device
    numbers = torch.zeros(len(Coefficients._fields), device=device)
    on_device = Coefficients(*numbers.unbind())

    def step() -> Tensor:
        # built anew each time, so that what a batch works out once is worked out of what is there now
        fresh = replace(samples, obs=samples.obs.map(lambda tensor: tensor))
        return learn_minibatch(net, optimizer, fresh, optim, ppo, coefficients=on_device)

    return _Recorded(samples, numbers, Recording(step, device))


def pad_samples(samples: Samples, capacity: Capacity) -> Samples:
    """Samples filled up to a capacity that their frames fit in. Nobody waits for the device."""
    obs, frames = padded(samples.obs, capacity), capacity.frames
    actors = {name: mask.actors.offsets for name, mask in obs.action_masks.items()}
    actions, log_probs = (
        {
            name: pad_ragged(ragged, capacity.actors[name], frames)._replace(offsets=actors[name])
            for name, ragged in column.items()
        }
        for column in (samples.actions, samples.log_probs)
    )
    values, advantages, returns = (
        fill_up(column, frames) for column in (samples.values, samples.advantages, samples.returns)
    )
    real = torch.arange(frames, device=values.device) < len(samples.values)
    return Samples(obs, actions, log_probs, values, advantages, returns, real)


def _tensors(samples: Samples) -> Sequence[Tensor]:
    """All of them that a minibatch brings along; offsets of actions are those of the actors."""
    assert samples.real is not None
    chosen = [ragged.values for column in (samples.actions, samples.log_probs) for ragged in column.values()]
    return [
        *samples.obs.tensors(), *chosen, samples.values, samples.advantages, samples.returns, samples.real
    ]  # fmt: skip
