"""Loading networks from checkpoints."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path

import torch

from enn_ppo.checkpoints import Checkpoint, load_checkpoint
from enn_ppo.checkpoints.trust import check_trust, code_of_environment
from enn_ppo.settings.config import TrainConfig
from enn_ppo.settings.schema import from_dict, to_dict
from entity_gym.batch.saving import spaces_from_dict
from rogue_net import RogueNet
from rogue_net.kernels.select import why_not_precision
from rogue_net.transfer import Transferred, transfer

log = logging.getLogger(__name__)

CPU = torch.device("cpu")

#: Threads that act and learn by default: minibatches of hundreds of frames are too small for more.
MOST_THREADS = 8


def select_device(name: str) -> torch.device:
    """The torch device of the setting `device`: `auto`, `cpu` or `cuda`.

    Raises:
        ValueError: `cuda` is set and there is no GPU.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        build = "this build of torch has no CUDA" if torch.version.cuda is None else "torch finds no CUDA device"
        raise ValueError(f"device is 'cuda', but {build}; allowed here: 'auto', 'cpu'")
    return torch.device(name)


def saved_config(checkpoint: Checkpoint) -> TrainConfig:
    """Read the settings of the run that a checkpoint belongs to.

    Raises:
        ValueError: this version does not know a setting, or does not allow its value.
    """
    try:
        return from_dict(TrainConfig, checkpoint.config)
    except ValueError as error:
        raise ValueError(
            f"checkpoint {checkpoint.path} has settings that this version of enn-ppo cannot use, as if it were written by "
            f"another: {error}"
        ) from error


def load_trusted(path: Path | str, trusted: bool) -> Checkpoint:
    """Load a checkpoint whose environment will be made here.

    Raises:
        ValueError: there is none, or its settings name code, this installation has not written it, and `trusted` is false.
    """
    checkpoint = load_checkpoint(Path(path))
    if not trusted:
        check_trust(checkpoint, code_of_environment(to_dict(saved_config(checkpoint).env)))
    return checkpoint


def set_threads(count: int | None) -> None:
    """Set the number of threads that act and learn in this process; None: torch's default, at most `MOST_THREADS`."""
    torch.set_num_threads(min(torch.get_num_threads(), MOST_THREADS) if count is None else count)


def set_determinism(on: bool) -> None:
    """Set whether torch uses only deterministic algorithms in this process."""
    if on:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when it is first used
    if on != torch.are_deterministic_algorithms_enabled():  # setting it imports torch's compiler, which takes a second
        torch.use_deterministic_algorithms(on)


def load_net(checkpoint: Checkpoint, network: str = "policy", device: torch.device = CPU) -> RogueNet:
    """Load a network of a checkpoint: `policy` or `value_net`.

    The precision becomes fp32 if `device` does not support its setting.

    Raises:
        ValueError: settings or weights do not fit this version's network; the message names the first difference.
    """
    config = saved_config(checkpoint)
    net_config = config.net if network == "policy" else config.value_net
    if net_config is None:
        raise ValueError(f"checkpoint {checkpoint.path} has weights of a {network}, and its settings have none")
    weights = checkpoint.policy if network == "policy" else checkpoint.value_net
    if (reason := why_not_precision(net_config, device.type)) is not None:
        log.warning("the policy is played in fp32: %s", reason)
        net_config = replace(net_config, precision="fp32")
    try:
        with torch.random.fork_rng(devices=[]):  # its initial weights are replaced
            net = RogueNet(net_config, *spaces_from_dict(checkpoint.spaces))
        for name, own in net.state_dict().items():
            if name in weights and weights[name].dtype != own.dtype:
                raise ValueError(f"{name} is {weights[name].dtype} in it, and {own.dtype} in the network")
        net.load_state_dict(weights)
    except (ValueError, RuntimeError) as error:
        lines = "; ".join(line.strip() for line in str(error).splitlines())
        raise ValueError(
            f"checkpoint {checkpoint.path} holds other weights than its settings and spaces ask for: {lines}"
        ) from error
    return net.to(device)


def transfer_weights(net: RogueNet, checkpoint: Checkpoint, env: str, network: str = "policy") -> Transferred:
    """Load the weights of a checkpoint's network into `net`, which plays in the environment `env`; see `load_net`.

    Raises:
        ValueError: they do not fit; the message names the first difference. `net` is unchanged.
    """
    saved = load_net(checkpoint, network)
    try:
        return transfer(saved, net)
    except ValueError as error:
        raise ValueError(f"the {network} of checkpoint {checkpoint.path} does not fit {env}: {error}") from None
