"""A check that networks and rollouts can fit into the memory."""

from __future__ import annotations

from enn_ppo.settings.config import TrainConfig
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
