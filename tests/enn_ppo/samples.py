"""Samples to learn from, without a rollout."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from enn_ppo.ppo import Samples
from rogue_net import ObsBatch, RaggedTensor


def samples_of(
    obs: ObsBatch,
    actions: dict[str, RaggedTensor],
    log_probs: dict[str, RaggedTensor],
    values: Tensor,
    **learned: Any,
) -> Samples:
    """Samples in which learning reads nothing but what is given; `learned` are the columns that `Samples` adds."""
    rows = len(values)
    nothing, never = torch.zeros(rows), torch.zeros(rows, dtype=torch.bool)
    numbers = torch.arange(rows)
    return Samples(
        obs=obs,
        env_id=numbers,
        step=torch.zeros_like(numbers),
        actions=actions,
        log_probs=log_probs,
        values=values,
        rewards=nothing,
        terminated=never,
        truncated=never,
        final_values=nothing,
        **learned,
    )
