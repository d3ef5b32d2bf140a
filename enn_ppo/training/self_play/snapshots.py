"""Policy files of a run's past policies: `<run_dir>/pool/step_<12 digits>.safetensors`, which `load_checkpoint` reads.

Files are written under another name and renamed, so a file of this name is whole.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from enn_ppo.checkpoints.policy_file import Checkpoint, policy_bytes
from enn_ppo.settings.schema import to_dict
from enn_ppo.training.files import make_folder, replace_file
from enn_ppo.training.tracking.run_dir import POOL
from entity_gym.batch.saving import spaces_to_dict
from rogue_net import RogueNet

_NAME = re.compile(r"step_(\d{12,})\.safetensors")


def snapshot_path(run_dir: Path, step: int) -> Path:
    """Path of a step's snapshot."""
    return run_dir / POOL / f"step_{step:012d}.safetensors"


def snapshots_of(run_dir: Path) -> list[int]:
    """The steps of a run's snapshots, ascending."""
    names = os.listdir(run_dir / POOL) if (run_dir / POOL).is_dir() else []
    return sorted(int(match[1]) for match in map(_NAME.fullmatch, names) if match)


def write_snapshot(run_dir: Path, step: int, net: RogueNet, config: Mapping[str, Any]) -> None:
    """Write the policy file of `net`, replacing an existing snapshot of this step. `config` is that of the run.

    Raises:
        ValueError: the file cannot be written; an existing snapshot is unchanged.
    """
    path = snapshot_path(run_dir, step)
    snapshot = Checkpoint(
        path=path,
        step=step,
        policy=net.state_dict(),
        config={**config, "net": to_dict(net.config)},  # opponents need no values, so a value network is not in it
        spaces=spaces_to_dict(net.obs_space, net.action_space),
        is_own=True,
    )
    try:
        make_folder(path.parent)
        replace_file(path, policy_bytes(snapshot))
    except OSError as error:
        raise ValueError(f"snapshot {path} cannot be written: {error.strerror or error}") from error
