"""A policy that was trained in a precision of GPUs, on the CPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from enn_ppo import RogueNetConfig, train
from enn_ppo.checkpoints import load_checkpoint
from enn_ppo.checkpoints.policy import load_net
from tests.enn_ppo.forged import with_settings
from tests.enn_ppo.worlds import tiny_config

NET = RogueNetConfig(d_model=16, n_layer=1, backend="reference")


def test_what_was_trained_in_numbers_of_a_gpu_is_played_on_the_cpu_in_fp32_and_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trained = train(tiny_config(tmp_path / "run", net=NET))
    path = load_checkpoint(tmp_path / "run").path
    with_settings(path, "net", precision="tf32")
    policy = load_net(load_checkpoint(path))
    assert policy.config.precision == "fp32"
    assert "played in fp32: net.precision=tf32 cannot be: it is for device=cuda" in caplog.text
    for own, weight in zip(policy.parameters(), trained.policy.parameters(), strict=True):
        assert torch.equal(own, weight)
    with pytest.raises(ValueError, match="net.precision=tf32 cannot be: it is for device=cuda"):
        train(tiny_config(tmp_path / "other", net=replace(NET, precision="tf32")))
