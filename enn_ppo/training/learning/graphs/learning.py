"""The optimizer step as a CUDA graph: minibatches are padded to a fixed size, and a step never waits for the host."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from enn_ppo.ppo import Loss, Samples, Stats, Totals, learn_minibatch, ppo_loss
from enn_ppo.settings.config import OptimConfig
from enn_ppo.settings.learning import PPOSettings
from enn_ppo.training.learning.actor_critic import ActorCritic
from enn_ppo.training.learning.graphs.recording import Recording, copy_all
from enn_ppo.training.learning.graphs.room import Room
from enn_ppo.training.ranks import ALONE, Ranks
from rogue_net import RaggedTensor, RogueNet
from rogue_net.batch.padding import Capacity, fill_up, pad_ragged, padded

#: Settings that schedules change between updates; a graph reads them from a tensor.
COEFFICIENTS = tuple(field.name for field in fields(PPOSettings) if "Tensor" in str(field.type))


class _Recorded(NamedTuple):
    """A recorded graph, and its input tensors."""

    samples: Samples
    coefficients: Tensor  # (one of each of COEFFICIENTS,) float32
    step: Recording[Stats]


class MinibatchGraph:
    """`enn_ppo.ppo.learn_minibatch` as a CUDA graph.

    All minibatches of a run use the same graph; only `COEFFICIENTS` may change. A minibatch that exceeds the graph's capacity
    causes a new recording with a larger capacity, which is logged.
    """

    def __init__(self) -> None:
        self._room = Room("minibatches have outgrown their graph")
        self._recorded: _Recorded | None = None
        self._coefficients: list[float] = []  # the values in the graph's tensor

    def __call__(
        self,
        net: RogueNet | ActorCritic,
        optimizer: torch.optim.Optimizer,
        samples: Samples,
        optim: OptimConfig,
        settings: PPOSettings,
        loss: Loss = ppo_loss,
        ranks: Ranks = ALONE,
        totals: Totals | None = None,
    ) -> Stats:
        """Replay `learn_minibatch`; the next call overwrites the result."""
        assert ranks.size == 1 and optim.micro_batch_size is None
        coefficients = [float(getattr(settings, name)) for name in COEFFICIENTS]
        if not self._room.fits(samples.obs, net):
            self._recorded = None  # frees the old graph's memory first
        full = pad_samples(samples, self._room.capacity)
        if self._recorded is None:
            self._recorded = _record(net, optimizer, full, optim, settings, loss)
            self._coefficients = []
        else:
            copy_all(self._recorded.samples.tensors(), full.tensors())
        if coefficients != self._coefficients:
            self._coefficients = coefficients
            self._recorded.coefficients.copy_(torch.tensor(coefficients))
        return self._recorded.step()


def _record(
    net: RogueNet | ActorCritic,
    optimizer: torch.optim.Optimizer,
    samples: Samples,
    optim: OptimConfig,
    settings: PPOSettings,
    loss: Loss,
) -> _Recorded:
    device = samples.values.device
    coefficients = torch.zeros(len(COEFFICIENTS), device=device)
    changed: dict[str, Any] = dict(zip(COEFFICIENTS, coefficients.unbind(), strict=True))
    on_device = replace(settings, **changed)

    def step() -> Stats:
        # a new object per call, so that cached properties of the batch are computed from the current inputs
        fresh = replace(samples, obs=samples.obs.map(lambda tensor: tensor))
        return learn_minibatch(net, optimizer, fresh, optim, on_device, loss)

    return _Recorded(samples, coefficients, Recording(step, device))


def pad_samples(samples: Samples, capacity: Capacity) -> Samples:
    """Pad samples to a capacity that is large enough, without synchronising with the device."""
    obs = padded(samples.obs, capacity)
    actors = {name: mask.actors for name, mask in obs.action_masks.items()}

    def padded_column(column: Any, name: str = "") -> Any:
        match column:
            case dict():
                return {each: padded_column(values, each) for each, values in column.items()}
            case RaggedTensor():  # an item for each actor of the action `name`
                values = pad_ragged(column, len(actors[name].values), len(obs)).values
                return RaggedTensor(values, actors[name].offsets)
            case Tensor():
                return fill_up(column, len(obs))
        return None

    columns = {field.name: getattr(samples, field.name) for field in fields(samples) if field.name != "obs"}
    real = torch.arange(len(obs), device=samples.values.device) < len(samples)
    changed = {name: padded_column(column) for name, column in columns.items()} | {"real": real}
    return replace(samples, obs=obs, **changed)
