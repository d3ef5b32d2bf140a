"""Memory of results that nobody holds any more is used again, and no other."""

from typing import Any

import numpy as np
import pytest
import torch

from entity_gym.compiled.slots import Recycler

FLOAT = np.dtype(np.float32)


@pytest.fixture
def recycler() -> Recycler:
    return Recycler([((10,), FLOAT), ((0, 3), FLOAT), ((7, 2), np.dtype(np.bool_))])


def array(recycler: Recycler) -> np.ndarray:
    return recycler.take().arrays[0][:10]


def address(held: Any) -> int:
    return int(np.asarray(held).__array_interface__["data"][0])


def test_memory_is_used_again_when_nobody_holds_it(recycler: Recycler) -> None:
    first = array(recycler)
    place = address(first)
    del first
    assert address(array(recycler)) == place


@pytest.mark.parametrize(
    "hold",
    [
        lambda a: a,
        lambda a: a[2:5],
        lambda a: a.reshape(2, 5).T,
        lambda a: memoryview(a),
        lambda a: torch.from_numpy(a)[3:].view(-1),
        lambda a: np.from_dlpack(a),
    ],
)
def test_whatever_is_made_from_it_holds_it(recycler: Recycler, hold: Any) -> None:
    first = array(recycler)
    place = address(first)
    held = hold(first)
    del first
    assert address(array(recycler)) != place
    del held
    assert place in {address(array(recycler)) for _ in range(2)}
