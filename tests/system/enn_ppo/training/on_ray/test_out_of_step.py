"""Without `distributed.sync` runners go on while the learner learns; and what runners do first and last."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from enn_ppo import EnvConfig, OptimConfig, RolloutConfig, train
from enn_ppo.train import TrainResult
from tests.enn_ppo.rows import documented_metrics
from tests.enn_ppo.training.on_ray.runs import on_ray, rows_of
from tests.enn_ppo.worlds import Copycat, tiny_config

pytestmark = pytest.mark.slow


class Done(NamedTuple):
    result: TrainResult
    rows: list[dict[str, Any]]


@pytest.fixture(scope="module")
def initial(tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    """A local run that others begin with the policy of."""
    run_dir = tmp_path_factory.mktemp("initial") / "a"
    return train(tiny_config(run_dir, env=EnvConfig(), num_threads=1), env=Copycat)


@pytest.fixture(scope="module")
def done(initial: TrainResult, tmp_path_factory: pytest.TempPathFactory, ray_here: None) -> Done:
    """A run of two runners with everything but sync, whose steps are too small to change a policy."""
    run_dir = tmp_path_factory.mktemp("out_of_step") / "a"
    changes = {
        "env": EnvConfig(),
        "total_timesteps": 960,
        "optim": OptimConfig(batch_size=16, epochs=1, lr=1e-30, weight_decay=0.0),
        "rollout": RolloutConfig(num_envs=4, steps=8, freeze_normalization_after=0),
    }
    first_and_last = {"initial": str(initial.run_dir), "final_episodes": 7}
    config = on_ray(run_dir, 2, changes, sync=False, max_staleness=2, min_samples=48, **first_and_last)
    return Done(train(config, env=Copycat), rows_of(run_dir))


def test_rollouts_are_stale_but_not_more_than_allowed(done: Done) -> None:
    stale = [row["distributed/staleness_max"] for row in done.rows[:-1]]
    assert max(stale) <= 2 and any(stale)
    assert all(0 <= row["distributed/staleness"] <= row["distributed/staleness_max"] for row in done.rows[:-1])


def test_every_metric_of_a_run_on_ray_has_a_meaning_and_every_such_name_is_written(done: Done) -> None:
    names = set(documented_metrics()["Ray"])
    written = {metric for row in done.rows for metric in row if metric.startswith(("distributed/", "final/"))}
    assert {name for name in names if "<" not in name} - written == set()
    assert {metric for metric in written - names if not metric.startswith("final/")} == set()


def test_no_update_has_fewer_frames_than_asked_for_and_none_counts_twice(done: Done) -> None:
    updates = done.rows[:-1]
    assert min(row["frames"] for row in updates) >= 48
    assert [row["step"] for row in updates] == [
        sum(row["frames"] for row in updates[: n + 1]) for n in range(len(updates))
    ]
    assert updates[-1]["step"] >= 960
    assert sum(row["distributed/rollouts_lost"] for row in updates) == 0


def test_training_begins_with_the_policy_that_a_runner_has_brought(done: Done, initial: TrainResult) -> None:
    before, after = initial.policy.state_dict(), done.result.policy.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in after)


def test_runners_play_the_episodes_asked_for_before_they_check_out(done: Done) -> None:
    *updates, final = done.rows
    assert all("final/episodes" not in row for row in updates)
    assert final["step"] == updates[-1]["step"] and final["final/episodes"] == 7
    assert final["final/episode_length"] == 1.0 and 0 <= final["final/episodic_reward"] <= 1
    assert done.result.metrics is not None and done.result.metrics["final/episodes"] == 7


@pytest.mark.usefixtures("ray_here")
def test_what_is_stale_is_dropped_and_counted_where_it_is_not_to_be_corrected(tmp_path: Path) -> None:
    changes = {"env": EnvConfig(), "total_timesteps": 320}
    train(on_ray(tmp_path / "a", 2, changes, sync=False, stale="drop", min_samples=16), env=Copycat)
    rows = rows_of(tmp_path / "a")
    assert [row["distributed/staleness_max"] for row in rows] == [0] * len(rows)
    assert [row["distributed/runners"] for row in rows] == [row["frames"] / 16 for row in rows]
    assert sum(row["distributed/rollouts_stale"] for row in rows) > 0
