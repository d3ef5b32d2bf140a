"""Checkpoints on disk: folders that are written atomically and hold data, never code.

    checkpoints/step_000000012800/policy.safetensors     the policy's weights, for any program
                                  value_net.safetensors  weights of further networks, if there are any
                                  config.yaml            the resolved configuration
                                  spaces.json            observation and action spaces
                                  trainer.pt             optimizer, environments and counters for resuming, and the format
                                  manifest.json          checksums of these files, signature, seconds of training and score
    checkpoints/latest -> step_000000012800
    checkpoints/best   -> step_000000006400              if there are scores

`latest` and `best` are symbolic links, or files that hold the folder's name on Windows and where links are not possible.

A folder is written under a hidden name, flushed to the disk and renamed, and only then does `latest` move, so a crash, a full
disk or `kill -9` at any moment leaves the previous checkpoint and a `latest` that loads. Only one process may save to a folder.
Every file that is read is compared with its checksum. A folder without a manifest is refused.

An agent file holds a policy for inference only: a zip archive of the weights, `config.yaml`, `spaces.json`, and `agent.json`:
{"format": ..., "step": ...}. The archive has a checksum of each.
"""

from enn_ppo.checkpoints.reading import (
    Checkpoint,
    CheckpointError,
    check_finite,
    load_checkpoint,
    load_checkpoint_or_agent,
    load_common,
    resolve_checkpoint,
    runs_in,
    step_folders,
)
from enn_ppo.checkpoints.retention import Retention
from enn_ppo.checkpoints.saving import record_score, save_checkpoint, what_is_there, write_agent

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "Retention",
    "check_finite",
    "load_checkpoint",
    "load_checkpoint_or_agent",
    "load_common",
    "record_score",
    "resolve_checkpoint",
    "runs_in",
    "save_checkpoint",
    "step_folders",
    "what_is_there",
    "write_agent",
]
