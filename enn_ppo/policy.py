"""From checkpoints to policies."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from enn_ppo.checkpoint import Checkpoint
from enn_ppo.settings import from_dict
from entity_gym.saving import spaces_from_dict
from rogue_net import RogueNet, RogueNetConfig


def select_device(name: str) -> torch.device:
    """The device called `auto`, `cpu` or `cuda`.

    Raises:
        ValueError: `cuda` where there is none.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        build = "this build of torch has no CUDA" if torch.version.cuda is None else "torch finds no CUDA device"
        raise ValueError(f"device is 'cuda', but {build}; allowed here: 'auto', 'cpu'")
    return torch.device(name)


def load_policy(checkpoint: Checkpoint, device: torch.device) -> RogueNet:
    """The policy that a checkpoint holds, with its normalization."""
    obs_space, action_space = spaces_from_dict(checkpoint.spaces)
    net = RogueNet(from_dict(RogueNetConfig, checkpoint.config["net"], "net"), obs_space, action_space)
    load_weights(net, checkpoint.policy, checkpoint)
    return net.to(device)


def load_weights(net: RogueNet, weights: Mapping[str, Tensor], checkpoint: Checkpoint) -> None:
    """Copy `weights` into `net`.

    Raises:
        ValueError: they are not the weights of such a network.
    """
    own = net.state_dict()
    for name in own.keys() | weights.keys():
        before = tuple(weights[name].shape) if name in weights else "not there"
        now = tuple(own[name].shape) if name in own else "not there"
        if before != now:
            raise ValueError(
                f"checkpoint {checkpoint.path} does not fit the network: {name} is {before} in the checkpoint and {now} with "
                f"the present settings; resume with the settings of net that it was trained with: {checkpoint.config['net']}"
            )
    net.load_state_dict(dict(weights))
