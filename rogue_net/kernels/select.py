"""Selection of the kernels that compute a network.

    kernels    computes                                      on          cannot
    program    the whole network, acting and learning        CPU         dropout, other precisions, heads not 8, 16, ... wide
    triton     attention, modules compute the rest           CUDA        dropout of attention, pooling, heads wider than 128
    varlen     attention in bf16, of long frames             CUDA        hidden entities, relative positions, padded batches
    none       nothing: PyTorch's modules, the reference     any device

`RULES` is this table in full.
"""

from __future__ import annotations

import importlib.util
import logging
import platform
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from rogue_net.batch.frames import Frames
from rogue_net.config import Kernels, Precision, RogueNetConfig
from rogue_net.kernels.cuda.launching import MOST_COLUMNS
from rogue_net.kernels.cuda.relative_attention import refusal
from rogue_net.kernels.kernel_checks import gpu_name, why_unchecked

log = logging.getLogger(__name__)

#: Devices that Triton's kernels run on.
TRITON_DEVICES = {"cuda"}

#: How a user gets the Triton kernels where `auto` does not take them.
TO_SWITCH = "Run scripts/gpu_checks.sh to check them on this GPU, or set net.backend=fused to take them unchecked"

#: Tokens of a frame on average from which torch's attention of 16 bits is taken in place of ours, which looks at tiles of
#: tokens whatever the lengths of frames. Not measured yet: `scripts/gpu_checks.sh` makes the table that tells.
VARLEN_FROM = 128


class Choice(NamedTuple):
    """Selected kernels, and the precision of PyTorch's matrix products."""

    kernels: Kernels
    products: Precision = "fp32"


REFERENCE = Choice("none")


class Case(NamedTuple):
    """A network to be computed. What is None is not known yet, and no reason against any kernels."""

    config: RogueNetConfig
    tensor: Tensor | None = None  # a weight or tokens, of which device and dtype matter
    frames: Frames | None = None
    drop: bool = False  # whether dropout is active


def select(
    config: RogueNetConfig, tensor: Tensor, frames: Frames | None = None, *, drop: bool = False, modules: bool = False
) -> Choice:
    """Select what computes a network.

    On CUDA, `auto` takes the Triton kernels only where they have passed their checks (`rogue_net/kernels/kernel_checks.py`).

    Args:
        config: says what is wanted.
        tensor: a weight, or tokens, of which device and dtype matter.
        frames: of the tokens; None: nothing is known of them.
        drop: whether dropout is active.
        modules: whether PyTorch's modules compute it in any case, as under autograd: only attention may have kernels then.

    Raises:
        ValueError: `fused` or a precision was asked for, and cannot be.
    """
    device = tensor.device.type
    on_cuda = device in TRITON_DEVICES
    if (problem := why_not_precision(config, "cuda" if on_cuda else "cpu")) is not None:
        raise ValueError(problem)
    nothing = Choice("none", config.precision)
    wanted: Kernels = "triton" if on_cuda else "program"
    if config.backend == "reference" or not (on_cuda or device == "cpu") or (modules and not on_cuda):
        return nothing
    if on_cuda and (len(tensor) == 0 or config.n_layer == 0):
        return nothing
    reason = why_not(wanted, Case(config, tensor, frames, drop))
    if reason is not None:
        if config.backend == "fused":
            raise ValueError(f"net.backend=fused cannot be: {reason}; allowed: reference, auto")
        say_once(reason)
        return nothing
    if on_cuda and config.backend == "auto" and not _passed(tensor.device):
        return nothing
    if on_cuda and why_not("varlen", Case(config, tensor, frames, drop)) is None:
        wanted = "varlen"
    return Choice(wanted, config.precision)


def why_not(kernels: Kernels, case: Case) -> str | None:
    """The first reason why the kernels cannot compute a network; None if they can."""
    return next((reason for rule in RULES[kernels] if (reason := rule(case)) is not None), None)


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
    missing = why_not("triton" if device == "cuda" else "program", Case(config))
    if config.backend == "fused" and config.n_layer > 0 and missing is not None:
        raise ValueError(f"net.backend=fused cannot be: {missing}; allowed: reference, auto")


@cache
def say_once(reason: str) -> None:
    """Say that PyTorch's modules compute the network, and why."""
    log.warning("PyTorch's modules take the place of kernels, which is slower: %s", reason)


