"""From checkpoints to networks."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from enn_ppo.checkpoints import Checkpoint
from enn_ppo.config import TrainConfig
from enn_ppo.settings.schema import from_dict
from entity_gym.batch.saving import spaces_from_dict
from rogue_net import RogueNet, RogueNetConfig
from rogue_net.backend import why_not_precision

log = logging.getLogger(__name__)

CPU = torch.device("cpu")


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


def saved_config(checkpoint: Checkpoint) -> TrainConfig:
    """The settings of the run that a checkpoint is of.

    Raises:
        ValueError: there is a setting that this version does not know, or a value that it does not allow.
    """
    try:
        return from_dict(TrainConfig, checkpoint.config)
    except ValueError as error:
        raise ValueError(
            f"checkpoint {checkpoint.path} has settings that this version of enn-ppo cannot use, as if it were written by "
            f"another: config.yaml: {error}"
        ) from error


def set_determinism(on: bool) -> None:
    """Whether torch may, in this process, only use algorithms that give the same result every time."""
    if on:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when it is first used
    if on != torch.are_deterministic_algorithms_enabled():  # setting it imports torch's compiler, which takes a second
        torch.use_deterministic_algorithms(on)


def load_policy(checkpoint: Checkpoint, device: torch.device) -> RogueNet:
    """The policy that a checkpoint holds, with its normalization, for an environment as it was trained in."""
    return load_net(checkpoint, device=device).to(device)


def load_net(checkpoint: Checkpoint, network: str = "policy", device: torch.device = CPU) -> RogueNet:
    """A network that a checkpoint holds, on the CPU.

    Args:
        checkpoint: whose.
        network: `policy`, or one of `more_weights`, of which the settings have a section of the same name.
        device: where it is to compute. If its precision cannot be there, it is fp32: what was trained on a GPU plays anywhere.

    Raises:
        ValueError: its settings, or its weights, are not those of a network that this version has.
    """
    config = saved_config(checkpoint)
    net_config = config.net if network == "policy" else getattr(config, network)
    weights = checkpoint.policy if network == "policy" else checkpoint.more_weights[network]
    obs_space, action_space = spaces_from_dict(checkpoint.spaces)
    with torch.random.fork_rng(devices=[]):  # what it starts as is replaced
        net = RogueNet(_computable(net_config, device), obs_space, action_space)
    _load_weights(net, weights, checkpoint)
    return net


def _computable(config: RogueNetConfig, device: torch.device) -> RogueNetConfig:
    if (reason := why_not_precision(config, device.type)) is None:
        return config
    log.warning("the policy is played in fp32: %s", reason)
    return replace(config, precision="fp32")


def _load_weights(net: RogueNet, weights: Mapping[str, Tensor], checkpoint: Checkpoint) -> None:
    own = net.state_dict()
    for name in own.keys() | weights.keys():
        before = tuple(weights[name].shape) if name in weights else "not there"
        now = tuple(own[name].shape) if name in own else "not there"
        if before != now:
            raise ValueError(
                f"checkpoint {checkpoint.path} holds other weights than its config.yaml and spaces.json ask for: {name} is "
                f"{before} and should be {now}"
            )
    net.load_state_dict(dict(weights))
