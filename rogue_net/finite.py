"""Finding out why a network's outputs are NaN or infinite."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import nn

from entity_gym.batch.vec_obs import VecAction
from rogue_net.batch.obs_batch import ObsBatch
from rogue_net.rogue_net import ActResult

NAMES = 3  # parameters that a message names


class NotFinite(ValueError):
    """A network's outputs are NaN or infinite. The message says whether the observations or parameters are."""


def fetch_actions(net: object, batch: ObsBatch, result: ActResult) -> dict[str, VecAction]:
    """Fetch the actions as `ActResult.to_buffers` does, and check the values and log-probs that come in the same copy.

    Args:
        net: acted; its parameters are looked at only to explain an error.
        batch: its input.
        result: its outputs.

    Raises:
        NotFinite: a value is NaN or infinite, or a log-prob is NaN.
    """
    buffers, numbers = result.fetch()
    with np.errstate(over="ignore", invalid="ignore"):
        # finite only if all numbers are, and in a third of the time that it takes to look at each
        squares = sum(float(each.dot(each)) for each in numbers)
    if math.isfinite(squares):
        return buffers
    log_probs = torch.cat([result.values[:0], *(ragged.values for ragged in result.log_probs.values())])
    if not result.values.isfinite().all() or log_probs.isnan().any():
        raise NotFinite(f"the network's outputs are NaN or infinite: {_reason(net, batch)}")
    return buffers


def _reason(net: object, batch: ObsBatch) -> str:
    broken = [name for name, ragged in batch.features.items() if not ragged.values.isfinite().all()]
    if broken:
        return f"the observations hold such numbers, in features of {', '.join(broken)}"
    parameters = dict(net.named_parameters()) if isinstance(net, nn.Module) else {}
    names = [name for name, parameter in parameters.items() if not parameter.isfinite().all()]
    if names:
        more = f" and {len(names) - NAMES} more" if len(names) > NAMES else ""
        return f"so are its parameters {', '.join(names[:NAMES])}{more}"
    return "the observations and its parameters are finite, so parameters are too large"
