"""Policies in worlds of other interfaces are filmed, and played by hand."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from enn_ppo import evaluate, train  # noqa: E402
from enn_ppo.play import main as play  # noqa: E402
from enn_ppo.settings.command_line.cli import run_eval, run_train  # noqa: E402
from tests.enn_ppo.test_bridged_worlds import TINY
from tests.entity_gym.play.served import Client, play_as


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_pictures_are_filmed_of_worlds_that_are_made_for_them(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pygame")
    env = ["env=gymnasium", "env.id=CartPole-v1", "env.kwargs.max_episode_steps=3"]
    assert run_train(train, [*TINY, *env]) == 0
    film = ["checkpoint=a", "episodes=1", "num_envs=1", "video=1", "render=a.gif"]
    assert run_eval(evaluate, film) == 2
    assert "in evaluation with env_kwargs.render_mode=" in capsys.readouterr().err
    assert run_eval(evaluate, [*film, "env_kwargs.render_mode=rgb_array"]) == 0
    assert Path("a.gif").stat().st_size


PROGRAM = Path(__file__).parents[2] / "entity_gym/bridges/remote/counting_program.py"


WORLDS = {
    "CartPole-v1": ["env=gymnasium", "env.id=CartPole-v1"],
    "Walk": ["env=dm_env", "env.id=tests.entity_gym.bridges.test_dm_in:Walk"],
    "herd_v0": ["env=pettingzoo", "env.id=tests.entity_gym.bridges.herds:Herd"],
    "Counting": ["env=program", f"env.kwargs.command=['{sys.executable}','{PROGRAM}']"],
}


@pytest.mark.parametrize("name", WORLDS)
def test_a_person_plays_with_advice_in_worlds_of_every_interface_and_back(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if name == "Walk":
        pytest.importorskip("dm_env")
    assert run_train(train, [*TINY, *WORLDS[name]]) == 0
    capsys.readouterr()
    seen = []

    def person(client: Client) -> None:
        for _ in range(2):
            _, first = client.post("restart")
            (view,) = first["tail"][-1]["views"]
            advised = {action: decision["advised"] for action, decision in view["actions"].items()}
            status, second = client.post("act", {"actions": advised})
            assert (status, second["steps"]) == (200, 2)
            assert client.post("undo") == (200, first)
            seen.append((first, second))
        client.press_ctrl_c()

    for _ in range(2):
        assert play_as(person, lambda: play(["a", "--seed", "3", "--greedy"]), monkeypatch) == 130
        assert capsys.readouterr().err == ""
    assert all(each == seen[0] for each in seen), "the seed says what happens"