@cache
def _passed(device: torch.device) -> bool:
    """Whether the Triton kernels have passed their checks on this GPU. Says once what `auto` takes, and why."""
    reason = why_unchecked(device)
    if reason is None:
        log.info("net.backend=auto takes the Triton kernels: scripts/gpu_checks.sh passed on %s", gpu_name(device))
    else:
        log.warning("net.backend=auto takes PyTorch's operations: %s. %s", reason, TO_SWITCH)
    return reason is None


# --- Rules: each returns a reason, or None


def _heads_of_eights(case: Case) -> str | None:
    config = case.config
    width = config.d_model // config.n_head
    if width % 8 == 0:
        return None
    return (
        f"the width of a head, net.d_model={config.d_model} / net.n_head={config.n_head} = {width}, "
        "is not a multiple of 8"
    )


def _any_dropout(case: Case) -> str | None:
    for name in ("embedding_dropout", "attention_dropout", "residual_dropout"):
        if getattr(case.config, name):
            return f"net.{name}={getattr(case.config, name)} has no kernels on CPUs"
    return None


def _active_attention_dropout(case: Case) -> str | None:
    share = case.config.attention_dropout
    return (
        f"net.attention_dropout={share} has no kernels, and is active while learning" if case.drop and share else None
    )


def _full_precision(case: Case) -> str | None:
    return None if case.config.precision == "fp32" else f"net.precision={case.config.precision} has no kernels on CPUs"


def _jit(case: Case) -> str | None:
    return "Numba is switched off by NUMBA_DISABLE_JIT" if is_jit_off() else None


def _on_cpu(case: Case) -> str | None:
    if case.tensor is None or case.tensor.device.type == "cpu":
        return None
    return f"it computes on the CPU, and the network is on {case.tensor.device}"


def _float32(case: Case) -> str | None:
    if case.tensor is None or case.tensor.dtype == torch.float32:
        return None
    return f"it computes in float32, and the network in {str(case.tensor.dtype).removeprefix('torch.')}"


def _torch_defaults(case: Case) -> str | None:
    made = torch.empty(0)  # kernels write to what torch makes without being told more
    if case.tensor is None or (made.dtype == torch.float32 and made.device.type == "cpu"):
        return None
    return f"it needs torch's defaults, float32 on the CPU, and they are {made.dtype} on {made.device}"


def _pooling(case: Case) -> str | None:
    return None if case.config.pooling == "none" else f"net.pooling={case.config.pooling} has no kernels"


def _narrow_heads(case: Case) -> str | None:
    width = case.config.d_model // case.config.n_head
    if width <= MOST_COLUMNS:
        return None
    return f"the width of a head, net.d_model / net.n_head = {width}, is above {MOST_COLUMNS}"


def _deterministic_relpos(case: Case) -> str | None:
    kind = case.config.relpos.kind
    if kind == "none" or (reason := refusal()) is None:
        return None
    return f"{reason} (net.relpos.kind={kind}, torch_deterministic=true)"


def _triton_is_there(case: Case) -> str | None:
    if importlib.util.find_spec("triton") is not None:
        return None
    return "Triton is not installed, which CUDA builds of torch bring along; pip install triton"


def _long_frames_in_bf16(case: Case) -> str | None:
    config, tensor, frames = case.config, case.tensor, case.frames
    if config.precision != "bf16" or config.relpos.kind != "none" or torch.are_deterministic_algorithms_enabled():
        return "it is for bf16 without relative positions, and adds up in any order"
    if frames is None or tensor is None or frames.padded or frames.visible is not None:
        return "it looks up the longest frame, which graphs must not, and hides nothing"
    if (config.d_model // config.n_head) % 8 != 0:
        return "heads must be a multiple of 8 wide"
    if len(tensor) < VARLEN_FROM * (len(frames.offsets) - 1):
        return f"frames are shorter than {VARLEN_FROM} tokens"
    return None


RULES: Mapping[Kernels, tuple[Callable[[Case], str | None], ...]] = {
    "program": (_heads_of_eights, _any_dropout, _full_precision, _jit, _on_cpu, _float32, _torch_defaults),
    "triton": (_pooling, _narrow_heads, _deterministic_relpos, _triton_is_there, _float32, _active_attention_dropout),
    "varlen": (_long_frames_in_bf16,),
    "none": (),
}


def is_jit_off() -> bool:
    """Whether Numba was told not to compile."""
    from numba import config as numba_config

    return bool(getattr(numba_config, "DISABLE_JIT", False))


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
