"""Policies that select sets, on Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from enn_ppo import EnvConfig, OptimConfig, RolloutConfig, train
from enn_ppo.settings.config import DistributedConfig
from tests.enn_ppo.rows import assert_same_end, rows_of
from tests.enn_ppo.training.on_ray.runs import learned_rows
from tests.enn_ppo.worlds import tiny_config

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_here")]


def config(run_dir: Path, world: str, **changes: Any) -> Any:
    settings = {"num_threads": 1, "total_timesteps": 96, "rollout": RolloutConfig(num_envs=4, steps=8)}
    return tiny_config(run_dir, env=EnvConfig(id=f"tests.set_worlds:{world}"), **(settings | changes))


@pytest.mark.parametrize("world", ["Market", "Stall"])
def test_a_run_of_two_runners_is_the_local_one(world: str, tmp_path: Path) -> None:
    train(config(tmp_path / "local", world, rollout=RolloutConfig(num_envs=4, steps=8, block=2)))
    train(config(tmp_path / "ray", world, distributed=DistributedConfig(mode="ray", num_env_runners=2)))
    assert learned_rows(tmp_path / "ray") == learned_rows(tmp_path / "local")
    assert_same_end(tmp_path / "ray", tmp_path / "local")


def test_v_trace_weighs_the_sets_of_stale_rollouts(tmp_path: Path) -> None:
    """Steps that are too small to change the policy: the log-probs that V-trace computes again are those of the rollout."""
    run = config(
        tmp_path / "a",
        "Stall",
        optim=OptimConfig(batch_size=16, epochs=1, lr=1e-30, weight_decay=0.0),
        distributed=DistributedConfig(mode="ray", num_env_runners=2, max_staleness=2),
        total_timesteps=640,
    )
    train(run)
    rows = rows_of(tmp_path / "a")
    assert any(row["distributed/staleness_max"] for row in rows)
    assert max(abs(row["approx_kl"]) for row in rows) < 1e-8
