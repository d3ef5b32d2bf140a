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

from pathlib import Path

from enn_ppo.checkpoints.finding import newest_complete, resolve_checkpoint
from enn_ppo.checkpoints.layout import CheckpointError
from enn_ppo.checkpoints.reading import Checkpoint, read_checkpoint
from enn_ppo.checkpoints.retention import Retention
from enn_ppo.checkpoints.saving import record_score, save_checkpoint

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "Retention",
    "load_checkpoint",
    "record_score",
    "resolve_checkpoint",
    "save_checkpoint",
]


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint from any path that `resolve_checkpoint` takes. Loading never executes code.

    Raises:
        CheckpointError: there is none, it is of another format, or a file of it is missing, cut short or not data; names
            the file and the cause, and the newest complete checkpoint beside it.
    """
    folder = resolve_checkpoint(path)
    try:
        return read_checkpoint(folder)
    except CheckpointError as error:
        other = newest_complete(folder.parent, besides=folder)
        advice = f"the newest complete checkpoint beside it is {other}" if other else "there is no other beside it"
        raise CheckpointError(f"{error}; {advice}") from error
