"""With everything on at once, a run that was stopped, or killed, and resumed is the run that was not, bit for bit.

Two worlds, both compiled. Snakes: self-play, a value network, normalized returns, evaluations against the run's own past,
boards of random size. Mines: normalized returns, a curriculum, other boards in evaluations. Both: schedules, `target_kl`, the
best checkpoints kept.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

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
    train,
)
from enn_ppo.checkpoints import Checkpoint, load_checkpoint, record_score, save_checkpoint, step_file
from enn_ppo.eval.evaluator import Evaluator
from enn_ppo.training.callbacks import Update
from tests.enn_ppo.evaluation_worlds import InLine
from tests.enn_ppo.rows import assert_same, end_of, rows_of, rows_without_times, same

pytest.importorskip("openskill")

pytestmark = pytest.mark.usefixtures("in_line")
REPOSITORY = Path(__file__).parents[4]
UPDATES = 6
FRAMES = 24  # of an update: 3 environments, 8 steps
TOTAL = UPDATES * FRAMES - 3  # the last update is shorter
BOTH: dict[str, Any] = {
    "rollout": RolloutConfig(num_envs=3, steps=8),
    "net": RogueNetConfig(d_model=16, n_layer=1, n_head=2),
    "optim": OptimConfig(lr="0@0 -> 0.02@0.3 cos 0.01@1", batch_size=12, epochs=3, weight_decay=0.01),
    "total_timesteps": TOTAL,
    "checkpoint_interval": 3,
    "keep_last": 2,
    "device": "cpu",
}
EVALUATION: dict[str, Any] = {"interval": 40, "episodes": 12, "num_envs": 3}


def snakes(run_dir: Path, **changes: Any) -> TrainConfig:
    settings: dict[str, Any] = {
        "env": EnvConfig(
            id="MultiSnake",
            kwargs={"board_size": 3, "num_players": 2, "max_snake_length": 3, "max_steps": 9},
            info={"board_size": [3, 4]},
        ),
        "value_net": RogueNetConfig(d_model=16, n_layer=0, n_head=2),
        "ppo": PPOConfig(normalize="returns", target_kl=0.005, ent_coef="0.1@0 step 0.01@0.5"),
        "self_play": SelfPlayConfig(enabled=True, snapshot_interval=FRAMES, pool_size=3),
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
    return TrainConfig(**(BOTH | dict(settings) | {"run_dir": str(run_dir)} | dict(changes)))


WORLDS = {"snakes": snakes, "mines": mines}
World = Callable[..., TrainConfig]


# --- What must be the same ---


def trained(run_dir: Path) -> list[dict[str, Any]]:
    """The rows of updates, without what an evaluation adds to the one that is logged when it ends."""
    rows = [row for row in rows_without_times(run_dir) if "reward" in row]
    return [{k: v for k, v in row.items() if not k.startswith("eval/")} for row in rows]


def evaluated(run_dir: Path) -> dict[int, dict[str, Any]]:
    """Step -> what was measured of its checkpoint."""
    rows = [row for row in rows_without_times(run_dir) if "eval/step" in row]
    found = {int(row["eval/step"]): {k: v for k, v in row.items() if k.startswith("eval/")} for row in rows}
    assert len(found) == len(rows), "evaluated twice"
    return found


def known_to_all(path: Path) -> dict[str, Any]:
    """Weights, optimizer, environments, opponents, scales, counters and score of a checkpoint, without what may differ: how long
    it took, which evaluations were still under way, and which snapshots' files wait until the last
    checkpoint that needs them is gone."""
    end = end_of(path, without=("seconds", "evaluations")) | {"score": load_checkpoint(path).score}
    if pool := end["trainer"]["self_play"]:
        end["trainer"]["self_play"] = {key: value for key, value in pool.items() if key != "gone"}
    return end


def assert_same_run(run_dir: Path, whole: Path) -> None:
    assert trained(run_dir) == trained(whole)
    assert evaluated(run_dir) == evaluated(whole)
    for name in ("checkpoints/latest", "checkpoints/best"):
        assert_same(known_to_all(run_dir / name), known_to_all(whole / name))
    if load_checkpoint(run_dir).trainer["self_play"]:
        assert (run_dir / "ratings.json").read_bytes() == (whole / "ratings.json").read_bytes()
        for step in load_checkpoint(run_dir).trainer["self_play"]["pool"]:
            assert same(*(load_checkpoint(step_file(home / "pool", step)).policy for home in (run_dir, whole)))


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


@pytest.fixture(scope="module", params=list(WORLDS))
def world(request: pytest.FixtureRequest) -> World:
    return WORLDS[request.param]


@pytest.fixture(scope="module")
def whole(world: World, tmp_path_factory: pytest.TempPathFactory, in_line: None) -> Path:
    """The uninterrupted run."""
    run_dir = tmp_path_factory.mktemp("whole")
    train(world(run_dir))
    return run_dir


def test_everything_is_on_in_the_run_that_the_others_must_equal(whole: Path, world: World) -> None:
    rows = trained(whole)
    assert [row["step"] for row in rows] == [*range(FRAMES, TOTAL, FRAMES), TOTAL]
    assert {row["epochs"] for row in rows} > {3}  # the divergence was met in some updates, and not in others
    assert sorted(evaluated(whole)) == [48, 96, 120, 141]
    results = {(row["eval/episode_length"], row["eval/episodic_reward"]) for row in evaluated(whole).values()}
    assert len(results) > 1
    if world is snakes:
        assert all(row["value_grad_norm"] is not None for row in rows)
        assert rows[-1]["self_play/pool_size"] == 3
        assert len({row["self_play/rating"] for row in rows}) > 1
    else:
        assert len({row["env_info/num_mines"] for row in rows}) > 2


def test_a_run_interrupted_at_every_update_equals_the_uninterrupted_one(
    world: World, whole: Path, tmp_path: Path
) -> None:
    config = world(tmp_path)
    stop_after(1, config)
    for _ in range(UPDATES - 2):  # after the last one, the run is done
        stop_after(1, resumed(config))
    train(resumed(config))
    assert_same_run(tmp_path, whole)


def test_evaluations_in_a_process_tell_of_an_interrupted_run_what_they_tell_in_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, process = (snakes(tmp_path / name) for name in ("line", "process"))
    train(line)
    monkeypatch.setattr("enn_ppo.training.start.Evaluator", Evaluator)
    stop_after(2, process)  # an evaluation was due with this update, and is done by the run that is resumed
    stop_after(2, resumed(process))
    train(resumed(process))
    assert_same_run(tmp_path / "process", tmp_path / "line")


# --- kill -9 ---

#: When a run is killed, and after how many steps: `begun`, the parameters of the next update were drawn; `logged`, the row of
#: an update was written; `saving`, the ratings and snapshots of a checkpoint were written, and it was not; `saved`, it was,
#: and not evaluated; `scored`, its evaluation was known, and not logged.
KILLS = [
    *(("logged", 24), ("begun", 24)),
    *(("logged", 48), ("saving", 48), ("saved", 48), ("begun", 48)),
    *(("scored", 48), ("logged", 72), ("saving", 72), ("saved", 72)),
    *(("logged", 96), ("saved", 96), ("scored", 96), ("logged", 120)),
    *(("saving", 141), ("saved", 141)),
]


class Killer(Callback):
    """Ends its process as `kill -9` does, when the run has trained `step` steps and the moment comes."""

    def __init__(self, moment: str, step: int) -> None:
        self.moment, self.step = moment, step

    def comes(self, moment: str, step: int) -> None:
        if (moment, step) == (self.moment, self.step):
            os.kill(os.getpid(), signal.SIGKILL)

    def env_info(self, progress: float, num_envs: int, rng: np.random.Generator) -> None:
        self.comes("begun", round(progress * TOTAL))

    def on_update(self, update: Update) -> None:
        self.comes("logged", update.step)

    def on_checkpoint(self, path: Path, step: int) -> None:
        self.comes("saved", step)

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """For the moments that no callback is told of."""

        def save(checkpoint: Checkpoint, *kept: Any) -> Path:
            self.comes("saving", checkpoint.step)
            return save_checkpoint(checkpoint, *kept)

        def score(directory: Path, step: int, value: float) -> None:
            record_score(directory, step, value)
            self.comes("scored", step)

        patch.setattr("enn_ppo.training.state.save_checkpoint", save)
        patch.setattr("enn_ppo.training.run.record_score", score)


def nursery(folder: Path) -> None:
    """Runs train here in processes of their own, forked from one in which everything is compiled: `Nursery` asks for them."""
    torch.set_num_threads(1)
    with contextlib.redirect_stdout(sys.stderr), pytest.MonkeyPatch.context() as patch:
        patch.setattr("enn_ppo.training.tracking.run_output.plot_learning_curve", lambda *paths: None)
        patch.setattr("enn_ppo.training.start.Evaluator", InLine)
        for name, world in WORLDS.items():
            train(world(folder / name, total_timesteps=FRAMES))
        for line in sys.stdin:
            config, moment, step = pickle.loads(bytes.fromhex(line))
            child = os.fork()
            if child == 0:
                killer = Killer(moment, step)
                killer.install(patch)
                train(config, callbacks=[killer])
                os._exit(0)
            _, status = os.waitpid(child, 0)
            os.write(1, f"{os.waitstatus_to_exitcode(status)}\n".encode())


class Nursery:
    """The process of `nursery`."""

    def __init__(self, folder: Path) -> None:
        program = f"import pathlib, {__name__} as here; here.nursery(pathlib.Path({str(folder)!r}))"
        self.process = subprocess.Popen(
            [sys.executable, "-c", program], cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def killed(self, config: TrainConfig, moment: str, step: int) -> bool:
        """Train in a process of its own, and tell whether it was killed."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(pickle.dumps((config, moment, step)).hex() + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline()) == -signal.SIGKILL


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    nursery = Nursery(tmp_path_factory.mktemp("nursery"))
    yield nursery
    nursery.process.communicate()


