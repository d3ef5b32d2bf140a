"""Checkpoints on disk: one file each, which holds data, never code.

    checkpoints/step_000000012800.safetensors     networks, settings, spaces, step and the trainer's state; `policy_file.py`

`checkpoints/latest` and `checkpoints/best` are names for the newest one and the one with the highest score, not files.

A file is written under a hidden name, flushed to the disk and renamed, so a crash, a full disk or `kill -9` at any moment leaves
whole checkpoints only. Only one process may save to a folder. Every file that is read is compared with its hash.

`save_policy` copies a checkpoint without the trainer's state, which is all that playing, evaluating and serving need.
"""

from enn_ppo.checkpoints.folder import (
    load_checkpoint,
    load_common,
    record_score,
    resolve_checkpoint,
    runs_in,
    save_checkpoint,
    save_policy,
    step_file,
    step_files,
)
from enn_ppo.checkpoints.policy_file import Checkpoint, CheckpointError, check_finite

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "check_finite",
    "load_checkpoint",
    "load_common",
    "record_score",
    "resolve_checkpoint",
    "runs_in",
    "save_checkpoint",
    "save_policy",
    "step_file",
    "step_files",
]
