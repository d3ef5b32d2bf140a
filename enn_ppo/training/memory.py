"""Advice for the user when the device's memory is full."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from enn_ppo.checkpoints import step_folders
from enn_ppo.settings.config import TrainConfig
from enn_ppo.training.errors import DeviceMemoryFull


@contextmanager
def explained_if_full(config: TrainConfig) -> Iterator[None]:
    """Turn torch's out-of-memory error into one that names settings to lower.

    Raises:
        DeviceMemoryFull: the device is out of memory.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise DeviceMemoryFull(_message(config, error)) from error


def _message(config: TrainConfig, error: torch.OutOfMemoryError) -> str:
    rollout, optim = config.rollout, config.optim
    micro_batch = max(1, (optim.micro_batch_size or optim.batch_size) // 2)
    without_graphs = " and compile=auto" if config.compile == "graphs" else ""
    remedies = [
        f"optim.micro_batch_size={micro_batch}{without_graphs} (accumulates gradients, with the same result)",
        f"rollout.num_envs or rollout.steps below {rollout.num_envs} and {rollout.steps} (rollouts are on the device)",
        f"optim.batch_size below {optim.batch_size}",
    ]
    if config.net.precision != "bf16":
        remedies.append("net.precision=bf16")
    first_sentence = str(error).split(". ")[0].strip()
    has_saved = config.run_dir is not None and step_folders(Path(config.run_dir) / "checkpoints")
    saved = f"; go on from the last checkpoint with resume={config.run_dir}" if has_saved else ""
    return f"the device's memory is full ({first_sentence}). Lower its use by any of: {'; '.join(remedies)}{saved}"
