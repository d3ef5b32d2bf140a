"""With `distributed.max_staleness=0` a run on Ray is the local run, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from enn_ppo import Callback, EnvConfig, OptimConfig, PPOConfig, RogueNetConfig, RolloutConfig, TrainConfig, train
from enn_ppo.checkpoints import load_checkpoint
from enn_ppo.training.callbacks import Update
from tests.enn_ppo.rows import assert_same_end
from tests.enn_ppo.training.on_ray.runs import learned_rows, on_ray, rows_of
from tests.enn_ppo.worlds import StopAfter, tiny_config

Weights = dict[str, torch.Tensor]


class Watch(Callback):
    """Keeps the policy of every update, and sets parameters that differ from environment to environment."""

    def __init__(self) -> None:
        self.policies: list[Weights] = []
        self.episodes: list[tuple[int, float]] = []

    def on_update(self, update: Update) -> None:
        self.policies.append({name: tensor.clone() for name, tensor in update.policy.state_dict().items()})

    def on_episode(self, episode: Any) -> None:
        self.episodes.append((episode.env_id, episode.reward))

    def env_info(self, progress: float, num_envs: int, rng: np.random.Generator) -> Mapping[str, Sequence[Any]]:
        return {"num_mines": rng.integers(1, 5, size=num_envs).tolist()}


def same_weights(one: Weights, other: Weights) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def rich(config: TrainConfig) -> TrainConfig:
    """With everything that remembers something from update to update."""
    board = {"width": 4, "height": 4, "num_robots": 2, "max_steps": 10}
    return replace(
        config,
        env=EnvConfig(id="MineSweeper", kwargs=board),
        ppo=PPOConfig(normalize="returns"),
        value_net=RogueNetConfig(d_model=8, n_layer=1, n_head=1),
    )


@pytest.mark.slow
@pytest.mark.usefixtures("ray_here")
@pytest.mark.parametrize(
    ("num_env_runners", "blocks", "local_block", "group_size"),
    [(1, {}, None, 1), (2, {"block": 1}, 1, 1), (2, {"pipeline": 2}, 1, 1), (2, {"block": 1}, 1, 2)],
    ids=[
        "one runner",
        "two runners of two blocks each",
        "two runners of two halves each",
        "two runners of a group each",
    ],
)
def test_metrics_weights_and_checkpoints_are_those_of_the_local_run(
    tmp_path: Path, num_env_runners: int, blocks: dict[str, int], local_block: int | None, group_size: int
) -> None:
    here, there = Watch(), Watch()
    sizes = {"num_envs": 4, "steps": 8, "group_size": group_size}
    rollouts = [RolloutConfig(**sizes, **each) for each in ({"block": local_block}, blocks)]
    advantages = "gae" if group_size == 1 else "group"

    def learned(config: TrainConfig) -> TrainConfig:
        config = rich(config)
        return replace(config, ppo=replace(config.ppo, advantages=advantages))

    local = train(learned(tiny_config(tmp_path / "local", rollout=rollouts[0], num_threads=1)), callbacks=[here])
    config = learned(on_ray(tmp_path / "ray", num_env_runners, {"rollout": rollouts[1]}))
    remote = train(config, callbacks=[there])

    assert len(rows_of(tmp_path / "ray")) == 5
    assert learned_rows(tmp_path / "ray") == learned_rows(tmp_path / "local")
    assert there.episodes == here.episodes and {env for env, _ in there.episodes} == {0, 1, 2, 3}
    assert len(there.policies) == 5 and not same_weights(there.policies[0], there.policies[1])
    assert all(map(same_weights, there.policies, here.policies))
    assert same_weights(remote.policy.state_dict(), local.policy.state_dict())
    assert_same_end(tmp_path / "ray", tmp_path / "local")
    for row in rows_of(tmp_path / "ray"):
        assert row["distributed/runners"] == num_env_runners
        assert row["distributed/rollouts_lost"] == row["distributed/staleness_max"] == 0


@pytest.mark.slow
@pytest.mark.usefixtures("ray_here")
def test_runners_without_blocks_have_the_first_gradients_of_the_local_run(tmp_path: Path) -> None:
    """Their batches are smaller, so that the last bits of what policies compute are others; what they draw is not."""
    rollout, optim = RolloutConfig(num_envs=10, steps=8), OptimConfig(batch_size=80, epochs=1)
    one_step = {"rollout": rollout, "optim": optim, "total_timesteps": 80}
    train(rich(tiny_config(tmp_path / "local", num_threads=1, **one_step)))
    train(rich(on_ray(tmp_path / "ray", 2, one_step)))
    local, ray = (average_gradient(tmp_path / run) for run in ("local", "ray"))
    assert local.norm() > 0
    assert (ray - local).norm() <= 1e-5 * local.norm()


def average_gradient(run_dir: Path) -> torch.Tensor:
    """Adam's moving average, which after one step is the gradient but for a factor."""
    state = load_checkpoint(run_dir).trainer["optimizer"]["state"]
    assert {float(each["step"]) for each in state.values()} == {1}
    return torch.cat([each["exp_avg"].flatten() for each in state.values()])


@pytest.mark.slow
@pytest.mark.usefixtures("ray_here")
def test_a_run_goes_on_exactly_from_here_to_ray_and_back(tmp_path: Path) -> None:
    rollout = RolloutConfig(num_envs=4, steps=8, block=2)
    whole = rich(tiny_config(tmp_path / "whole", rollout=rollout, num_threads=1))
    train(whole)
    parts = replace(whole, run_dir=str(tmp_path / "parts"))
    resumed = replace(parts, resume=str(tmp_path / "parts"))
    train(parts, callbacks=[StopAfter(64)])
    train(replace(resumed, distributed=on_ray(tmp_path).distributed), callbacks=[StopAfter(96)])
    train(resumed)
    assert [("distributed/runners" in row) for row in rows_of(tmp_path / "parts")] == [False, False, True, False, False]
    assert learned_rows(tmp_path / "parts") == learned_rows(tmp_path / "whole")
    assert_same_end(tmp_path / "parts", tmp_path / "whole")
