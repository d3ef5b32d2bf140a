"""Training that is evaluated: it learns exactly what it would learn unevaluated, whatever becomes of the evaluations."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from enn_ppo import EnvConfig, Interrupted, TrainEvalConfig, train
from enn_ppo.checkpoints import load_checkpoint
from tests.enn_ppo.evaluation_worlds import Careless
from tests.enn_ppo.rows import rows_of
from tests.enn_ppo.worlds import Clock, PressCtrlC, tiny_config

pytestmark = pytest.mark.usefixtures("in_line")
TOTAL = 160  # five updates
DUE = [64, 128, 160]  # of an evaluation every 50 steps: what passes a multiple of 50, and the end


def evaluation(**settings: Any) -> TrainEvalConfig:
    return TrainEvalConfig(**{"interval": 50, "episodes": 8, "num_envs": 8, **settings})


def run(run_dir: Path, env: Any, **changes: Any) -> None:
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    callbacks = changes.pop("callbacks", ())
    train(
        tiny_config(run_dir, **{"env": EnvConfig(), "total_timesteps": TOTAL, **changes}), env=env, callbacks=callbacks
    )


def weights(run_dir: Path) -> dict[str, torch.Tensor]:
    """Weights of the last policy, with the statistics that normalize its inputs."""
    return dict(load_checkpoint(run_dir).policy)


def evaluations(run_dir: Path) -> dict[int, dict[str, Any]]:
    """Step -> what was measured, without how long it took."""
    found = {}
    for row in rows_of(run_dir):
        if "eval/step" in row:
            assert row["step"] >= row["eval/step"] and row["eval/step"] not in found
            found[int(row["eval/step"])] = {
                name: value for name, value in row.items() if name.startswith("eval/") and name != "eval/seconds"
            }
    return found


def test_evaluating_changes_nothing_about_what_is_learned(tmp_path: Path) -> None:
    run(tmp_path / "without", Careless)  # draws from everybody's random numbers
    run(tmp_path / "with", Careless, eval=evaluation())
    without, with_ = weights(tmp_path / "without"), weights(tmp_path / "with")
    assert without.keys() == with_.keys()
    for name, tensor in without.items():
        torch.testing.assert_close(with_[name], tensor, rtol=0, atol=0)
    assert sorted(evaluations(tmp_path / "with")) == DUE
    assert not evaluations(tmp_path / "without")


def test_a_branch_into_another_directory_leaves_what_was_to_be_evaluated_to_its_own_run(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        run(tmp_path / "run", Clock, eval=evaluation(), callbacks=[PressCtrlC(128)])
    assert load_checkpoint(tmp_path / "run").trainer["evaluations"] == [128]
    run(tmp_path / "branch", Clock, eval=evaluation(), resume=str(tmp_path / "run"), total_timesteps=128)
    assert load_checkpoint(tmp_path / "branch").trainer["evaluations"] == []


def test_what_was_evaluated_at_the_end_is_not_evaluated_again_when_the_run_goes_on(tmp_path: Path) -> None:
    run(tmp_path, Clock, eval=evaluation())
    run(tmp_path, Clock, eval=evaluation(), resume=str(tmp_path), total_timesteps=TOTAL + 32)
    assert sorted(evaluations(tmp_path)) == [*DUE, TOTAL + 32]
