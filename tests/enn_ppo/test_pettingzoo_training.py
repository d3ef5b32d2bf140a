"""Training in PettingZoo's environments through the command line, as a team and group against group."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gymnasium")

from enn_ppo import evaluate, train  # noqa: E402
from enn_ppo.settings.command_line.cli import run_eval, run_train  # noqa: E402

HERD = (
    "env=pettingzoo",
    "env.id=tests.entity_gym.bridges.herds:Herd",
    "net.d_model=16",
    "net.n_layer=1",
    "rollout.num_envs=16",
    "rollout.steps=16",
    "optim.batch_size=128",
    "optim.epochs=4",
    "optim.lr=0.005",
    "ppo.gamma=0.9",
    "ppo.ent_coef=0.01",
    "device=cpu",
    "run_dir=herd",
)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("enn_ppo.training.tracking.run_output.plot_learning_curve", lambda *paths: None)


def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path("herd/metrics.jsonl").read_text().splitlines()]


def test_a_team_of_agents_that_come_and_go_learns_what_is_best_for_all() -> None:
    assert run_train(train, [*HERD, "total_timesteps=2048"]) == 0
    first, last = rows()[0], rows()[-1]
    # Seven meals of a sheep in each episode, 5, 6 or 7 of which 7 is the best; the wolf pays 7 in all, whatever it does.
    assert first["episodic_reward"] < 7 * 6.5 - 7
    assert last["episodic_reward"] > 7 * 6.8 - 7
    assert last["episode/score.wolf"] == -7
    assert last["episodes_truncated"] == last["episodes"] == 64


def test_groups_that_play_against_each_other_learn_by_self_play_and_are_paid_for_themselves() -> None:
    assert run_train(train, [*HERD, "self_play.enabled=true", "env.kwargs.length=2", "total_timesteps=512"]) == 0
    for row in rows():
        # In half of the environments the learner has the sheep, who do better than the wolf whatever they do.
        assert row["episode/win_rate"] == 0.5
        assert (7.5 - 1.5) < row["episodic_reward"] < (10.5 - 1.5)  # the mean of 15 to 21 and of -3
    assert run_eval(evaluate, ["checkpoint=herd", "episodes=8", "opponent=random", "output=result.json"]) == 0
    assert json.loads(Path("result.json").read_text())["win_rate"]["mean"] == 0.5


def test_a_policy_of_players_that_oppose_each_other_draws_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_train(train, [*HERD, "total_timesteps=2048"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (
        lines.count(
            "one policy plays for all, and learns from the sum of their rewards, but sheep wins while wolf loses: if they play "
            "against each other, train with self_play.enabled=true"
        )
        == 1
    )
    assert run_train(train, [*HERD, "total_timesteps=2048", "self_play.enabled=true", "overwrite=true"]) == 0
    assert "one policy plays for all" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["env.kwargs.size=3"], "the arguments {'size': 3} do not fit tests.entity_gym.bridges.herds:Herd"),
        (["env.kwargs.groups={all: ['*']}"], "are both in the group 'all', and have different observation spaces"),
        (["env.id=tests.entity_gym.bridges.herds:Hird"], "has no class or function 'Hird'"),
    ],
)
def test_what_cannot_be_is_said_before_anything_starts(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_train(train, [*HERD, *arguments]) != 0
    assert message in capsys.readouterr().err
    assert not Path("herd").exists()
