"""Predicting targets: the error by hand, what it teaches, and runs with it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from enn_ppo import EnvConfig, EvalConfig, OptimConfig, PPOConfig, evaluate, train
from enn_ppo.ppo import Advantages, Samples
from enn_ppo.settings.learning import PPOSettings
from enn_ppo.training.learning.auxiliary import TargetLoss
from enn_ppo.training.tracking.logger import read_metrics
from tests.enn_ppo.recordings import collector_of, net_for
from tests.enn_ppo.worlds import Copycat, tiny_config
from tests.entity_gym.pools.test_targets import Hidden

SETTINGS = PPOSettings.at(PPOConfig(target_coef=0.5))


def test_the_error_by_hand() -> None:
    net = net_for(Hidden())
    rollout = collector_of(Hidden, 2, net=net).collect(5)
    batch = Samples.of(rollout, Advantages(*[rollout.by_step("values")] * 2)).weighed(SETTINGS)
    assert batch.targets is not None
    assert torch.equal(batch.targets["steps"][:, 0], rollout.frames.obs.features["Door"].values[:, 0])
    new = net.evaluate(batch.obs, batch.actions)
    by_hand = sum(
        0.5 * (new.regressions[name] - target).square().mean(1).mean() for name, target in batch.targets.items()
    )
    loss, stats = TargetLoss()(new, batch, SETTINGS)
    torch.testing.assert_close(stats["target_loss"], by_hand)
    torch.testing.assert_close(loss, 0.5 * by_hand)


def test_a_run_learns_to_predict_what_can_be_seen_and_is_evaluated(tmp_path: Path) -> None:
    changes = {
        "env": EnvConfig(id="tests.entity_gym.pools.test_targets:Hidden"),
        "ppo": PPOConfig(target_coef=1.0),
        "optim": OptimConfig(lr="0.01@0 -> 0@1", batch_size=32, epochs=4),
        "total_timesteps": 640,
    }
    train(tiny_config(tmp_path / "whole", **changes))
    errors = [row["target_loss"] for row in read_metrics(tmp_path / "whole" / "metrics.jsonl")]
    assert errors[-1] < 0.6 * errors[0]  # the step can be seen, and the mean of the hidden number learned
    assert evaluate(EvalConfig(checkpoint=str(tmp_path / "whole"), episodes=4)).episodes


def test_a_world_without_targets_has_nothing_to_predict(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"ppo\.target_coef=0\.5: the environment declares no targets to predict"):
        train(tiny_config(tmp_path / "a", env=EnvConfig(), ppo=PPOConfig(target_coef=0.5)), env=Copycat)
