"""What cannot be shared by ranks, a run of one rank, and errors of collective calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from enn_ppo import OptimConfig, RolloutConfig, train
from enn_ppo.training.errors import PartLost
from enn_ppo.training.torchrun.torch_ranks import TorchRanks, join_ranks
from tests.enn_ppo.rows import rows_without_times
from tests.enn_ppo.training.on_ray.runs import on_ray
from tests.enn_ppo.worlds import tiny_config
from tests.system.enn_ppo.training.torchrun.on_ranks import DDP


@pytest.mark.parametrize(
    ("started", "changes", "message"),
    [
        ({}, {"distributed": DDP}, r"processes that torchrun starts: torchrun --nproc_per_node=2 -m enn_ppo\.train"),
        ({"WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}, {}, "torchrun has started 2 processes, which would each"),
    ],
)
def test_torchrun_and_ddp_need_each_other(
    started: dict[str, str], changes: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in started.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message):
        train(tiny_config(tmp_path / "a", **changes))
    assert not (tmp_path / "a").exists()


def test_one_rank_is_the_run_without_torchrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(tiny_config(tmp_path / "a"))
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    train(tiny_config(tmp_path / "b", distributed=DDP))
    assert rows_without_times(tmp_path / "a") == rows_without_times(tmp_path / "b")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rollout": RolloutConfig(num_envs=10)}, r"rollout\.num_envs=10 must be a multiple of the 4 ranks"),
        (
            {"rollout": RolloutConfig(num_envs=24, block=12)},
            r"each of 4 ranks of torchrun has 6 environments: .* multiple of 12 \(rollout\.block=12",
        ),
        (
            {"rollout": RolloutConfig(num_envs=8, num_processes=4)},
            r"4 ranks .*: rollout\.num_processes must be at most the 2 ",
        ),
        ({"rollout": RolloutConfig(num_envs=8), "optim": OptimConfig(batch_size=3)}, r"one for each of 4, got 3"),
    ],
)
def test_settings_that_ranks_cannot_share_are_refused(
    tmp_path: Path, changes: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message):
        join_ranks(tiny_config(tmp_path, **changes, distributed=DDP))


def test_what_runners_cannot_share_is_refused_before_ray_starts(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"each of 2 runners has 4 .* at most the 4 environments of a block"):
        on_ray(tmp_path, 2, {"rollout": RolloutConfig(num_envs=8, num_processes=8)})


@pytest.mark.parametrize(
    ("error", "is_of_another_rank"),
    [
        (RuntimeError("[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer"), True),
        (dist.DistBackendError("NCCL communicator was aborted on rank 1"), True),
        (dist.DistNetworkError("the client has failed"), True),
        (torch.OutOfMemoryError("CUDA out of memory"), False),
        (RuntimeError("tensors of different sizes"), False),
    ],
)
def test_a_connection_that_is_gone_is_another_rank_that_is_gone_and_other_errors_stay_what_they_are(
    error: Exception, is_of_another_rank: bool
) -> None:
    ranks = TorchRanks.__new__(TorchRanks)
    ranks.rank, ranks.size = 1, 2
    expected = (PartLost, "rank 1 of 2 has lost another rank") if is_of_another_rank else (type(error), str(error))
    with pytest.raises(expected[0], match=expected[1]) as raised, ranks._noticing_death():
        raise error
    assert error in (raised.value, raised.value.__cause__)
