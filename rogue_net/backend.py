"""Choice of what computes a network.

On CPUs a compiled program acts and learns (`rogue_net.kernels.cpu.program`), and PyTorch's modules are the reference, for
autograd and for what the program does not have. On CUDA modules compute everything, attention by kernels where they can.
"""

from __future__ import annotations

import importlib.util
import logging
import platform
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from rogue_net.attention import AttentionBackend
from rogue_net.config import Precision, RogueNetConfig
from rogue_net.frames import Frames
from rogue_net.kernel_checks import gpu_name, why_unchecked
from rogue_net.kernels.cuda.launching import MOST_COLUMNS
from rogue_net.kernels.cuda.relative_attention import refusal

log = logging.getLogger(__name__)


class Choice(NamedTuple):
    """Choice of what computes the blocks."""

    attention: AttentionBackend
    products: Precision = "fp32"  # what modules multiply matrices in


REFERENCE = Choice(attention="packed")

#: Devices that Triton's kernels run on.
TRITON_DEVICES = {"cuda"}

#: How a user gets the Triton kernels where `auto` does not take them.
TO_SWITCH = "Run scripts/gpu_checks.sh to check them on this GPU, or set net.backend=fused to take them unchecked"

#: Tokens of a frame on average from which torch's attention of 16 bits is taken in place of ours, which looks at tiles of
#: tokens whatever the lengths of frames. Not measured yet: `scripts/gpu_checks.sh` makes the table that tells.
VARLEN_FROM = 128


def choose(config: RogueNetConfig, tokens: Tensor, frames: Frames | None = None, *, drop: bool) -> Choice:
    """Choose what the blocks' modules compute with on these tokens.

    On CUDA, `auto` takes the Triton kernels only where they have passed their checks (`rogue_net/kernel_checks.py`).

    Args:
        config: says what is wanted.
        tokens: (E, D), of which device and dtype matter.
        frames: of the tokens; None: nothing is known of them.
        drop: whether dropout is active.

    Raises:
        ValueError: `fused` was asked for, or a precision, and cannot be.
    """
    on_cuda = tokens.device.type in TRITON_DEVICES
    if config.precision != "fp32" and (problem := why_not_precision(config, "cuda" if on_cuda else "cpu")) is not None:
        raise ValueError(problem)
    reference = REFERENCE._replace(products=config.precision)
    if not on_cuda or config.backend == "reference" or len(tokens) == 0 or config.n_layer == 0:
        return reference
    reason = why_not_triton(config) or _why_not_in(tokens)
    if reason is None and drop and config.attention_dropout:
        reason = f"net.attention_dropout={config.attention_dropout} has no kernels, and is active while learning"
    if reason is None:
        if config.backend == "auto" and not _passed(tokens.device):
            return reference
        return reference._replace(attention=_attention_on_cuda(config, len(tokens), frames))
    if config.backend == "fused":
        raise ValueError(f"net.backend=fused cannot be: {reason}; allowed: reference, auto")
    say_once(reason)
    return reference


@cache
def _passed(device: torch.device) -> bool:
    """Whether the Triton kernels have passed their checks on this GPU. Says once what `auto` takes, and why."""
    reason = why_unchecked(device)
    if reason is None:
        log.info("net.backend=auto takes the Triton kernels: scripts/gpu_checks.sh passed on %s", gpu_name(device))
    else:
        log.warning("net.backend=auto takes PyTorch's operations: %s. %s", reason, TO_SWITCH)
    return reason is None


def _attention_on_cuda(config: RogueNetConfig, num_tokens: int, frames: Frames | None) -> AttentionBackend:
    if config.precision != "bf16" or config.relpos.kind != "none" or torch.are_deterministic_algorithms_enabled():
        return "triton"
    if (
        frames is None or frames.padded or frames.visible is not None
    ):  # what graphs record must not ask for the longest frame
        return "triton"
    width = config.d_model // config.n_head
    if width % 8 != 0 or num_tokens < VARLEN_FROM * (len(frames.offsets) - 1):
        return "triton"
    return "varlen"


def is_jit_off() -> bool:
    """Whether Numba was told not to compile."""
    from numba import config as numba_config

    return bool(getattr(numba_config, "DISABLE_JIT", False))


@cache
def why_not_fused(config: RogueNetConfig) -> str | None:
    """Why no program can compute a network with these settings on a CPU; None if one can."""
    if (config.d_model // config.n_head) % 8 != 0:
        return (
            f"the width of a head, net.d_model={config.d_model} / net.n_head={config.n_head} "
            f"= {config.d_model // config.n_head}, is not a multiple of 8"
        )
    for name in ("embedding_dropout", "attention_dropout", "residual_dropout"):
        if getattr(config, name):
            return f"net.{name}={getattr(config, name)} has no kernels on CPUs"
    if config.precision != "fp32":
        return f"net.precision={config.precision} has no kernels on CPUs"
    if is_jit_off():
        return "Numba is switched off by NUMBA_DISABLE_JIT"
    return None


def why_not_compiled(config: RogueNetConfig, weights: Tensor) -> str | None:
    """Why no program computes a network; None if one does.

    Args:
        config: of the network.
        weights: of the network, of which the device and dtype matter.
    """
    if config.backend == "reference":
        return "net.backend=reference"
    return why_not_fused(config) or _why_not_on(weights)


def _why_not_on(tokens: Tensor) -> str | None:
    if tokens.device.type != "cpu":
        return f"it computes on the CPU, and the network is on {tokens.device}"
    if tokens.dtype != torch.float32:
        return f"it computes in float32, and the network in {str(tokens.dtype).removeprefix('torch.')}"
    made = torch.empty(0)  # kernels write to what torch makes without being told more
    if made.dtype != torch.float32 or made.device.type != "cpu":
        return f"it needs torch's defaults, float32 on the CPU, and they are {made.dtype} on {made.device}"
    return None


def why_not_triton(config: RogueNetConfig) -> str | None:
    """Why Triton cannot compute the attention of a network with these settings; None if it can."""
    if config.pooling != "none":
        return f"net.pooling={config.pooling} has no kernels"
    if (width := config.d_model // config.n_head) > MOST_COLUMNS:
        return f"the width of a head, net.d_model / net.n_head = {width}, is above {MOST_COLUMNS}"
    if config.relpos.kind != "none" and (reason := refusal()) is not None:
        return f"{reason} (net.relpos.kind={config.relpos.kind}, torch_deterministic=true)"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed, which CUDA builds of torch bring along; pip install triton"
    return None


def _why_not_in(tokens: Tensor) -> str | None:
    if tokens.dtype != torch.float32:
        return f"it computes in float32, and the network in {str(tokens.dtype).removeprefix('torch.')}"
    return None


@cache
def say_once(reason: str) -> None:
    """Say that PyTorch's modules compute the network, and why, unless they were asked for."""
    if reason != "net.backend=reference":
        log.warning("PyTorch's modules take the place of kernels, which is slower: %s", reason)


def check_backend(config: RogueNetConfig, device: str) -> None:
    """Check that a network can be computed as `net.backend` and `net.precision` ask for, as far as its settings say.

    Args:
        config: of the network.
        device: `cpu` or `cuda`.

    Raises:
        ValueError: there are no kernels for it, this CPU has no instructions for bf16, or nothing would use them.
    """
    if (problem := why_not_precision(config, device)) is not None:
        raise ValueError(problem)
    missing = why_not_triton(config) if device == "cuda" else why_not_fused(config)
    if config.backend == "fused" and config.n_layer > 0 and missing is not None:
        raise ValueError(f"net.backend=fused cannot be: {missing}; allowed: reference, auto")


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
