"""Section `attention`: the attention of one layer, by mean entities, width of a head, backend and precision."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from gpu.cases import frames_of, lengths_of
from gpu.cost import attention_flops
from gpu.results import Section
from gpu.timing import seconds_per_call
from rogue_net.attention import ragged_attention
from rogue_net.batch.frames import Frames

MEANS, HEAD_WIDTHS, WIDTH = (4, 16, 64, 256), (16, 32, 64), 128
PRECISIONS = ("fp32", "tf32", "bf16")


def measure(section: Section) -> None:
    """Measure forward, and forward and backward, in microseconds."""
    tokens, seconds = (64, 0.005) if section.tiny else (2**17, 0.05)
    section.put(tokens=tokens, width=WIDTH)
    for head_width in HEAD_WIDTHS[:1] if section.tiny else HEAD_WIDTHS:
        for mean in MEANS[:2] if section.tiny else MEANS:
            frames = frames_of(mean, tokens)
            of_batch = Frames(offsets_of(lengths_of(frames), section.device))
            for backend, precision in kinds(section.device):
                settings = {"mean": mean, "head_width": head_width, "backend": backend, "precision": precision}
                figures = partial(
                    one, of_batch, lengths_of(frames), head_width, backend, precision, section.device, seconds
                )
                section.measured("attention", settings, figures)


def kinds(device: torch.device) -> Iterator[tuple[str, str]]:
    """Kernels and precisions."""
    for backend in ("none", "triton", "varlen"):
        for precision in PRECISIONS if device.type == "cuda" else PRECISIONS[:1]:
            yield backend, precision


def offsets_of(lengths: Any, device: torch.device) -> torch.Tensor:
    """(B + 1,) cumulative sequence lengths of the frames."""
    return torch.cat([torch.zeros(1, dtype=torch.int64), torch.as_tensor(lengths).cumsum(0)]).to(device)


def attend(backend: str, precision: str) -> Callable[..., torch.Tensor]:
    """`ragged_attention` of this backend and precision.

    Raises:
        ValueError: `ragged_attention` has no such precision.
    """
    chosen: dict[str, Any] = {"kernels": backend}
    if "precision" in inspect.signature(ragged_attention).parameters:
        chosen["precision"] = precision
    elif precision != "fp32":
        raise ValueError("ragged_attention has no precision to choose")
    return partial(ragged_attention, **chosen)


def one(
    frames: Frames, lengths: Any, head_width: int, backend: str, precision: str, device: torch.device, seconds: float
) -> dict[str, float]:
    """Measure one combination of settings."""
    function = attend(backend, precision)
    tokens = int(lengths.sum())
    shape = (tokens, WIDTH // head_width, head_width)
    qkv = torch.randn(tokens, 3, *shape[1:], device=device, requires_grad=True)
    gradient = torch.randn(shape, device=device)

    @torch.no_grad()
    def forward() -> None:
        function(qkv, frames)

    def both() -> None:
        torch.autograd.grad(function(qkv, frames), qkv, gradient)

    forward_seconds = seconds_per_call(forward, device, seconds)
    both_seconds = seconds_per_call(both, device, seconds)
    flops = attention_flops(lengths, WIDTH, 1)
    return {
        "forward_us": 1e6 * forward_seconds,
        "both_us": 1e6 * both_seconds,
        "forward_tokens_s": tokens / forward_seconds,
        "both_tokens_s": tokens / both_seconds,
        "forward_tflops": flops / forward_seconds / 1e12,
        "both_tflops": 3 * flops / both_seconds / 1e12,
    }
