"""Conditions for CUDA graphs: the setting `compile`."""

from __future__ import annotations

import torch

from enn_ppo.settings.config import TrainConfig
from enn_ppo.training.ranks import Ranks
from rogue_net import RogueNetConfig
from rogue_net.kernels.kernel_checks import why_unchecked
from rogue_net.kernels.select import TO_SWITCH, Case, why_not

#: Types of devices with graphs.
GRAPH_DEVICES = {"cuda"}


def uses_graphs(config: TrainConfig, device: torch.device, ranks: Ranks) -> bool:
    """Whether to record CUDA graphs.

    Raises:
        ValueError: `compile=graphs` is set, and graphs cannot be used.
    """
    if config.compile == "off":
        return False
    reason = why_no_graphs(config, device, ranks)
    if reason is not None and config.compile == "graphs":
        raise ValueError(f"compile=graphs cannot be: {reason}; allowed: auto, off")
    return reason is None


def why_no_graphs(config: TrainConfig, device: torch.device, ranks: Ranks) -> str | None:
    """Reason why CUDA graphs cannot be used; None if they can."""
    if device.type not in GRAPH_DEVICES:
        return f"graphs are of CUDA, and the policy is on {device}"
    if ranks.size > 1:
        return f"distributed={config.distributed.mode} sums the gradients of several processes within an optimizer step"
    if config.torch_deterministic:
        return (
            "torch_deterministic=true: rounding depends on the graphs' padded sizes, which may differ in a resumed run"
        )
    if config.policies:
        return "several policies act in the same step"
    if config.ppo.teacher is not None:
        return f"the number of logits of ppo.teacher={config.ppo.teacher} differs between minibatches"
    if config.optim.micro_batch_size is not None:
        return f"optim.micro_batch_size={config.optim.micro_batch_size} makes batches of varying sizes"
    networks = {name: net for name, net in (("net", config.net), ("value_net", config.value_net)) if net is not None}
    reasons = [_why_not(section, net) for section, net in networks.items()]
    reasons += [_why_unchecked(section, net, device) for section, net in networks.items()]
    return next((reason for reason in reasons if reason is not None), None)


def _why_not(section: str, net: RogueNetConfig) -> str | None:
    for dropout in ("embedding_dropout", "attention_dropout", "residual_dropout"):
        if getattr(net, dropout) > 0:
            return f"{section}.{dropout}={getattr(net, dropout)} draws new random numbers in every step"
    if not _has_attention(net):
        return None
    if net.backend == "reference":
        return f"{section}.backend=reference packs frames on the host"
    return why_not("triton", Case(net))


def _why_unchecked(section: str, net: RogueNetConfig, device: torch.device) -> str | None:
    if net.backend != "auto" or not _has_attention(net) or (reason := why_unchecked(device)) is None:
        return None
    return f"{section}.backend=auto takes PyTorch's operations, which pack frames on the host: {reason}. {TO_SWITCH}"


def _has_attention(net: RogueNetConfig) -> bool:
    return net.n_layer > 0 and net.pooling == "none"
