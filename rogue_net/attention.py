"""Attention among the entities of a frame.

Shapes: E tokens of all frames, B frames, R rows of L packed tokens, H heads, K width of a head.
"""

from __future__ import annotations

import math

from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from rogue_net.batch.frames import Frames
from rogue_net.relative.relative_positions import Relative

#: All but cuDNN's, which takes 5 ms to prepare each new shape of rows: with it bf16 was 4 times slower than fp32 on a GPU.
KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def ragged_attention(qkv: Tensor, frames: Frames, relative: Relative | None = None, *, dropout: float = 0.0) -> Tensor:
    """Softmax attention of every token to those of its frame that it may see.

        out_i = sum_j p_ij v_j,   p_ij = softmax_j(q_i · k_j / sqrt(K))

    over all tokens j of i's frame if i is hidden, else over its visible ones. `rogue_net/relative/relative_positions.py` has what
    relative positions add to both. Source: Vaswani et al. 2017 (arXiv 1706.03762), equation 1.

    It is computed on rows of a rectangle that hold several frames each, with a mask that keeps them apart. A weight of 0 keeps no
    NaN out, as 0 * NaN is NaN. So tokens that are not finite take part as zeros, and whoever may attend to one gets NaN.

    Args:
        qkv: (E, 3, H, K) queries, keys and values.
        frames: which tokens are a frame, and which are hidden.
        relative: relative positions, if any.
        dropout: share of the p that is set to 0, the rest being scaled up.

    Returns:
        (E, H, K).
    """
    rows = frames.rows
    gate = None if relative is None else relative.gate
    broken = ~qkv.detach().flatten(1).isfinite().all(1)
    if gate is not None:
        broken |= ~gate.detach().isfinite().all(1)
    clean = qkv.masked_fill(broken[:, None, None, None], 0)
    sees_broken = (rows.allowed & broken[rows.index][:, None, None]).any(-1, keepdim=True)  # (R, 1, L, 1)
    if relative is None:
        q, k, v = rows.pack(clean).permute(2, 0, 3, 1, 4)  # (R, H, L, K)
        with sdpa_kernel(KERNELS):
            packed = functional.scaled_dot_product_attention(q, k, v, rows.allowed, dropout)
    else:  # relative values need the weights
        weights = functional.dropout(packed_weights(clean, frames, relative, sees_broken), dropout)
        values = relative.values
        if gate is not None:
            values = values * rows.pack(gate.masked_fill(broken[:, None], 0)).unsqueeze(1)
        related = (weights.transpose(1, 2) @ values).transpose(1, 2)  # sum_j p_ij gate_j * relvalue_ij
        packed = weights @ rows.pack(clean[:, 2]).transpose(1, 2) + related
    packed = packed.masked_fill(sees_broken, float("nan"))
    return rows.unpack(packed.transpose(1, 2))


def packed_weights(
    qkv: Tensor, frames: Frames, relative: Relative | None = None, uniform: Tensor | None = None
) -> Tensor:
    """(R, H, L, L) weights p of `ragged_attention` on the packed rows of the frames.

    Args:
        qkv: (E, 3, H, K) queries, keys and values.
        frames: which tokens are a frame, and which are hidden.
        relative: relative positions, if any.
        uniform: (R, 1, L, 1) bool, places that attend equally to all that they may; None: none does.
    """
    rows = frames.rows
    q, k = rows.pack(qkv[:, :2]).permute(2, 0, 3, 1, 4)  # (R, H, L, K)
    scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
    if relative is not None:
        products = q.transpose(1, 2) @ relative.keys.transpose(2, 3)  # q_i · relkey_ij, (R, L, H, L)
        scores = scores + products.transpose(1, 2) / math.sqrt(q.shape[-1])
    if uniform is not None:
        scores = scores.masked_fill(uniform, 0)
    weights: Tensor = scores.masked_fill(~rows.allowed, float("-inf")).softmax(dim=-1)
    return weights
