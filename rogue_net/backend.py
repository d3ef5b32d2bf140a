"""How the transformer is computed: the one place that chooses."""

from __future__ import annotations

import importlib.util
import logging
import platform
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from entity_gym.actions import (
    ActionSpace,
    CategoricalActionSpace,
    GlobalCategoricalActionSpace,
    SelectEntityActionSpace,
)
from rogue_net.attention import AttentionBackend
from rogue_net.config import Backend, Precision, RogueNetConfig
from rogue_net.frames import Frames
from rogue_net.kernels.cuda.launching import MOST_COLUMNS
from rogue_net.kernels.cuda.relative_attention import refusal

log = logging.getLogger(__name__)


class Choice(NamedTuple):
    """What computes the blocks."""

    trunk: bool  # all blocks as one fused function
    attention: AttentionBackend  # where the blocks are modules
    products: Precision = "fp32"  # what modules multiply matrices in


REFERENCE = Choice(trunk=False, attention="packed")

#: Devices that Triton's kernels run on.
TRITON_DEVICES = {"cuda"}

#: Tokens of a frame on average from which torch's attention of 16 bits is taken in place of ours, which looks at tiles of
#: tokens whatever the lengths of frames. Not measured yet: `scripts/gpu_checks.sh` makes the table that tells.
VARLEN_FROM = 128


def choose(config: RogueNetConfig, tokens: Tensor, frames: Frames | None = None, *, drop: bool) -> Choice:
    """What computes the blocks on these tokens.

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
    reference = REFERENCE._replace(products=config.precision) if on_cuda else REFERENCE
    if config.backend == "reference" or len(tokens) == 0 or config.n_layer == 0:
        return reference
    reason = (
        (why_not_triton(config) or _why_not_in(tokens)) if on_cuda else why_not_fused(config) or _why_not_on(tokens)
    )
    if reason is None and drop and config.attention_dropout:
        reason = f"net.attention_dropout={config.attention_dropout} has no kernels, and is active while learning"
    if reason is None:
        if on_cuda:
            return reference._replace(attention=_attention_on_cuda(config, len(tokens), frames))
        return Choice(trunk=not (drop and config.residual_dropout), attention="fused")
    if config.backend == "fused":
        raise ValueError(f"net.backend=fused cannot be: {reason}; allowed: reference, auto")
    if config.precision != "fp32" and not on_cuda:
        raise ValueError(f"net.precision={config.precision} cannot be: {reason}; allowed: fp32")
    _say_once(reason)
    return reference


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


def fuses_rows(backend: Backend, rows: Tensor) -> bool:
    """Whether kernels compute the embedding, or products of pairs. Where they cannot, nobody is told; see `choose`.

    Args:
        backend: what is wanted.
        rows: numbers that take part, of which device, dtype and the last dimension matter.
    """
    return backend != "reference" and rows.shape[-1] % 8 == 0 and _why_not_on(rows) is None and not is_jit_off()


def is_jit_off() -> bool:
    """Whether Numba was told not to compile."""
    from numba import config as numba_config

    return bool(getattr(numba_config, "DISABLE_JIT", False))


@cache
def why_not_fused(config: RogueNetConfig) -> str | None:
    """Why a network with these settings cannot be fused; None if it can."""
    if config.pooling != "none":
        return f"net.pooling={config.pooling} has no kernels"
    if (config.d_model // config.n_head) % 8 != 0:
        return (
            f"the width of a head, net.d_model={config.d_model} / net.n_head={config.n_head} "
            f"= {config.d_model // config.n_head}, is not a multiple of 8"
        )
    if is_jit_off():
        return "Numba is switched off by NUMBA_DISABLE_JIT"
    return None


def why_not_compiled(config: RogueNetConfig, action_space: Mapping[str, ActionSpace], weights: Tensor) -> str | None:
    """The reason why a network is not trained by the compiled step (`rogue_net.kernels.cpu.program`); None if it is.

    Args:
        config: of the network.
        action_space: of the network.
        weights: of the network, of which the device and dtype matter.
    """
    if config.backend == "reference":
        return "net.backend=reference"
    if (reason := why_not_fused(config) or _why_not_on(weights)) is not None:
        return reason
    if config.relpos.kind != "none":
        return f"net.relpos.kind={config.relpos.kind} has no kernels in the compiled step"
    if config.embedding_dropout or config.attention_dropout or config.residual_dropout:
        return "dropout has no kernels"
    if config.precision != "fp32":
        return f"net.precision={config.precision} has no kernels in the compiled step"
    for name, space in action_space.items():
        if not isinstance(space, CategoricalActionSpace | GlobalCategoricalActionSpace | SelectEntityActionSpace):
            return f"the action {name!r} is a {type(space).__name__}, which has no kernels in the compiled step"
    return None


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
def _say_once(reason: str) -> None:
    log.warning("net.backend=auto takes the reference, as the fused one cannot be: %s", reason)


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

    On CUDA every precision can: modules have it where kernels do not. On the CPU bf16 is the kernels' alone.
    """
    if device == "cuda" or config.precision == "fp32":
        return None
    if config.precision == "tf32":
        return "net.precision=tf32 cannot be: it is for device=cuda; allowed: fp32"
    reason = why_not_fused(config) if config.backend != "reference" else "net.backend=reference computes in fp32"
    for dropout in ("residual_dropout", "attention_dropout"):
        if reason is None and getattr(config, dropout) > 0:
            reason = f"net.{dropout}={getattr(config, dropout)} leaves the products to modules, which compute in fp32"
    if reason is None and not has_bf16():
        reason = f"this CPU ({platform.machine()}) has no instructions for it"
    return None if reason is None else f"net.precision=bf16 cannot be: {reason}; allowed: fp32"


@cache
def has_bf16() -> bool:
    """Whether this CPU multiplies matrices of bfloat16 by instructions of its own."""
    try:
        flags = Path("/proc/cpuinfo").read_text().split()
    except OSError:  # not Linux
        return platform.system() == "Darwin" and platform.machine() == "arm64"
    return any(flag in flags for flag in ("avx512_bf16", "amx_bf16", "bf16"))
