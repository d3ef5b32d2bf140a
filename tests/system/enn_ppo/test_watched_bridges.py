"""Policies, also in worlds of other interfaces, are filmed, and played beside by hand."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from enn_ppo import EnvConfig, evaluate, load_policy, train
from enn_ppo.play import main as play
from enn_ppo.settings.command_line.cli import run_eval, run_train
from tests.chromium import CHROMIUM, NO_CHROMIUM, Browser
from tests.enn_ppo.test_bridged_worlds import TINY
from tests.enn_ppo.worlds import tiny_config
from tests.entity_gym.check import broken
from tests.entity_gym.play.served import Client, Command, play_as


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_pictures_are_filmed_of_worlds_that_are_made_for_them(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pygame")
    env = ["env=gymnasium", "env.id=CartPole-v1", "env.kwargs.max_episode_steps=3"]
    assert run_train(train, [*TINY, *env]) == 0
    film = ["checkpoint=a", "episodes=1", "num_envs=1", "render=a.gif"]
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


@pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)
def test_a_person_plays_with_the_policys_advice(tmp_path: Path) -> None:
    env = EnvConfig(id="tests.entity_gym.check.broken:Walk", kwargs={"size": 5})
    train(tiny_config(tmp_path, env=env, total_timesteps=32))
    world = broken.Walk(5)
    world.reseed(5, 0)
    decision = load_policy(tmp_path, greedy=True).act(world.reset())
    with Command("enn_ppo.play", str(tmp_path), "--greedy") as command, Browser() as browser:
        page = browser.open(command.url)
        page.wait_for("window.replay?.drawing.count > 0")
        shown = page.evaluate("replay.probabilities(0).step")
        np.testing.assert_allclose(shown, decision.probabilities["step"][0], atol=1e-5)
        page.click_on("#advised-rest")
        page.wait_for("document.getElementById('turn-text').textContent === 'Everybody has decided.'")
        page.click_on("#take-step")
        page.wait_for("replay.state.step === 1")
        taken = page.evaluate("replay.state.replay.episodes[0].steps[0].views[0].actions.step.chosen")
        assert taken == list(decision.actions["step"].actions)
        assert page.errors == []
        assert command.end() == (130, "")
