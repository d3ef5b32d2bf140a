"""Errors of a collective: another rank that is gone is not a fault of this one's own."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from enn_ppo.training.errors import RankDied
from enn_ppo.training.torchrun.torch_ranks import TorchRanks


def ranks() -> TorchRanks:
    made = TorchRanks.__new__(TorchRanks)
    made.rank, made.size = 1, 2
    return made


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1"),
        dist.DistBackendError("NCCL communicator was aborted on rank 1"),
        dist.DistNetworkError("the client socket has failed"),
    ],
)
def test_a_connection_that_is_gone_is_another_rank_that_is_gone(error: Exception) -> None:
    with pytest.raises(RankDied, match="rank 1 of 2 has lost another rank") as raised, ranks()._noticing_death():
        raise error
    assert raised.value.__cause__ is error


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("tensors of different sizes")]
)
def test_another_error_stays_what_it_is(error: RuntimeError) -> None:
    with pytest.raises(type(error), match=str(error)), ranks()._noticing_death():
        raise error
