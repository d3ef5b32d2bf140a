"""Torch's own attention of sequences of different lengths, on CUDA: for long frames."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from rogue_net.batch.frames import Frames

WIDEST = 256


def varlen_attention(qkv: Tensor, frames: Frames) -> Tensor:
    """`rogue_net.attention.ragged_attention` by `torch.nn.attention.varlen`, which computes as FlashAttention does.

    Reads the offsets of frames from the device, once per batch. Tokens behind the last frame get 0 and have no gradient. The
    order of the sums of gradients may change from run to run. Source: Dao 2023 (arXiv 2307.08691).

    Args:
        qkv: (E, 3, H, K) bfloat16 or float16 on CUDA, K a multiple of 8 up to 256.
        frames: which tokens are a frame; none is hidden.

    Returns:
        (E, H, K).

    Raises:
        ValueError: another device or type, another width of heads, or hidden tokens.
    """
    q, k, v = qkv.unbind(1)
    if (reason := why_not_varlen(q, frames)) is not None:
        raise ValueError(f"torch's varlen attention cannot be: {reason}; allowed: packed, triton")
    longest, total = frames.max_length, int(frames.host_offsets[-1])
    out: Tensor | tuple[Tensor, ...] = q[:total]
    if longest > 0:
        # Names and number of its other arguments differ from release to release; these are the same in all since 2.10.
        from torch.nn.attention.varlen import varlen_attn

        offsets = frames.offsets.to(torch.int32)
        out = varlen_attn(q[:total], k[:total], v[:total], offsets, offsets, longest, longest)
    assert isinstance(out, Tensor)  # there is more where more is asked for
    return functional.pad(out, (0, 0, 0, 0, 0, len(q) - total)) if total < len(q) else out


def why_not_varlen(q: Tensor, frames: Frames) -> str | None:
    """Why torch's varlen attention cannot compute this; None if it can."""
    if q.device.type != "cuda":
        return f"it computes on CUDA, and the tensors are on {q.device}"
    if q.dtype not in (torch.bfloat16, torch.float16):
        return f"it has bfloat16 and float16, and queries are {q.dtype}"
    if q.shape[2] % 8 != 0 or q.shape[2] > WIDEST:
        return (
            f"the width of a head, net.d_model / net.n_head, is {q.shape[2]}, and it has multiples of 8 up to {WIDEST}"
        )
    if frames.visible is not None:
        return "it hides nothing, and entities are hidden"
    return None
