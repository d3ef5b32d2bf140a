"""Sending rollouts and weights between processes as NumPy arrays, which Ray's object store shares without copying.

The receiver's arrays are the store's memory, which is read-only.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, cast

import torch
from numpy.typing import NDArray
from torch import Tensor

from enn_ppo.rollout import Rollout

#: A network's `state_dict` with arrays in place of tensors.
Weights = dict[str, NDArray[Any]]


def ship(rollout: Rollout) -> Rollout:
    """A rollout with arrays in place of its tensors, which share the memory of CPU tensors."""
    return Rollout(rollout.frames.map(as_array), cast(Any, as_array(rollout.last_values)), rollout.stats)


def unship(arrays: Any, device: torch.device) -> Rollout:
    """Convert arrays to tensors on `device`; CPU tensors share the arrays' memory and must not be written to."""

    def there(values: Any) -> Tensor:
        return as_tensor(values).to(device)

    return Rollout(arrays.frames.map(there), there(arrays.last_values), arrays.stats)


def ship_weights(module: torch.nn.Module) -> Weights:
    """The `state_dict` of a network as arrays."""
    return {name: as_array(tensor) for name, tensor in module.state_dict().items()}


def load_weights(module: torch.nn.Module, weights: Mapping[str, NDArray[Any]]) -> None:
    """Load weights from `ship_weights` into a network of the same architecture."""
    module.load_state_dict({name: as_tensor(values) for name, values in weights.items()})


def as_array(tensor: Tensor) -> NDArray[Any]:
    """An array, which shares the memory of a CPU tensor."""
    return tensor.detach().cpu().numpy()


def as_tensor(values: NDArray[Any]) -> Tensor:
    """A tensor that shares the array's memory, which may be read-only: do not write to it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(values)
