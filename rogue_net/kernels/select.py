"""Choice between the compiled program, on a CPU, and PyTorch's modules, the reference on any device."""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from entity_gym.actions import ActionSpace, SelectEntitiesActionSpace
from rogue_net.config import RogueNetConfig

log = logging.getLogger(__name__)

NO_ACTIONS: Mapping[str, ActionSpace] = {}

#: Settings with the only value that the program has.
NET_OF_PROGRAM = {"dropout": 0.0, "pooling": "none", "precision": "fp32"}
RELPOS_OF_PROGRAM = {"key_projection": False, "value_projection": False, "value_gate": "relu"}


def uses_program(config: RogueNetConfig, weight: Tensor, action_space: Mapping[str, ActionSpace] = NO_ACTIONS) -> bool:
    """True if the compiled program computes a network. Where `auto` falls back on modules on a CPU, a line says why, once.

    Args:
        config: of the network.
        weight: one of its weights, of which device and dtype matter.
        action_space: of the network.

    Raises:
        ValueError: `net.backend=fused` or the precision cannot be.
    """
    if (problem := why_not_precision(config, weight.device.type)) is not None:
        raise ValueError(problem)
    if config.backend == "reference":
        return False
    reason = why_no_program(config, weight, action_space)
    if reason is not None and config.backend == "fused":
        raise ValueError(f"net.backend=fused cannot be: {reason}; allowed: reference, auto")
    if reason is not None and weight.device.type == "cpu":
        say_once(reason)
    return reason is None


def why_no_program(
    config: RogueNetConfig, weight: Tensor, action_space: Mapping[str, ActionSpace] = NO_ACTIONS
) -> str | None:
    """The first reason why the program cannot compute a network; None if it can.

    Args:
        config: of the network.
        weight: one of its weights, of which device and dtype matter.
        action_space: of the network.
    """
    width = config.d_model // config.n_head
    if width % 8 != 0:
        return f"the width of a head, net.d_model={config.d_model} / net.n_head={config.n_head} = {width}, is not a multiple of 8"
    of_relpos = RELPOS_OF_PROGRAM if config.relpos.kind != "none" else {}
    for section, settings, allowed in (("net", config, NET_OF_PROGRAM), ("net.relpos", config.relpos, of_relpos)):
        for name, only in allowed.items():
            if (value := getattr(settings, name)) != only:
                return f"{section}.{name}={str(value).lower()} has no kernels on CPUs"
    for name, space in action_space.items():
        if isinstance(space, SelectEntitiesActionSpace) and not space.ordered and (space.min or space.max is not None):
            return f"the limited sets of the action {name!r} have no kernels"
    if os.environ.get("NUMBA_DISABLE_JIT", "0") != "0":
        return "Numba is switched off by NUMBA_DISABLE_JIT"
    if weight.device.type != "cpu":
        return f"it computes on the CPU, and the network is on {weight.device}"
    if weight.dtype != torch.float32:
        return f"it computes in float32, and the network in {str(weight.dtype).removeprefix('torch.')}"
    return None


@cache
def say_once(reason: str) -> None:
    """Say that PyTorch's modules compute the network, and why."""
    log.warning("PyTorch's modules take the place of the compiled program, which is slower: %s", reason)


@cache
def why_not_precision(config: RogueNetConfig, device: str) -> str | None:
    """Why `net.precision` cannot be on a device, `cpu` or `cuda`, as a sentence; None if it can.

    On CUDA every precision can; on CPUs bf16 can where they have instructions for it.
    """
    if device == "cuda" or config.precision == "fp32":
        return None
    if config.precision == "tf32":
        return "net.precision=tf32 cannot be: it is for device=cuda; allowed: fp32"
    if has_bf16():
        return None
    return f"net.precision=bf16 cannot be: this CPU ({platform.machine()}) has no instructions for it; allowed: fp32"


@cache
def has_bf16() -> bool:
    """Whether this CPU multiplies matrices of bfloat16 by instructions of its own."""
    try:
        flags = Path("/proc/cpuinfo").read_text().split()
    except OSError:  # not Linux
        return platform.system() == "Darwin" and platform.machine() == "arm64"
    return any(flag in flags for flag in ("avx512_bf16", "amx_bf16", "bf16"))
