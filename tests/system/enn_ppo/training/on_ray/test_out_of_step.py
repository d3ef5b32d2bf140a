"""With `distributed.max_staleness` above 0 runners go on while the learner learns."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from enn_ppo import EnvConfig, OptimConfig, RolloutConfig, train
from enn_ppo.train import TrainResult
from tests.enn_ppo.rows import documented_metrics
from tests.enn_ppo.training.on_ray.runs import on_ray, rows_of
from tests.enn_ppo.worlds import Copycat

pytestmark = pytest.mark.slow


class Done(NamedTuple):
    result: TrainResult
    rows: list[dict[str, Any]]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, ray_here: None) -> Done:
    """A run of two runners with everything out of step, whose steps are too small to change a policy."""
    run_dir = tmp_path_factory.mktemp("out_of_step") / "a"
    changes = {
        "env": EnvConfig(),
        "total_timesteps": 960,
        "optim": OptimConfig(batch_size=16, epochs=1, lr=1e-30, weight_decay=0.0),
        "rollout": RolloutConfig(num_envs=4, steps=8),
    }
    config = on_ray(run_dir, 2, changes, max_staleness=2)
    return Done(train(config, env=Copycat), rows_of(run_dir))


def test_rollouts_are_stale_but_not_more_than_allowed(done: Done) -> None:
    stale = [row["distributed/staleness_max"] for row in done.rows]
    assert max(stale) <= 2 and any(stale)
    assert all(0 <= row["distributed/staleness"] <= row["distributed/staleness_max"] for row in done.rows)


def test_every_metric_of_a_run_on_ray_has_a_meaning_and_every_such_name_is_written(done: Done) -> None:
    names = set(documented_metrics()["Ray"])
    written = {metric for row in done.rows for metric in row if metric.startswith("distributed/")}
    assert {name for name in names if "<" not in name} - written == set()
    assert written <= names


def test_no_update_has_fewer_frames_than_asked_for_and_none_counts_twice(done: Done) -> None:
    updates = done.rows
    assert min(row["frames"] for row in updates) >= 32
    assert [row["step"] for row in updates] == [
        sum(row["frames"] for row in updates[: n + 1]) for n in range(len(updates))
    ]
    assert updates[-1]["step"] >= 960
    assert sum(row["distributed/rollouts_lost"] for row in updates) == 0
