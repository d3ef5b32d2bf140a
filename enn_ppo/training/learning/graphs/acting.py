"""Acting as a CUDA graph: observations are padded to a fixed size and copied to a fixed address."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from enn_ppo.training.learning.actor_critic import Actor
from enn_ppo.training.learning.graphs.recording import Recording
from enn_ppo.training.learning.graphs.room import Room
from entity_gym.batch.vec_obs import VecObs
from rogue_net import ActResult, FrameKeys, ObsBatch, RaggedTensor
from rogue_net.crossing import num_bytes, views
from rogue_net.padding import PaddedPacking, padded


class Acted(NamedTuple):
    """A batch of observations, and the sampled actions."""

    batch: ObsBatch  # on the device
    result: ActResult


class _Recorded(NamedTuple):
    """A recorded graph, and its input tensors."""

    memory: Tensor  # uint8, all tensors of the observations one after another
    keys: Tensor  # (F,) int64
    act: Recording[ActResult]


class ActGraph:
    """`Actor.act` as a CUDA graph.

    All steps use the same graph. Observations that exceed its capacity cause a new recording with a larger capacity, which is
    logged.

    Args:
        net: the policy; its parameters may change, but not their addresses.
        device: of the policy.
    """

    def __init__(self, net: Actor, device: torch.device) -> None:
        self._net, self._device = net, device
        self._room = Room("a step has outgrown its graph")
        self._recorded: _Recorded | None = None

    @torch.no_grad()
    def __call__(self, obs: VecObs, keys: Tensor) -> Acted:
        """Sample actions.

        Args:
            obs: N frames.
            keys: (N,) int64, keys of the sampling noise.
        """
        batch = ObsBatch.sharing(obs)
        if not self._room.fits(batch, self._net):
            self._recorded = None
        packing = PaddedPacking(batch, self._room.capacity)
        if self._recorded is None:
            self._recorded = self._record(padded(batch, self._room.capacity))
        packing.to_device(self._device, self._recorded.memory)
        self._recorded.keys[: len(keys)].copy_(keys)
        result = self._recorded.act()
        # copies, since the next step overwrites the graph's inputs and outputs
        seen = packing.real(self._recorded.memory.clone())
        return Acted(seen, _real_results(result, seen))

    def _record(self, full: ObsBatch) -> _Recorded:
        memory = torch.empty(num_bytes(full.tensors()), dtype=torch.uint8, device=self._device)
        keys = torch.zeros(len(full), dtype=torch.int64, device=self._device)

        def act() -> ActResult:
            # a new object per call, so that cached properties of the batch are computed from the current inputs
            batch = full.with_tensors(views(memory, full.tensors()))
            return self._net.act(batch, generator=FrameKeys(keys))

        return _Recorded(memory, keys, Recording(act, self._device))


def _real_results(result: ActResult, seen: ObsBatch) -> ActResult:
    """Copy the results without those of padding."""
    actors = {name: mask.actors for name, mask in seen.action_masks.items()}
    return ActResult(
        actions={
            name: RaggedTensor(action.values[: len(actors[name].values)].clone(), actors[name].offsets)
            for name, action in result.actions.items()
        },
        log_probs={name: each[: len(actors[name].values)].clone() for name, each in result.log_probs.items()},
        values=result.values[: len(seen)].clone(),
    )