def test_a_run_killed_again_and_again_equals_the_uninterrupted_one(
    processes: Nursery, world: World, whole: Path, tmp_path: Path
) -> None:
    config = world(tmp_path)
    for moment, step in KILLS:
        assert processes.killed(config, moment, step)
        assert load_checkpoint(tmp_path).step <= step
        config = resumed(world(tmp_path))
    train(config)
    assert_same_run(tmp_path, whole)


# --- Budgets of seconds ---


def test_a_budget_of_seconds_is_kept_over_interruptions_and_the_time_between_them_does_not_count(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a clock by which every update takes one second, so that schedules by the clock are the same, too."""
    now = iter(range(10**6))
    clock = SimpleNamespace(perf_counter=lambda: float(next(now)))
    monkeypatch.setattr(importlib.import_module("enn_ppo.train"), "time", clock)
    monkeypatch.setattr("enn_ppo.training.run.PATIENCE", 1e9)  # no rollout ends early where the machine is slow
    budget: dict[str, Any] = {"max_train_seconds": 4.5, "total_timesteps": 10**6}
    whole, parts = (world(tmp_path / name, **budget) for name in ("whole", "parts"))
    train(whole)
    stop_after(1, parts)
    for _ in range(3):
        next(now)  # while nothing runs, time goes by
        stop_after(1, resumed(parts))
    train(resumed(parts))
    seconds = [row["seconds"] for row in rows_of(tmp_path / "parts") if "seconds" in row]
    assert seconds == [1.0, 2.0, 3.0, 4.0, 5.0]
    rates = [row["learning_rate"] for row in trained(tmp_path / "parts")]
    assert rates == pytest.approx(expected_rates([0, 1 / 4.5, 2 / 4.5, 3 / 4.5, 4 / 4.5]))
    assert_same_run(tmp_path / "parts", tmp_path / "whole")


def expected_rates(progress: Sequence[float]) -> list[float]:
    """Of the schedule `0@0 -> 0.02@0.3 cos 0.01@1`, after a warm-up of 30 steps."""
    rates = [0.02 * p / 0.3 if p < 0.3 else 0.01 + 0.01 * (1 + np.cos(np.pi * (p - 0.3) / 0.7)) / 2 for p in progress]
    return [rates[0] * FRAMES / 30, *rates[1:]]


def test_the_best_checkpoint_by_training_rewards_is_that_of_the_uninterrupted_run(tmp_path: Path) -> None:
    """Interruptions save more often, and none of what they save may be the best."""
    whole, parts = (
        mines(tmp_path / name, eval=TrainEvalConfig(), keep_last=1, total_timesteps=FRAMES * 7)
        for name in ("whole", "parts")
    )
    train(whole)
    stop_after(1, parts)
    for _ in range(5):
        stop_after(1, resumed(parts))
    train(resumed(parts))
    assert_same_run(tmp_path / "parts", tmp_path / "whole")
    kept = [{folder.name for folder in (tmp_path / name / "checkpoints").iterdir()} for name in ("whole", "parts")]
    assert kept[0] == kept[1]
