"""A run goes on on another device as it would have on its own. Against the CPU itself this shows that the test is right."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from enn_ppo import (
    OptimConfig,
    PPOConfig,
    RogueNetConfig,
    RolloutConfig,
    SelfPlayConfig,
    TrainConfig,
    TrainEvalConfig,
    train,
)
from enn_ppo.checkpoints import Checkpoint, load_checkpoint
from enn_ppo.checkpoints.policy import load_policy
from enn_ppo.settings.config import EnvConfig
from enn_ppo.training.tracking.logger import read_metrics
from tests.enn_ppo.forged import sealed
from tests.enn_ppo.players_worlds import SNAKES
from tests.enn_ppo.worlds import tiny_config
from tests.rogue_net.devices import ON_DEVICES

NET = RogueNetConfig(d_model=16, n_layer=1, backend="reference")
OPTIONS: dict[str, dict[str, Any]] = {
    "a value network": {"value_net": NET},
    "returns normalized": {"ppo": PPOConfig(normalize="returns")},
    "rewards normalized": {"ppo": PPOConfig(normalize="rewards")},
    "micro-batches": {"optim": OptimConfig(batch_size=16, micro_batch_size=5, epochs=2)},
    "dropout": {"net": RogueNetConfig(d_model=16, n_layer=1, backend="reference", residual_dropout=0.1)},
    "self-play": {
        "env": EnvConfig(id="MultiSnake", kwargs=SNAKES.values),
        "self_play": SelfPlayConfig(enabled=True, snapshot_interval=64, pool_size=3),
    },
    "evaluation in line": {"eval": TrainEvalConfig(interval=100, episodes=4, num_envs=4, process=False)},
}

STEPS = 128  # of an update


def config(run_dir: Path, updates: int, device: str, resume: Path | None = None) -> TrainConfig:
    return TrainConfig(
        rollout=RolloutConfig(num_envs=16, steps=8),
        optim=OptimConfig(batch_size=64, epochs=2, lr=1e-3, anneal_lr=False),
        net=RogueNetConfig(backend="reference"),
        total_timesteps=updates * STEPS,
        device=device,
        run_dir=str(run_dir),
        resume=resume and str(resume),
    )


def run(folder: Path, first: str, then: str) -> Checkpoint:
    """Two updates on one device, and a third, resumed, on another: what was saved in the end."""
    train(config(folder, 2, first))
    train(config(folder, 3, then, resume=folder))
    return load_checkpoint(folder)


def moments(checkpoint: Checkpoint) -> list[torch.Tensor]:
    """The optimizer's, parameter by parameter."""
    states = checkpoint.trainer["optimizer"]["state"].values()
    return [state[name] for state in states for name in ("exp_avg", "exp_avg_sq")]


@ON_DEVICES
def test_a_run_resumed_on_another_device_goes_on_as_it_would_have(device: str, tmp_path: Path) -> None:
    here = run(tmp_path / "here", "cpu", "cpu")
    switches = dict.fromkeys([("cpu", device), (device, "cpu"), (device, device)])  # on the CPU all the same
    for number, (first, then) in enumerate(switches):
        there = run(tmp_path / str(number), first, then)
        assert there.step == here.step == 3 * STEPS
        assert there.policy.keys() == here.policy.keys()
        for name, weight in here.policy.items():
            torch.testing.assert_close(there.policy[name], weight, atol=1e-4, rtol=1e-4)
        for ours, theirs in zip(moments(there), moments(here), strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-2)


@ON_DEVICES
def test_a_checkpoint_holds_the_same_bits_wherever_it_is_read(device: str, tmp_path: Path) -> None:
    trained = train(config(tmp_path / "run", 2, device))
    saved = load_checkpoint(tmp_path / "run")
    for name, weight in trained.policy.state_dict().items():
        assert weight.device.type == device
        assert torch.equal(saved.policy[name], weight.cpu()), name
    resumed = train(config(tmp_path / "run", 2, "cpu", resume=tmp_path / "run"))  # nothing is left to train
    for name, weight in resumed.policy.state_dict().items():
        assert torch.equal(weight, trained.policy.state_dict()[name].cpu()), name


@ON_DEVICES
@pytest.mark.parametrize("options", OPTIONS.values(), ids=list(OPTIONS))
def test_every_option_of_training_works_there(device: str, options: dict[str, Any], tmp_path: Path) -> None:
    done = train(tiny_config(tmp_path / "run", **({"net": NET, "device": device} | options)))
    assert done.step == 160 and done.metrics is not None
    assert all(math.isfinite(done.metrics[name] or 0) for name in ("policy_loss", "value_loss", "entropy", "grad_norm"))
    assert next(done.policy.parameters()).device.type == device


@pytest.mark.gpu
def test_a_process_evaluates_while_training_goes_on_on_cuda(tmp_path: Path) -> None:
    evaluation = TrainEvalConfig(interval=100, episodes=4, num_envs=4, process=True)
    train(tiny_config(tmp_path / "run", net=NET, device="cuda", eval=evaluation))
    steps = [row["eval/step"] for row in read_metrics(tmp_path / "run/metrics.jsonl") if "eval/step" in row]
    assert steps[-1] == 160  # the last policy is always evaluated


def test_what_was_trained_in_numbers_of_a_gpu_is_played_on_the_cpu_in_fp32_and_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trained = train(config(tmp_path / "run", 1, "cpu"))
    path = load_checkpoint(tmp_path / "run").path
    settings = path / "config.yaml"
    settings.write_text(settings.read_text().replace("precision: fp32", "precision: tf32"))
    sealed(path)
    policy = load_policy(load_checkpoint(path), torch.device("cpu"))
    assert policy.config.precision == "fp32"
    assert "played in fp32: net.precision=tf32 cannot be: it is for device=cuda" in caplog.text
    for own, weight in zip(policy.parameters(), trained.policy.parameters(), strict=True):
        assert torch.equal(own, weight)
    with pytest.raises(ValueError, match="net.precision=tf32 cannot be: it is for device=cuda"):
        train(replace(config(tmp_path / "other", 1, "cpu"), net=replace(NET, precision="tf32")))
