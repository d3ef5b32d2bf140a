"""What cannot be shared by ranks, and a run of one rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from enn_ppo import OptimConfig, RolloutConfig, train
from enn_ppo.training.torchrun.joining import check_shares
from tests.enn_ppo.rows import rows_without_times
from tests.enn_ppo.worlds import tiny_config
from tests.system.enn_ppo.training.torchrun.on_ranks import DDP


def test_without_torchrun_a_sentence_says_how_to_start(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"processes that torchrun starts: torchrun --nproc_per_node=2 -m enn_ppo\.train"
    ):
        train(tiny_config(tmp_path / "a", distributed=DDP))
    assert not (tmp_path / "a").exists()


def test_torchrun_without_ddp_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    with pytest.raises(ValueError, match="torchrun has started 2 processes, which would each train the same"):
        train(tiny_config(tmp_path / "a"))


def test_one_rank_is_the_run_without_torchrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(tiny_config(tmp_path / "a"))
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    train(tiny_config(tmp_path / "b", distributed=DDP))
    assert rows_without_times(tmp_path / "a") == rows_without_times(tmp_path / "b")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rollout": RolloutConfig(num_envs=10)}, r"rollout\.num_envs=10 must be a multiple of 4: 4 ranks"),
        ({"rollout": RolloutConfig(num_envs=24, block=12)}, r"multiple of 48: 4 ranks .*rollout\.block=12"),
        ({"rollout": RolloutConfig(num_envs=8, num_processes=4)}, r"num_processes=4 is for each rank, .* its 2 env"),
        ({"rollout": RolloutConfig(num_envs=8), "optim": OptimConfig(batch_size=3)}, r"one for each of 4, got 3"),
    ],
)
def test_settings_that_ranks_cannot_share_are_refused(tmp_path: Path, changes: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_shares(tiny_config(tmp_path, **changes), 4)
