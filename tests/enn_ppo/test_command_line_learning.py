"""Options of learning through the command line, each in a whole run with the real trainer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from enn_ppo import evaluate, train
from enn_ppo.checkpoints import load_checkpoint
from enn_ppo.settings.command_line.cli import run_eval, run_train
from enn_ppo.training.recording.reading import read_episodes, read_frames

SMALL = (
    "rollout.num_envs=4",
    "rollout.steps=8",
    "net.d_model=16",
    "net.n_layer=1",
    "optim.batch_size=32",
    "optim.epochs=2",
    "device=cpu",
    "total_timesteps=160",
)
COPYCAT = (*SMALL, "env=custom", "env.id=tests.enn_ppo.worlds:Copycat")
MINES = (
    *SMALL,
    "env=custom",
    "env.id=tests.entity_gym.envs.minesweeper_python:PythonMineSweeper",
    *(f"env.kwargs.{name}" for name in ("width=4", "height=4", "num_mines=2", "max_steps=10")),
)
DUEL = (*SMALL, "env=custom", "env.id=tests.enn_ppo.evaluation_worlds:Duel")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "enn_ppo.training.tracking.run_output.plot_learning_curve", lambda *paths: None
    )  # takes longer than a tiny run


def run(*arguments: str) -> list[dict[str, Any]]:
    """Train, and return the rows of metrics."""
    assert run_train(train, list(arguments)) == 0
    (run_dir,) = [argument.partition("=")[2] for argument in arguments if argument.startswith(("run_dir=", "resume="))]
    return [json.loads(line) for line in (Path(run_dir) / "metrics.jsonl").read_text().splitlines()]


def policy(run_dir: str) -> dict[str, torch.Tensor]:
    return load_checkpoint(Path(run_dir)).policy


def test_a_run_ends_when_its_seconds_are_used_up() -> None:
    rows = run(*COPYCAT, "total_timesteps=1e9", "max_train_seconds=0.5", "run_dir=a")
    assert load_checkpoint(Path("a")).step == rows[-1]["step"] == 32 * len(rows)
    used = [0.0, *(row["seconds"] for row in rows)]  # before each update, and after the last
    assert all(seconds < 0.5 for seconds in used[:-1]) and used[-1] >= 0.5
    assert [row["learning_rate"] for row in rows] == pytest.approx([0.002 * (1 - s / 0.5) for s in used[:-1]])


def test_a_divergence_that_is_met_ends_the_epochs_of_an_update() -> None:
    settings = (*COPYCAT, "optim.epochs=8", "optim.batch_size=8", "optim.lr=0.01")
    assert {row["epochs"] for row in run(*settings, "run_dir=a")} == {8}
    limited = run(*settings, "ppo.target_kl=0.01", "run_dir=b")
    assert min(row["epochs"] for row in limited) < 8


def test_micro_batches_of_three_sizes_and_none_learn_the_same() -> None:
    expected = run(*COPYCAT, "run_dir=whole")
    for size in (1, 7, 16):
        rows = run(*COPYCAT, f"optim.micro_batch_size={size}", f"run_dir=micro_{size}")
        for row, wanted in zip(rows, expected, strict=True):
            for name in ("policy_loss", "value_loss", "entropy", "grad_norm", "episodic_reward"):
                assert row[name] == pytest.approx(wanted[name], rel=1e-2, abs=1e-4), (size, name)
        for name, weight in policy("whole").items():
            torch.testing.assert_close(policy(f"micro_{size}")[name], weight, atol=1e-4, rtol=1e-2)


def test_a_network_of_its_own_for_the_value_learns_resumes_and_is_left_out_of_an_evaluation(
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = (*COPYCAT, "value_net=default", "value_net.d_model=8", "value_net.n_layer=0", "value_optim.lr=0.01")
    rows = run(*settings, "run_dir=a")
    assert all(row["value_grad_norm"] > 0 for row in rows)
    checkpoint = load_checkpoint(Path("a"))
    assert checkpoint.config["value_net"]["d_model"] == 8
    assert checkpoint.more_weights["value_net"].keys() == policy("a").keys() - {
        name for name in policy("a") if name.startswith("transformer.")
    }
    assert len(run("resume=a", "total_timesteps=224")) == 7
    assert "other settings: total_timesteps 160 -> 224\n" in capsys.readouterr().err
    assert run_eval(evaluate, ["checkpoint=a", "episodes=10", "device=cpu"]) == 0


def test_a_run_that_is_resumed_equals_the_run_that_was_not_stopped() -> None:
    constant = ("optim.anneal_lr=false", "ppo.anneal_entropy=false")
    features = ("ppo.normalize=rewards", "value_net=default", "optim.warmup_steps=128")
    run(*MINES, *constant, *features, "run_dir=whole")
    run(*MINES, *constant, *features, "run_dir=parts", "total_timesteps=96")
    run("resume=parts", "total_timesteps=160")
    assert all(torch.equal(weight, policy("parts")[name]) for name, weight in policy("whole").items())


def test_a_policy_is_evaluated_against_an_opponent_during_training_and_afterwards(
    capsys: pytest.CaptureFixture[str],
) -> None:
    evaluation = ("eval.interval=64", "eval.episodes=20", "eval.opponent=random", "eval.num_envs=4")
    rows = run(*DUEL, *evaluation, "eval.process=false", "run_dir=a")
    evaluated = [row for row in rows if "eval/win_rate" in row]
    assert [row["eval/step"] for row in evaluated] == [64, 128, 160]
    assert all(0 <= row["eval/win_rate"] <= 1 and row["eval/win_rate_ci95"] > 0 for row in evaluated)
    capsys.readouterr()
    assert run_eval(evaluate, ["checkpoint=a", "opponent=a/checkpoints/latest", "episodes=20", "num_envs=4"]) == 0
    assert "win_rate" in capsys.readouterr().out


def test_what_is_played_while_training_is_recorded() -> None:
    rows = run(*COPYCAT, "record=samples.arrow", "record_logits=true", "run_dir=a")
    assert sum(len(frames) for frames in read_frames("samples.arrow")) == 160
    assert all(frames.logits for frames in read_frames("samples.arrow"))
    episodes = list(read_episodes("samples.arrow"))
    assert len(episodes) == sum(row["episodes"] for row in rows) == 160  # of one step each
    rewards = sum(row["episodic_reward"] * row["episodes"] for row in rows)
    assert sum(episode.reward for episode in episodes) == pytest.approx(rewards)
