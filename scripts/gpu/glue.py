"""Section `glue`: operations between attention and matrix products, eager and with `torch.compile`.

The gain of compiling shows whether compiling, or kernels of our own, are worth having.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from gpu.results import Section
from gpu.timing import seconds_per_call

WIDTHS, CHOICES = (32, 64, 128, 256), 8
PRECISIONS = ("fp32", "bf16")

#: A function to time, and the tensors with gradients.
Part = tuple[Callable[[], Tensor], Sequence[Tensor]]


def measure(section: Section) -> None:
    """Measure forward, and forward and backward, in microseconds."""
    tokens = 64 if section.tiny else 2**17
    section.put(tokens=tokens)
    for width in WIDTHS[:1] if section.tiny else WIDTHS:
        for name in PARTS:
            for precision in PRECISIONS if section.device.type == "cuda" else PRECISIONS[:1]:
                settings = {"width": width, "part": name, "precision": precision}
                section.measured("glue", settings, partial(one, section, name, width, tokens, precision))


def one(section: Section, name: str, width: int, tokens: int, precision: str) -> dict[str, float]:
    """Measure one case: `forward_us` and `both_us`, eager and compiled."""
    torch.manual_seed(0)
    make = PARTS[name]
    # a smoke test (`tiny`) does without the compiler
    backend = "eager" if section.tiny else "inductor"
    found: dict[str, float] = {}
    function, inputs = make(width, tokens, section.device)
    for how, variant in (("", function), ("compiled_", torch.compile(function, backend=backend))):
        found |= {how + key: figure for key, figure in timed(variant, inputs, section, precision).items()}
    return found


def timed(
    function: Callable[[], Tensor], inputs: Sequence[Tensor], section: Section, precision: str
) -> dict[str, float]:
    """Microseconds of a call."""
    device, seconds = section.device, 0.005 if section.tiny else 0.05
    gradient = torch.randn_like(function())

    def call() -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16", cache_enabled=False):
            return function()

    @torch.no_grad()
    def forward() -> None:
        call()

    def both() -> None:
        torch.autograd.grad(call(), inputs, gradient)

    return {
        "forward_us": 1e6 * seconds_per_call(forward, device, seconds),
        "both_us": 1e6 * seconds_per_call(both, device, seconds),
    }


def residual_and_norm(width: int, tokens: int, device: torch.device) -> Part:
    """The operations after attention: LayerNorm of a sum."""
    norm, stream, added = nn.LayerNorm(width).to(device), rows(tokens, width, device), rows(tokens, width, device)
    return lambda: norm(stream + added), [stream, added, *norm.parameters()]


def mlp(width: int, tokens: int, device: torch.device) -> Part:
    """LayerNorm, two linear layers with GELU between them, and the residual sum."""
    layers = nn.Sequential(
        nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
    ).to(device)  # fmt: skip
    stream = rows(tokens, width, device)
    return lambda: stream + layers(stream), [stream, *layers.parameters()]


def categorical(width: int, tokens: int, device: torch.device) -> Part:
    """A head's logits, log-probs and entropies."""
    weight, actors = rows(CHOICES, width, device), rows(tokens, width, device)
    chosen = torch.zeros(tokens, 1, dtype=torch.int64, device=device)

    def head() -> Tensor:
        logits = functional.log_softmax((actors @ weight.t()).float(), dim=1)
        return logits.gather(1, chosen)[:, 0] - (logits.exp() * logits).sum(1)

    return head, [weight, actors]


def rows(count: int, width: int, device: torch.device) -> Tensor:
    """(count, width) numbers with a gradient."""
    return torch.randn(count, width, device=device, requires_grad=True)


PARTS: dict[str, Callable[[int, int, torch.device], Any]] = {
    "residual and norm": residual_and_norm,
    "mlp": mlp,
    "categorical head": categorical,
}
