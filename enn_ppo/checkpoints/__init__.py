"""Checkpoints on disk: folders that are whole or absent, and that hold data and never code.

    checkpoints/step_000000012800/policy.safetensors     the weights, for any program
                                  value_net.safetensors  those of further networks, if there are any
                                  config.yaml            the resolved configuration
                                  spaces.json            what the policy sees and does
                                  trainer.pt             everything else that resuming needs, and the number of the format
                                  summary.json           seconds of training and score, by which checkpoints are kept
    checkpoints/latest -> step_000000012800
    checkpoints/best   -> step_000000006400              where there are scores

A folder is written aside under a hidden name, flushed to the disk and renamed, and only then does `latest` move, so a
crash, a full disk or `kill -9` at any moment leaves the previous checkpoint and a `latest` that loads.
Nothing here knows the network or the trainer: only names, tensors and plain values. One process saves to one folder.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from enn_ppo.checkpoints.finding import load_checkpoint, resolve_checkpoint
    from enn_ppo.checkpoints.layout import CheckpointError
    from enn_ppo.checkpoints.reading import Checkpoint
    from enn_ppo.checkpoints.retention import Retention
    from enn_ppo.checkpoints.saving import record_score, save_checkpoint

#: The modules of these names, imported when they are used first: names of files need not wait for torch.
_LATER = {
    "Checkpoint": "reading",
    "CheckpointError": "layout",
    "Retention": "retention",
    "load_checkpoint": "finding",
    "record_score": "saving",
    "resolve_checkpoint": "finding",
    "save_checkpoint": "saving",
}

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "Retention",
    "load_checkpoint",
    "record_score",
    "resolve_checkpoint",
    "save_checkpoint",
]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
