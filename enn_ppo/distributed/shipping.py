"""Rollouts and weights on their way between processes: NumPy arrays, which Ray's object store holds without copying them.

A process that gets them sees the store's own memory, which is read-only.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor

from enn_ppo.rollout import Rollout

#: A network's `state_dict` with arrays.
Weights = dict[str, NDArray[Any]]


class TensorAsArray(NamedTuple):
    """Stands where a tensor was."""

    values: NDArray[Any]


class Shipped(NamedTuple):
    """A rollout on its way."""

    rollout: Rollout  # with a `TensorAsArray` in place of every tensor
    num_bytes: int  # of its arrays


def ship(rollout: Rollout) -> Shipped:
    """Take a rollout apart. Arrays share the tensors' memory where these are on the CPU."""
    arrays: dict[int, TensorAsArray] = {}
    shipped = _replaced(rollout, Tensor, lambda tensor: TensorAsArray(tensor.detach().cpu().numpy()), arrays)
    num_bytes = sum(each.values.nbytes for each in arrays.values())
    return Shipped(shipped, num_bytes + rollout.elapsed_steps.nbytes + rollout.env_id.nbytes)


def unship(shipped: Shipped, device: torch.device) -> Rollout:
    """The rollout on `device`; on the CPU its tensors share the arrays' memory, and must not be written to."""
    rollout: Rollout = _replaced(shipped.rollout, TensorAsArray, lambda each: as_tensor(each.values).to(device), {})
    return rollout


def ship_weights(module: torch.nn.Module) -> Weights:
    """The parameters and statistics of a network."""
    return {name: tensor.detach().cpu().numpy() for name, tensor in module.state_dict().items()}


def load_weights(module: torch.nn.Module, weights: Mapping[str, NDArray[Any]]) -> None:
    """Give a network what `ship_weights` took from another like it."""
    module.load_state_dict({name: as_tensor(values) for name, values in weights.items()})


def as_tensor(values: NDArray[Any]) -> Tensor:
    """A tensor on the array's memory, which may be read-only: it must not be written to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(values)


def _replaced(value: Any, kind: type, convert: Callable[[Any], Any], done: dict[int, Any]) -> Any:
    """`value` with all of `kind` converted; what is there twice, such as offsets that actions share, is converted once.

    Looks into dataclasses, named tuples and dictionaries. Lists hold episodes, which have no tensors.
    """
    if isinstance(value, kind):
        if id(value) not in done:
            done[id(value)] = convert(value)
        return done[id(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return dataclasses.replace(value, **{k: _replaced(v, kind, convert, done) for k, v in fields.items()})
    if isinstance(value, tuple):
        return type(value)(*(_replaced(each, kind, convert, done) for each in value))
    if isinstance(value, dict):
        return {name: _replaced(each, kind, convert, done) for name, each in value.items()}
    return value
