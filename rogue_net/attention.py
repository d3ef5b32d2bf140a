"""Attention among the entities of a frame: one signature, several backends, one choice.

Shapes: E tokens of all frames, B frames, R rows of L packed tokens, H heads, K width of a head.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from entity_gym.packing import pack
from rogue_net.obs_batch import ObsBatch


class PackedRows:
    """Several frames packed into each row of a rectangle, and a mask that keeps them apart. Made once per batch.

    Attributes:
        index: (R, L) int64, the token at each place of a row; 0 where there is none.
        inverse_index: (E,) int64, each token's place in the flattened rows.
        allowed: (R, 1, L, L) bool, whether the token at place i of a row may attend to the one at place j: both are of one
            frame, and j is visible or i is hidden too. A place always attends to itself, empty ones to nothing else.
    """

    def __init__(self, batch: ObsBatch) -> None:
        lengths = batch.layout.lengths.cpu().numpy()  # synchronises once per batch: rows are chosen on the host
        packing = pack(lengths)
        device = batch.device
        self.index = torch.from_numpy(packing.index).to(device)
        self.inverse_index = torch.from_numpy(packing.inverse_index).to(device)
        frames = torch.from_numpy(packing.batch).to(device)  # NaN where there is no token, and NaN equals nothing
        allowed = frames.unsqueeze(2) == frames.unsqueeze(1)
        if batch.token_visible is not None:
            visible = batch.token_visible[self.index]
            allowed &= visible.unsqueeze(1) | ~visible.unsqueeze(2)
        allowed |= torch.eye(self.index.shape[1], dtype=torch.bool, device=device)
        self.allowed = allowed.unsqueeze(1)


Backend = Callable[[Tensor, Tensor, Tensor, PackedRows], Tensor]


def packed_attention(q: Tensor, k: Tensor, v: Tensor, rows: PackedRows) -> Tensor:
    """Softmax attention over packed rows; the reference for every other backend.

        out_i = sum_j softmax_j(q_i · k_j / sqrt(K)) v_j    over the tokens j that i may attend to

    Source: Vaswani et al. 2017 (arXiv 1706.03762), equation 1.

    Args:
        q: (E, H, K) queries.
        k: (E, H, K) keys.
        v: (E, H, K) values.
        rows: where the tokens stand.

    Returns:
        (E, H, K).
    """
    q, k, v = (x[rows.index].transpose(1, 2) for x in (q, k, v))  # (R, H, L, K)
    scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
    weights = scores.masked_fill(~rows.allowed, float("-inf")).softmax(dim=-1)
    packed = (weights @ v).transpose(1, 2)  # (R, L, H, K)
    return packed.flatten(0, 1)[rows.inverse_index]


BACKENDS: dict[str, Backend] = {"packed": packed_attention}
