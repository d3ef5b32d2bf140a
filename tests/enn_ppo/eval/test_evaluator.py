"""Evaluation during training: its numbers are those of the command, and nothing that goes wrong ends the training."""

from __future__ import annotations

import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from enn_ppo import EnvConfig, EvalConfig, TrainEvalConfig, evaluate, train
from enn_ppo.checkpoints import step_file
from enn_ppo.eval.evaluator import EvalRow, Evaluator, check_evaluation, is_due
from entity_gym.pools.source import EnvFactory
from tests.enn_ppo.evaluation_worlds import Fused, InLine, brightness
from tests.enn_ppo.worlds import Clock, Copycat, tiny_config

STEPS = (32, 64)


def trained(run_dir: Path) -> Path:
    """A run of any clock with checkpoints after `STEPS`; returns the folder of checkpoints."""
    train(tiny_config(run_dir, env=EnvConfig(), total_timesteps=STEPS[-1], checkpoint_interval=1), env=Clock)
    return run_dir / "checkpoints"


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("run"))


class Told(list[str]):
    """Lines that were said."""

    def __call__(self, text: str) -> None:
        self.append(text)


def make(env: EnvFactory, told: Told, run_dir: Path, process: bool = True, **settings: Any) -> Evaluator:
    config = TrainEvalConfig(**{"interval": 32, "episodes": 20, "num_envs": 8, **settings})
    return (Evaluator if process else InLine)(config, env, run_dir, told)


def measured(row: EvalRow | None) -> dict[str, float]:
    """Everything but how long it took."""
    assert row is not None
    return {name: value for name, value in row.metrics.items() if name != "eval/seconds"}


def test_an_evaluation_is_due_whenever_a_multiple_of_the_interval_is_passed_and_at_the_end() -> None:
    passed = [(0, 96), (96, 100), (100, 196), (196, 204), (204, 410)]
    assert [is_due(100, before, after) for before, after in passed] == [False, True, False, True, True]
    assert is_due(100, 410, 411, last=True)
    assert not is_due(None, 0, 10**9) and not is_due(None, 0, 1, last=True)


def test_a_row_has_the_numbers_and_intervals_of_the_command(checkpoints: Path, tmp_path: Path) -> None:
    checkpoint = step_file(checkpoints, 32)
    evaluator = make(Clock, Told(), tmp_path, process=False, seed=7, video=2)
    evaluator.submit(checkpoint, 32)
    row = evaluator.poll()
    result = evaluate(EvalConfig(checkpoint=str(checkpoint), episodes=20, num_envs=8, seed=7), env=Clock)
    expected: dict[str, float] = {"eval/step": 32}
    for name, estimate in result.estimates.items():
        assert estimate.ci95 is not None
        expected |= {f"eval/{name}": estimate.mean, f"eval/{name}_ci95": estimate.ci95}
    assert measured(row) == expected
    assert set(expected) >= {"eval/episodic_reward", "eval/episode_length_ci95", "eval/was_long"}
    # the film, whose brightness is 20 per step, shows the first two episodes
    lengths = [next(each.length for each in result.episodes if each.env_id == env) for env in (0, 1)]
    shown = [value for length in lengths for value in range(0, 20 * length + 1, 20)]
    assert brightness(tmp_path / "videos/step_000000000032.gif") == pytest.approx(shown, abs=4)


def test_an_evaluation_changes_neither_the_checkpoint_nor_the_number_of_threads(
    checkpoints: Path, tmp_path: Path
) -> None:
    checkpoint = step_file(checkpoints, 32)

    def contents() -> dict[str, bytes]:
        return {file.name: file.read_bytes() for file in checkpoints.iterdir()}

    before, threads = contents(), torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        evaluator = make(Clock, Told(), tmp_path, process=False)
        evaluator.submit(checkpoint, 32)
        assert torch.get_num_threads() == threads + 1
    finally:
        torch.set_num_threads(threads)
    assert contents() == before


def assert_whatever_is_raised_is_said(process: bool, checkpoints: Path, tmp_path: Path) -> None:
    """In a line, and the next evaluation runs."""
    told = Told()
    deleted = step_file(tmp_path / "deleted", 32)
    shutil.copytree(checkpoints, deleted.parent)
    evaluator = make(Fused, told, tmp_path, process=process, env_kwargs={"broken_by": str(tmp_path / "breaker")})
    (tmp_path / "breaker").write_text("")
    evaluator.submit(step_file(checkpoints, 32), 32)
    assert evaluator.wait() is None
    assert len(told) == 1 and told[0].startswith("the evaluation of step 32 failed: ValueError: the fuse is blown ")
    assert "raised by Fused (environment 0) in act()" in told[0]

    (tmp_path / "breaker").unlink()
    shutil.rmtree(deleted.parent)
    evaluator.submit(deleted, 32)
    assert evaluator.wait() is None
    assert told[1].startswith("the evaluation of step 32 failed: CheckpointError: no checkpoint ")

    evaluator.submit(step_file(checkpoints, 64), 64)
    assert measured(evaluator.wait())["eval/step"] == 64
    evaluator.close()
    assert len(told) == 2


def test_whatever_is_raised_is_said_in_a_line_and_the_next_evaluation_runs(checkpoints: Path, tmp_path: Path) -> None:
    assert_whatever_is_raised_is_said(False, checkpoints, tmp_path)


# --- Before training starts ---


def check(config: TrainEvalConfig, env: EnvFactory) -> None:
    made = env()
    check_evaluation(config, EnvConfig(), env, made.obs_space(), made.action_space())


def test_mistakes_are_found_before_training_starts() -> None:
    config = TrainEvalConfig(interval=100)
    check(config, Clock)
    check(replace(config, video=2), Clock)
    with pytest.raises(ValueError, match=r"a film was asked for, but Copycat implements neither render\(\)"):
        check(replace(config, video=2), Copycat)
    with pytest.raises(ValueError, match="Clock has no parameter 'size'; allowed: 'short', 'long'") as caught:
        check(replace(config, env_kwargs={"size": 3}), Clock)
    assert caught.value.__notes__ == ["(with eval.env_kwargs={'size': 3})"]
    for opponent in ("random", "past", "some/run"):
        with pytest.raises(
            ValueError, match=rf"opponent={opponent} needs .* several players, and .*Clock does not say which player"
        ):
            check(replace(config, opponent=opponent), Clock)
    check(replace(config, interval=None, video=1), Copycat)  # nothing will be evaluated


def test_an_environment_that_cannot_be_sent_to_a_process_cannot_be_evaluated_while_training() -> None:
    lock = threading.Lock()

    def make_clock() -> Clock:
        with lock:
            return Clock()

    with pytest.raises(
        ValueError, match=r"eval\.interval=100 evaluates in another process, and .* cannot be sent to a"
    ):
        check(TrainEvalConfig(interval=100), make_clock)
    check(TrainEvalConfig(), make_clock)
