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


def test_a_block_has_the_arrays_that_were_asked_for(recycler: Recycler) -> None:
    block = recycler.take()
    assert [(each.shape, each.dtype) for each in block.arrays] == [
        ((10,), FLOAT),
        ((0, 3), FLOAT),
        ((7, 2), np.dtype(np.bool_)),
    ]
    assert [address(each) - block.address for each in block.arrays if each.size] == [
        recycler.starts[0],
        recycler.starts[2],
    ]
    block.arrays[0][:] = 1
    block.arrays[2][:] = False
    assert block.arrays[0].tolist() == [1] * 10  # they do not overlap


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


def test_any_number_of_results_can_be_kept(recycler: Recycler) -> None:
    kept = [array(recycler) for _ in range(30)]
    for k, each in enumerate(kept):
        each[:] = k
    assert len({address(each) for each in kept}) == 30
    assert [each.tolist() for each in kept] == [[float(k)] * 10 for k in range(30)]
