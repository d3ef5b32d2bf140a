"""Finding out why a network's outputs are NaN or infinite."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from rogue_net.obs_batch import ObsBatch
from rogue_net.rogue_net import ActResult

NAMES = 3  # parameters that a message names


class NotFinite(ValueError):
    """A network's outputs are NaN or infinite. The message says whether the observations or parameters are."""


def check_finite(net: object, batch: ObsBatch, result: ActResult) -> None:
    """Check the values and log-probs of an act. Synchronises with the device.

    Args:
        net: acted; its parameters are looked at only to explain an error.
        batch: its input.
        result: its outputs.

    Raises:
        NotFinite: a value is NaN or infinite, or a log-prob is NaN.
    """
    log_probs = torch.cat([result.values[:0], *result.log_probs.values()])
    if math.isfinite(float(result.values.sum() + log_probs.sum())):
        return
    if not result.values.isfinite().all() or log_probs.isnan().any():
        raise NotFinite(f"the network's outputs are NaN or infinite: {_reason(net, batch)}")


def _reason(net: object, batch: ObsBatch) -> str:
    broken = [name for name, ragged in batch.features.items() if not ragged.values.isfinite().all()]
    if broken:
        return f"the observations hold such numbers, in features of {', '.join(broken)}"
    parameters = dict(net.named_parameters()) if isinstance(net, nn.Module) else {}
    names = [name for name, parameter in parameters.items() if not parameter.isfinite().all()]
    if names:
        more = f" and {len(names) - NAMES} more" if len(names) > NAMES else ""
        return f"so are its parameters {', '.join(names[:NAMES])}{more}"
    largest = max(parameters, key=lambda name: _size(parameters[name]), default=None)
    if largest is None:
        return "the observations are finite"
    return (
        f"the observations and its parameters are finite, and the largest parameter is {_size(parameters[largest]):.3g}, "
        f"in {largest}"
    )


def _size(parameter: Tensor) -> float:
    return float(parameter.detach().abs().max()) if parameter.numel() else 0.0
