"""Memory of results that nobody holds any more is used again, and no other."""

from typing import Any

import numpy as np
import pytest
import torch

from entity_gym.compiled.memory import Recycler

FLOAT = np.dtype(np.float32)


def array(recycler: Recycler, rows: int = 10) -> np.ndarray:
    return np.ndarray((rows,), FLOAT, recycler.take(4 * rows).memory)


def address(held: Any) -> int:
    return int(np.asarray(held).__array_interface__["data"][0])


def test_a_block_knows_its_address_and_is_as_large_as_asked() -> None:
    block = Recycler().take(64)
    assert address(block.memory) == block.address and len(block.memory) >= 64 and block.memory.dtype == np.uint8


def test_memory_is_used_again_when_nobody_holds_it() -> None:
    recycler = Recycler()
    first = array(recycler)
    place = address(first)
    del first
    assert address(array(recycler)) == place


@pytest.mark.parametrize(
    "hold",
    [
        lambda a: a,
        lambda a: a[2:5],
        lambda a: a[:0],
        lambda a: a.reshape(2, 5).T,
        lambda a: a.view(np.uint8),
        lambda a: memoryview(a),
        torch.from_numpy,
        lambda a: torch.from_numpy(a)[3:].view(-1),
        lambda a: np.from_dlpack(a),
    ],
)
def test_whatever_is_made_from_it_holds_it(hold: Any) -> None:
    recycler = Recycler()
    first = array(recycler)
    place = address(first)
    held = hold(first)
    del first
    assert address(array(recycler)) != place
    del held
    assert place in {address(array(recycler)) for _ in range(2)}


def test_larger_memory_is_made_where_it_does_not_suffice() -> None:
    recycler = Recycler()
    array(recycler, 10)
    larger = array(recycler, 1000)
    larger[:] = 3
    assert len(larger) == 1000


def test_any_number_of_results_can_be_kept() -> None:
    recycler = Recycler()
    kept = [array(recycler) for _ in range(30)]
    for k, each in enumerate(kept):
        each[:] = k
    assert len({address(each) for each in kept}) == 30
    assert [each.tolist() for each in kept] == [[float(k)] * 10 for k in range(30)]


def test_no_memory_at_all_can_be_asked_for() -> None:
    assert array(Recycler(), 0).shape == (0,)
