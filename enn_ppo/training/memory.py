"""Memory: what cannot fit is refused, and who runs out of it gets advice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from enn_ppo.checkpoints import step_files
from enn_ppo.settings.config import TrainConfig
from enn_ppo.training.errors import DeviceMemoryFull
from rogue_net.size import BYTES_TO_LEARN, check_fits, gigabytes, machine_memory

#: A lower bound of the bytes of a frame in a rollout: the columns of `Frames` that hold one number for each frame, and offsets of
#: one entity type and of one action.
FRAME_BYTES = 46


def check_memory(config: TrainConfig, num_ranks: int = 1) -> None:
    """Check that networks and rollouts of these settings can fit into the memory of this machine, before anything is allocated.

    The estimate is a lower bound: observations come on top. `num_ranks` ranks share the rollouts.

    Raises:
        ValueError: they cannot; the message names the settings and the sizes.
    """
    check_fits(config.net, BYTES_TO_LEARN)
    if config.value_net is not None:
        check_fits(config.value_net, BYTES_TO_LEARN, "value_net")
    rollout, memory = config.rollout, machine_memory()
    frames = rollout.num_envs * rollout.steps // num_ranks
    if frames * FRAME_BYTES > memory:
        raise ValueError(
            f"rollout.num_envs={rollout.num_envs} and rollout.steps={rollout.steps} make rollouts of {frames:,} frames, which "
            f"need at least {gigabytes(frames * FRAME_BYTES)}; this machine has {gigabytes(memory)}: set smaller ones"
        )


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
    remedies = [
        f"optim.micro_batch_size={micro_batch} (accumulates gradients, with the same result)",
        f"rollout.num_envs or rollout.steps below {rollout.num_envs} and {rollout.steps} (rollouts are on the device)",
        f"optim.batch_size below {optim.batch_size}",
    ]
    if config.net.precision != "bf16":
        remedies.append("net.precision=bf16")
    first_sentence = str(error).split(". ")[0].strip()
    has_saved = config.run_dir is not None and step_files(Path(config.run_dir) / "checkpoints")
    saved = f"; go on from the last checkpoint with resume={config.run_dir}" if has_saved else ""
    return f"the device's memory is full ({first_sentence}). Lower its use by any of: {'; '.join(remedies)}{saved}"
