"""Checkpoints on disk: folders that are written atomically and hold data, never code.

    checkpoints/step_000000012800/policy.safetensors     networks, settings, spaces and step, for any program; `policy_file.py`
                                  trainer.pt             optimizer, environments and counters for resuming
    checkpoints/latest -> step_000000012800
    checkpoints/best   -> step_000000006400              if there are scores

`latest` and `best` are symbolic links, or files that hold the folder's name on Windows and where links are not possible.

A folder is written under a hidden name, flushed to the disk and renamed, and only then does `latest` move, so a crash, a full
disk or `kill -9` at any moment leaves the previous checkpoint and a `latest` that loads. Only one process may save to a folder.
Every file that is read is compared with its checksum.

The policy file alone, wherever it is copied to, is all that playing, evaluating and serving need; resuming needs both.
"""

from enn_ppo.checkpoints.policy_file import Checkpoint, CheckpointError, check_finite
from enn_ppo.checkpoints.reading import load_checkpoint, load_common, resolve_checkpoint, runs_in, step_folders
from enn_ppo.checkpoints.retention import Retention
from enn_ppo.checkpoints.saving import record_score, save_checkpoint, save_policy, what_is_there

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "Retention",
    "check_finite",
    "load_checkpoint",
    "load_common",
    "record_score",
    "resolve_checkpoint",
    "runs_in",
    "save_checkpoint",
    "save_policy",
    "step_folders",
    "what_is_there",
]
