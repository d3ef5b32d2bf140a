"""Training in PettingZoo's environments through the command line, as a team and group against group."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("gymnasium")

from enn_ppo import evaluate, train  # noqa: E402
from enn_ppo.checkpoints import load_checkpoint  # noqa: E402
from enn_ppo.settings.command_line.cli import run_eval, run_train  # noqa: E402
from tests.enn_ppo.rows import rows_of

HERD = (
    "env=pettingzoo",
    "env.id=tests.entity_gym.bridges.herds:Herd",
    "net.d_model=16",
    "net.n_layer=1",
    "rollout.num_envs=16",
    "rollout.steps=16",
    "optim.batch_size=128",
    "optim.epochs=4",
    "optim.lr=0.005@0 -> 0@1",
    "ppo.gamma=0.9",
    "ppo.ent_coef=0.01@0 -> 0@1",
    "device=cpu",
    "run_dir=herd",
)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_team_of_agents_that_come_and_go_learns_what_is_best_for_all() -> None:
    assert run_train(train, [*HERD, "total_timesteps=2048"]) == 0
    first, last = rows_of(Path("herd"))[0], rows_of(Path("herd"))[-1]
    # Seven meals of a sheep in each episode, 5, 6 or 7 of which 7 is the best; the wolf pays 7 in all, whatever it does.
    assert first["episodic_reward"] < 7 * 6.5 - 7
    assert last["episodic_reward"] > 7 * 6.8 - 7
    assert last["episode/score.wolf"] == -7
    assert last["episodes_truncated"] == last["episodes"] == 64


def test_groups_that_play_against_each_other_learn_by_self_play_and_are_paid_for_themselves() -> None:
    assert run_train(train, [*HERD, "self_play.enabled=true", "env.kwargs.length=2", "total_timesteps=512"]) == 0
    for row in rows_of(Path("herd")):
        # In half of the environments the learner has the sheep, who do better than the wolf whatever they do.
        assert row["episode/win_rate"] == 0.5
        assert (7.5 - 1.5) < row["episodic_reward"] < (10.5 - 1.5)  # the mean of 15 to 21 and of -3
    assert run_eval(evaluate, ["checkpoint=herd", "episodes=8", "opponent=random", "output=result.json"]) == 0
    assert json.loads(Path("result.json").read_text())["win_rate"]["mean"] == 0.5


NIM = [argument for argument in HERD if "herd" not in argument.lower()]
NIM += ["env.id=tests.entity_gym.bridges.test_pettingzoo_turns:Nim", "run_dir=nim", "total_timesteps=2048"]


def test_a_turn_based_game_is_learned_by_self_play_of_sides_that_share_everything() -> None:
    assert run_train(train, [*NIM, "self_play.enabled=true", "env.kwargs.heap=5", "seed=3"]) == 0
    assert run_eval(evaluate, ["checkpoint=nim", "episodes=64", "opponent=random", "output=result.json"]) == 0
    assert json.loads(Path("result.json").read_text())["win_rate"]["mean"] > 0.6
    policy = load_checkpoint(Path("nim")).policy
    assert not [name for name in policy if "player_0" in name or "player.0" in name], "each side has weights of its own"


@pytest.mark.parametrize("view", ["null", "connect_four"])
def test_connect_four_is_trained_and_played_by_its_id(view: str) -> None:
    pytest.importorskip("pettingzoo")
    pytest.importorskip("pygame")
    run = [each for each in NIM if "nim" not in each.lower()]
    run += ["env.id=connect_four_v3", f"env.view={view}", "run_dir=connect", "total_timesteps=512"]
    assert run_train(train, [*run, "self_play.enabled=true"]) == 0
    assert run_eval(evaluate, ["checkpoint=connect", "episodes=4", "opponent=random", "output=result.json"]) == 0
    assert json.loads(Path("result.json").read_text())["win_rate"]["n"] == 4


def test_predators_that_hunt_prey_with_one_policy_draw_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("mpe2")
    run = [each for each in NIM if "nim" not in each.lower()]
    run += ["env.id=mpe2:simple_tag_v3", "env.kwargs.num_obstacles=0", "run_dir=tag", "total_timesteps=4096"]
    assert run_train(train, [*run, "rollout.steps=64"]) == 0
    assert (
        "but adversary wins while agent loses: if they play against each other, train with self_play"
        in capsys.readouterr().out
    )
    assert run_train(train, [*run, "self_play.enabled=true", "overwrite=true", "total_timesteps=512"]) == 0
