"""Joining the ranks according to the settings and torchrun's environment variables."""

from __future__ import annotations

import os
from dataclasses import replace

import torch

from enn_ppo.checkpoints.policy import select_device
from enn_ppo.settings.config import TrainConfig
from enn_ppo.training.ranks import ALONE, Ranks
from enn_ppo.training.tracking.run_output import announce

_LEFT_BY_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_COMMAND = "torchrun --nproc_per_node=2 -m enn_ppo.train distributed=ddp"


def join_ranks(config: TrainConfig) -> Ranks:
    """Connect this process to the other ranks; returns `ALONE` for a single process.

    Raises:
        ValueError: `distributed=ddp` without torchrun, or torchrun without it; or the number of ranks does not divide the
            settings.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if config.distributed.mode != "ddp":
        if size > 1 and "TORCHELASTIC_RUN_ID" in os.environ:
            raise ValueError(
                f"torchrun has started {size} processes, which would each train the same: add distributed=ddp, or start this "
                "without torchrun"
            )
        return ALONE
    if any(name not in os.environ for name in _LEFT_BY_TORCHRUN):
        raise ValueError(f"distributed=ddp is for processes that torchrun starts: {_COMMAND}, and the other settings")
    if size == 1:
        return ALONE
    check_shares(config, size)
    announce(f"waiting for all {size} ranks")
    device = select_device(config.device)
    if device.type == "cuda":
        _take_a_gpu()
    from enn_ppo.training.torchrun.torch_ranks import TorchRanks

    return TorchRanks(device)


def check_shares(config: TrainConfig, size: int) -> None:
    """Check that `size` ranks can have equal shares of the environments, in whole blocks and processes.

    Raises:
        ValueError: the settings do not divide evenly.
    """
    rollout = config.rollout
    share = rollout.num_envs // size
    rollout.check_shares(size, f"{size} ranks of torchrun")
    most = replace(rollout, num_envs=share, num_processes=0).block_size
    if rollout.num_processes > most:
        each = "each rank" if most == share else "each block of each rank"
        raise ValueError(
            f"rollout.num_processes={rollout.num_processes} is for {each}, and must be at most its {most} "
            f"environment{'s' if most > 1 else ''} (rollout.num_envs={rollout.num_envs} shared by {size} ranks)"
        )
    if config.optim.batch_size < size:
        raise ValueError(
            f"optim.batch_size counts the frames of all ranks together: at least one for each of {size}, got "
            f"{config.optim.batch_size}"
        )


def _take_a_gpu() -> None:
    number, found = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if number >= found:
        raise ValueError(
            f"torchrun has started {os.environ.get('LOCAL_WORLD_SIZE', number + 1)} ranks on this machine, which has {found} "
            f"GPUs, and each needs one of its own: --nproc_per_node={found}, or device=cpu"
        )
    torch.cuda.set_device(number)
