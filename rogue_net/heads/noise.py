"""The random numbers that actions are drawn with.

They come from a generator, one after the other, or they are keyed: then those of an actor depend on its frame's key, on the name
of the action and on its place in the frame, whatever other frames are in the batch, whatever other actions there are, how many
processes share the frames, and on which device they are.

keys = keyed(keyed(seed, env_id), step)                     # (B,) one for each frame
net.act(batch, generator=FrameKeys(keys))

Shapes: B frames, A actors of all frames together, n numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor

from rogue_net.batch.ragged import RaggedTensor

# Odd numbers without a pattern in their bits. Source: Steele, Lea & Flood 2014, "Fast splittable pseudorandom number
# generators", section 3 (the golden ratio), and the finalizer of their SplitMix64; as signed numbers of 64 bits.
GOLDEN = 0x9E3779B97F4A7C15 - 2**64
FIRST = 0xBF58476D1CE4E5B9 - 2**64
SECOND = 0x94D049BB133111EB - 2**64

BELOW_ONE = 1 - 2.0**-24  # the largest float32 below 1


@dataclass(frozen=True)
class FrameKeys:
    """Keys of the noise of each frame.

    Args:
        keys: (B,) int64, as `keyed` makes them.
    """

    keys: Tensor

    def of_actors(self, action: str, actors: RaggedTensor) -> ActorKeys:
        """Keys of the actors of an action.

        Args:
            action: its name.
            actors: B sequences of (A, 1) entity indices inside the frame.
        """
        of_frames = self.keys + name_key(action)
        of_each = torch.repeat_interleave(of_frames, actors.lengths, output_size=len(actors.values))
        return ActorKeys(of_each.add_(actors.values[:, 0], alpha=SECOND))


@dataclass(frozen=True)
class ActorKeys:
    """Keys of the noise of each actor: (A,) int64, all different."""

    keys: Tensor

    def uniform(self, numbers: Tensor, actors: Tensor | None) -> Tensor:
        """Float32 above 0 and below 1, as many as there are actors and numbers, fine-grained near 0.

        Args:
            numbers: int64, what tells an actor's draws apart: (n,) for each actor, or with `actors` (P,).
            actors: (P,) int64, whose each is.
        """
        rows = self.keys[:, None] if actors is None else self.keys.index_select(0, actors)
        bits = _mixed(torch.add(rows, numbers, alpha=GOLDEN), _draw)
        return bits.float().mul_(2.0**-40)


#: Where random numbers come from: a generator, on the device of what is drawn; None is torch's own.
Source = torch.Generator | ActorKeys | None


def exponential(source: Source, like: Tensor, numbers: Tensor | None = None, actors: Tensor | None = None) -> Tensor:
    """Exponentially distributed float32, at least 0.

    Args:
        source: of the numbers.
        like: (A, n), or with `actors` (P,): what shape they have.
        numbers: of keyed ones, see `ActorKeys.uniform`; None: 0 to n - 1.
        actors: likewise.
    """
    if isinstance(source, ActorKeys):
        return source.uniform(_columns(like) if numbers is None else numbers, actors).neg_().log1p_().neg_()
    return torch.empty_like(like).exponential_(generator=source)


def normal(source: Source, like: Tensor) -> Tensor:
    """(A, n) standard normal float32; arguments as in `exponential`."""
    if isinstance(source, ActorKeys):
        return source.uniform(_columns(like), None).mul_(2).sub_(1).clamp_(min=-BELOW_ONE).erfinv_().mul_(math.sqrt(2))
    return torch.empty_like(like).normal_(generator=source)


def keyed(key: Tensor | int, number: Tensor) -> Tensor:
    """Keys of their own for each number under each key: int64, of which all 64 bits are as good as random.

    Args:
        key: int64, any.
        number: int64; what it is combined with by broadcasting.
    """
    return _mixed(key + (number + 1) * GOLDEN, _mix)


def name_key(name: str) -> int:
    """Hash of an action's name, which is added to the keys of frames: a signed number of 64 bits, the same in every process."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big", signed=True)


def _mixed(bits: Tensor, how: Callable[[Any], None]) -> Tensor:
    """Mix `bits` in place, and return them."""
    # of arrays this small, an operation of NumPy takes a fifth of the time of one of torch, on the same memory
    how(bits.numpy() if bits.device.type == "cpu" else bits)
    return bits


def _mix(bits: Any) -> None:
    """A permutation of 64 bits, after which neighbours have nothing in common."""
    bits ^= (bits >> 30) & (2**34 - 1)  # as unsigned numbers are shifted
    bits *= FIRST
    bits ^= (bits >> 27) & (2**37 - 1)
    bits *= SECOND
    bits ^= (bits >> 31) & (2**33 - 1)


def _draw(bits: Any) -> None:
    """Numbers of 40 bits that neither are 0 nor become 2^40 when they are rounded to the 24 bits of a float32."""
    _mix(bits)
    bits >>= 24
    bits &= 2**40 - 1 - 2**15
    bits |= 1


def _columns(like: Tensor) -> Tensor:
    return torch.arange(like.shape[1], device=like.device)
