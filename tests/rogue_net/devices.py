"""What tests of several devices share: where they run, and how everything gets there."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar, get_args

import pytest
import torch
from torch import Tensor

from rogue_net.config import Backend

T = TypeVar("T")

#: The CPU against the CPU shows that a test is right; CUDA against the CPU is what it is for.
ON_DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
#: The same with every backend that there may be on CUDA.
ON_BACKENDS = pytest.mark.parametrize(
    ("device", "backend"),
    [
        ("cpu", "reference"),
        *(pytest.param("cuda", name, marks=pytest.mark.gpu) for name in get_args(Backend)),
    ],
)


def moved(value: T, device: str | torch.device) -> T:
    """The same with every tensor in it on `device`, and nothing that it remembered of them."""
    return _moved(value, torch.device(device))  # type: ignore[no-any-return]


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_moved(each, device) for each in value))
    if isinstance(value, Mapping):
        return {name: _moved(each, device) for name, each in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {each.name: _moved(getattr(value, each.name), device) for each in dataclasses.fields(value)}
        return type(value)(**fields)
    return value


def skip_if_refused(backend: str, error: ValueError) -> None:
    """Skip what a backend says that it cannot do; the reference can do all, and `auto` finds what can."""
    if backend in ("reference", "auto") or "cannot be" not in str(error):
        raise error
    pytest.skip(str(error))
