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
from rogue_net.batch.crossing import Joined, copy_there, cut, join, views
from rogue_net.batch.padding import PaddedBuffer


class Acted(NamedTuple):
    """A batch of observations, and the sampled actions."""

    batch: ObsBatch  # on the device
    result: ActResult


class _Recorded(NamedTuple):
    """A recorded graph, and its input tensors."""

    host: PaddedBuffer  # what is copied to `memory`
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
        places = None if self._recorded is None else self._recorded.host.write(obs)
        if self._recorded is None or places is None:
            batch = ObsBatch.sharing(obs)
            self._room.fits(batch, self._net)
            self._recorded = None  # frees the old graph's memory first
            self._recorded = self._record(PaddedBuffer(batch, self._room.capacity, self._device))
            places = self._recorded.host.write(obs)
            assert places is not None, "the capacity has room for the step that it was made for"
        host, memory, recorded_keys, act = self._recorded
        # copies, since the next step overwrites the graph's inputs and outputs
        own_memory = host.to_device()
        copy_there(memory, own_memory)
        recorded_keys[: len(keys)].copy_(keys)
        result = act()
        seen = ObsBatch.lying_in(own_memory, obs, places)
        return Acted(seen, _real_results(result, seen))

    def _record(self, host: PaddedBuffer) -> _Recorded:
        memory = torch.empty(host.num_bytes, dtype=torch.uint8, device=self._device)
        keys = torch.zeros(len(host.batch), dtype=torch.int64, device=self._device)

        def act() -> ActResult:
            # a new object per call, so that cached properties of the batch are computed from the current inputs
            batch = host.batch.with_tensors(views(memory, host.batch.tensors()))
            result = self._net.act(batch, generator=FrameKeys(keys))
            return result._replace(joined=join(result.tensors()))

        return _Recorded(host, memory, keys, Recording(act, self._device))


def _real_results(result: ActResult, seen: ObsBatch) -> ActResult:
    """Copy the results without those of padding."""
    assert result.joined is not None
    actors = {name: mask.actors for name, mask in seen.action_masks.items()}
    counts = [len(seen), *(len(actors[name].values) for name in (*result.log_probs, *result.actions))]
    cuts = [each.begin(count) for each, count in zip(result.joined.cuts, counts, strict=True)]
    memory = torch.empty_like(result.joined.memory)
    copy_there(memory, result.joined.memory)
    values, *others = cut(memory, cuts)
    found = iter(others)
    return ActResult(
        log_probs={name: next(found) for name in result.log_probs},
        actions={name: RaggedTensor(next(found), actors[name].offsets) for name in result.actions},
        values=values,
        joined=Joined(memory, cuts),
    )
