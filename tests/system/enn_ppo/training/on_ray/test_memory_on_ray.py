"""Policies that remember, on Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from enn_ppo import OptimConfig, PPOConfig, RolloutConfig, train
from enn_ppo.settings.config import DistributedConfig
from tests.enn_ppo.memory_worlds import net, remembering
from tests.enn_ppo.rows import assert_same_end, rows_of
from tests.enn_ppo.training.on_ray.runs import learned_rows

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_here")]
TWO_RUNNERS: dict[str, Any] = {"mode": "ray", "num_env_runners": 2}


def test_a_run_of_two_runners_with_a_teacher_that_remembers_is_the_local_one(tmp_path: Path) -> None:
    train(remembering(tmp_path / "teacher", net=net("both"), total_timesteps=32))
    changes: dict[str, Any] = {
        "net": net("both"),
        "ppo": PPOConfig(teacher=str(tmp_path / "teacher")),
        "total_timesteps": 120,
        "num_threads": 1,
    }
    local = RolloutConfig(num_envs=4, steps=6, block=2)  # each rollout ends in the middle of an episode
    train(remembering(tmp_path / "local", rollout=local, **changes))
    changes["rollout"] = RolloutConfig(num_envs=4, steps=6)
    train(remembering(tmp_path / "ray", distributed=DistributedConfig(**TWO_RUNNERS), **changes))
    assert (
        learned_rows(tmp_path / "ray") == learned_rows(tmp_path / "local") and len(learned_rows(tmp_path / "ray")) == 5
    )
    assert_same_end(tmp_path / "ray", tmp_path / "local")


def test_stale_rollouts_are_learned_from_with_what_was_remembered_in_them(tmp_path: Path) -> None:
    """Steps that are too small to change the policy: log-probs that are computed again are those of the rollout."""
    config = remembering(
        tmp_path / "a",
        optim=OptimConfig(batch_size=16, epochs=1, lr=1e-30, weight_decay=0.0),
        distributed=DistributedConfig(**TWO_RUNNERS, max_staleness=2),
        total_timesteps=640,
    )
    train(config)
    rows = rows_of(tmp_path / "a")
    assert any(row["distributed/staleness_max"] for row in rows)
    assert max(abs(row["approx_kl"]) for row in rows) < 1e-8


def test_a_teacher_that_remembers_would_miss_rollouts_out_of_step(tmp_path: Path) -> None:
    train(remembering(tmp_path / "teacher", total_timesteps=32))
    with pytest.raises(ValueError, match="has a memory, and must see all rollouts.*distributed.max_staleness=0, got 2"):
        train(
            remembering(
                tmp_path / "a",
                ppo=PPOConfig(teacher=str(tmp_path / "teacher")),
                distributed=DistributedConfig(**TWO_RUNNERS, max_staleness=2),
            )
        )
