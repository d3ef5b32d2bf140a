"""With everything on at once, a run that was stopped, or killed, and resumed is the run that was not, bit for bit.

Two worlds, both compiled. Snakes: self-play, a value network, normalized rewards, evaluations against the run's own past,
boards of random size. Mines: normalized returns, a curriculum, other boards in evaluations. Both: schedules, `target_kl`, a
recording with logits, the best checkpoints kept.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import enn_ppo.run
import enn_ppo.state
from enn_ppo import (
    Callback,
    EnvConfig,
    Interrupted,
    OptimConfig,
    PPOConfig,
    RogueNetConfig,
    RolloutConfig,
    SelfPlayConfig,
    TrainConfig,
    TrainEvalConfig,
    ValueOptimConfig,
    train,
)
from enn_ppo.callbacks import Update
from enn_ppo.checkpoint import load_checkpoint
from enn_ppo.run_dir import METRICS

pytest.importorskip("openskill")
pytest.importorskip("pyarrow")

UPDATES = 8
FRAMES = 24  # of an update: 3 environments, 8 steps
BOTH: dict[str, Any] = {
    "rollout": RolloutConfig(num_envs=3, steps=8, freeze_normalization_after=4 * FRAMES),
    "net": RogueNetConfig(d_model=8, n_layer=1, n_head=2),
    "optim": OptimConfig(lr="0@0 -> 0.02@0.3 cos 0.001@1", batch_size=8, epochs=4, weight_decay=0.01, warmup_steps=30),
    "total_timesteps": UPDATES * FRAMES - 3,  # the last update is shorter
    "checkpoint_interval": 3,
    "keep_last": 2,
    "keep_best": 2,
    "record_logits": True,
    "device": "cpu",
}
EVALUATION: dict[str, Any] = {"interval": 40, "episodes": 6, "num_envs": 3, "process": False}


def snakes(run_dir: Path, **changes: Any) -> TrainConfig:
    settings: dict[str, Any] = {
        "env": EnvConfig(
            id="MultiSnake",
            kwargs={"board_size": 3, "num_players": 2, "max_snake_length": 3, "max_steps": 9},
            info={"board_size": [3, 4]},
        ),
        "value_net": RogueNetConfig(d_model=8, n_layer=0, n_head=2),
        "value_optim": ValueOptimConfig(lr=0.005),
        "ppo": PPOConfig(normalize="rewards", target_kl=0.005, ent_coef="0.1@0 step 0.01@0.5"),
        "self_play": SelfPlayConfig(
            enabled=True, snapshot_interval=FRAMES, pool_size=3, latest=0.2, sampling="prioritized"
        ),
        "eval": TrainEvalConfig(**EVALUATION, opponent="past"),
    }
    return _config(run_dir, settings, changes)


def mines(run_dir: Path, **changes: Any) -> TrainConfig:
    settings: dict[str, Any] = {
        "env": EnvConfig(
            id="MineSweeper",
            kwargs={"width": 4, "height": 4, "num_mines": 2, "max_steps": 9},
            info={"num_mines": {"low": 1, "high": "1@0 -> 4@0.7"}, "width": [3, 4]},
        ),
        "ppo": PPOConfig(normalize="returns", target_kl=0.005, gamma="0.9@0 -> 0.99@1"),
        "eval": TrainEvalConfig(**EVALUATION, env_kwargs={"width": 3}),
    }
    return _config(run_dir, settings, changes)


def _config(run_dir: Path, settings: Mapping[str, Any], changes: Mapping[str, Any]) -> TrainConfig:
    own = {"run_dir": str(run_dir), "record": str(run_dir / "samples.arrow")}
    return TrainConfig(**(BOTH | dict(settings) | own | dict(changes)))


WORLDS = {"snakes": snakes, "mines": mines}
World = Callable[..., TrainConfig]


# --- What must be the same ---


def rows_of(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / METRICS).read_text().splitlines()]


def without_times(row: Mapping[str, Any]) -> dict[str, Any]:
    times = ("seconds", "share_", "eval/seconds")
    return {k: v for k, v in row.items() if not k.startswith(times) and not k.endswith("_per_second")}


def trained(run_dir: Path) -> list[dict[str, Any]]:
    """The rows of updates, without what an evaluation adds to the one that is logged when it ends."""
    rows = [without_times(row) for row in rows_of(run_dir) if "seconds" in row]
    return [{k: v for k, v in row.items() if not k.startswith("eval/")} for row in rows]


def evaluated(run_dir: Path) -> dict[int, dict[str, Any]]:
    """Step -> what was measured of its checkpoint."""
    rows = [without_times(row) for row in rows_of(run_dir) if "eval/step" in row]
    found = {int(row["eval/step"]): {k: v for k, v in row.items() if k.startswith("eval/")} for row in rows}
    assert len(found) == len(rows), "evaluated twice"
    return found


def same(one: Any, other: Any) -> bool:
    """Bit for bit."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.tobytes() == other.tobytes() and one.shape == other.shape
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


