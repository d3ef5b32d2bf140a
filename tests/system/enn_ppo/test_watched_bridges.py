"""Policies in worlds of other interfaces are filmed and watched."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from enn_ppo import evaluate, train  # noqa: E402
from enn_ppo.play import main as play  # noqa: E402
from enn_ppo.settings.command_line.cli import run_eval, run_train  # noqa: E402
from tests.enn_ppo.test_bridged_worlds import TINY


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


def watched(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    typed = iter([*lines, "q"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(typed))


@pytest.mark.parametrize("name", WORLDS)
def test_a_policy_is_watched_in_worlds_of_every_interface_and_back(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if name == "Walk":
        pytest.importorskip("dm_env")
    assert run_train(train, [*TINY, *WORLDS[name]]) == 0
    capsys.readouterr()
    shown = []
    for _ in range(2):
        watched(monkeypatch, "", "u", "r")
        assert play(["a", "--seed", "3", "--greedy"]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        shown.append(out)
    assert shown[0] == shown[1], "the seed says what happens"
    first, second, again = shown[0].split(f"\n{name}, episode 1, ")[1:]
    assert second.startswith("step 1: reward ")
    assert first == again.replace("the episode has only begun\n", "")


@pytest.mark.parametrize(("settings", "has_picture"), [([], False), (["--set", "render_mode=rgb_array"], True)])
def test_a_picture_is_shown_where_the_world_is_made_for_it(
    settings: list[str],
    has_picture: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("pygame")
    assert run_train(train, [*TINY, *WORLDS["CartPole-v1"]]) == 0
    capsys.readouterr()
    watched(monkeypatch)
    assert play(["a", "--seed", "3", "--color", "always", *settings]) == 0
    out, err = capsys.readouterr()
    assert ("\x1b[38;" in out) is has_picture
    assert err == ""