def assert_same_checkpoint(one: Path, other: Path) -> None:
    """Weights, optimizer, environments, opponents, scales, counters and score; not the seconds that it took."""
    first, second = load_checkpoint(one), load_checkpoint(other)
    assert first.step == second.step
    assert first.score == second.score
    assert same(first.policy, second.policy)
    assert same(first.more_weights, second.more_weights)
    # where the recording lies differs between the runs; which evaluations were under way depends on the process
    left_out = {"seconds", "evaluations", "recorder"}
    for name in first.trainer.keys() | second.trainer.keys():
        if name not in left_out:
            assert same(first.trainer[name], second.trainer[name]), name
    for name, value in (first.trainer["recorder"] or {}).items():
        assert name == "path" or same(value, second.trainer["recorder"][name]), name


def assert_same_run(run_dir: Path, whole: Path) -> None:
    assert trained(run_dir) == trained(whole)
    assert evaluated(run_dir) == evaluated(whole)
    assert_same_checkpoint(run_dir / "checkpoints/latest", whole / "checkpoints/latest")
    assert_same_checkpoint(run_dir / "checkpoints/best", whole / "checkpoints/best")
    assert (run_dir / "samples.arrow").read_bytes() == (whole / "samples.arrow").read_bytes()
    assert pool_of(run_dir) == pool_of(whole)


def pool_of(run_dir: Path) -> dict[str, bytes]:
    """Ratings and snapshots."""
    files = [*run_dir.glob("ratings.json"), *run_dir.glob("pool/*")]
    return {file.name: file.read_bytes() for file in files}


# --- Stopping ---


class CtrlC(Callback):
    """Presses Ctrl-C after so many updates."""

    def __init__(self, updates: int) -> None:
        self.left = updates

    def on_update(self, update: Update) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGINT)


def resumed(config: TrainConfig) -> TrainConfig:
    return replace(config, resume=config.run_dir, run_dir=None)


def stop_after(updates: int, config: TrainConfig) -> None:
    with pytest.raises(Interrupted):
        train(config, callbacks=[CtrlC(updates)])


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("enn_ppo.run_output.plot_learning_curve", lambda *paths: None)  # takes longer than a tiny run
        yield


@pytest.fixture(scope="module", params=list(WORLDS))
def world(request: pytest.FixtureRequest) -> World:
    return WORLDS[request.param]


@pytest.fixture(scope="module")
def whole(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The uninterrupted run."""
    run_dir = tmp_path_factory.mktemp("whole")
    train(world(run_dir))
    return run_dir


def test_everything_is_on_in_the_run_that_the_others_must_equal(whole: Path, world: World) -> None:
    rows = trained(whole)
    assert [row["step"] for row in rows] == [*range(FRAMES, UPDATES * FRAMES, FRAMES), UPDATES * FRAMES - 3]
    assert {row["epochs"] for row in rows} > {4}  # the divergence was met in some updates, and not in others
    assert sorted(evaluated(whole)) == [48, 96, 120, 168, 189]
    assert len({row["eval/episodic_reward"] for row in evaluated(whole).values()}) > 1
    assert (whole / "samples.arrow").stat().st_size > 0
    if world is snakes:
        assert all(row["value_grad_norm"] > 0 for row in rows)
        assert rows[-1]["self_play/pool_size"] == 3
        assert len({row["self_play/rating"] for row in rows}) > 1
    else:
        assert len({row["env_info/num_mines"] for row in rows}) > 2


@pytest.mark.parametrize("updates", range(1, UPDATES + 1))
def test_a_run_interrupted_at_any_update_and_resumed_equals_the_uninterrupted_one(
    updates: int, world: World, whole: Path, tmp_path: Path
) -> None:
    config = world(tmp_path)
    stop_after(updates, config)
    assert load_checkpoint(tmp_path).step == min(updates * FRAMES, config.total_timesteps)
    train(resumed(config))
    assert_same_run(tmp_path, whole)


def test_a_run_interrupted_at_every_update_equals_the_uninterrupted_one(
    world: World, whole: Path, tmp_path: Path
) -> None:
    config = world(tmp_path)
    stop_after(1, config)
    for _ in range(UPDATES - 1):
        stop_after(1, resumed(config))
    train(resumed(config))
    assert_same_run(tmp_path, whole)
