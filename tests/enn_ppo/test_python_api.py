"""The package in a notebook: presets, results that print short, and a policy that is asked about observations."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from enn_ppo import (
    EnvConfig,
    EvalConfig,
    SelfPlayConfig,
    TrainEvalConfig,
    evaluate,
    preset,
    train,
)
from enn_ppo.checkpoints import load_checkpoint
from enn_ppo.serve.agent import load_policy
from enn_ppo.training import start
from tests.enn_ppo.evaluation_worlds import Duel
from tests.enn_ppo.worlds import Clock, tiny_config

SMALL = {"width": 4, "height": 4, "num_mines": 2, "num_robots": 2, "max_steps": 10}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("run") / "a"
    train(tiny_config(run_dir, eval=TrainEvalConfig(greedy=True)))
    return run_dir


def test_a_preset_is_what_the_command_trains_with_and_one_that_is_none_is_told() -> None:
    config = preset("FloorIsLava", "optim.lr=0.5", seed=7, run_dir="out/a")
    assert (config.env.id, config.net.relpos.extent) == ("FloorIsLava", (1, 1))
    assert (config.optim.lr, config.seed, config.run_dir) == (0.5, 7, "out/a")
    with pytest.raises(ValueError, match=r"env=FloorIsLav is not a choice; .*did you mean 'FloorIsLava'"):
        preset("FloorIsLav")
    with pytest.raises(ValueError, match=r"optim\.lr must be"):
        preset("Xor", "optim.lr=-1")


def test_a_run_is_resumed_by_its_name_and_has_its_settings(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(run, tmp_path / "out/gold", symlinks=True)
    monkeypatch.chdir(tmp_path)
    before = load_checkpoint(Path("out/gold"))
    result = train(resume="out/gold", total_timesteps=before.step + 32)
    assert (result.run_dir, result.step) == (Path("out/gold"), before.step + 32)
    after = load_checkpoint(Path("out/gold")).config
    assert after == before.config | {"total_timesteps": before.step + 32, "run_dir": "out/gold"}
    with pytest.raises(TypeError, match="tota_timesteps"):
        train(resume="out/gold", tota_timesteps=3)


def test_runs_without_a_name_that_start_in_the_same_second_get_a_folder_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(start, "default_run_dir", lambda *_: "outputs/12-00-00")
    folders = [train(tiny_config("unused"), run_dir=None).run_dir for _ in range(3)]
    assert [folder.name for folder in folders] == ["12-00-00", "12-00-00_2", "12-00-00_3"]


def test_results_print_short(tmp_path: Path) -> None:
    result = train(tiny_config(tmp_path / "a", env=EnvConfig(), total_timesteps=320), env=Clock)
    assert repr(result).startswith(f"TrainResult(run_dir='{tmp_path / 'a'}', step=320, episodic_reward=")
    assert len(repr(result)) < 200
    evaluated = evaluate(EvalConfig(checkpoint=str(tmp_path / "a"), episodes=5), env=Clock)
    assert str(evaluated).startswith("episodic_reward: ") and "Episode(" not in repr(evaluated)


def test_an_evaluation_is_greedy_where_its_run_says_so_and_tells_the_world_it_played_in(
    run: Path, tmp_path: Path
) -> None:
    def report(name: str, **settings: Any) -> dict[str, Any]:
        output = tmp_path / f"{name}.json"
        evaluate(EvalConfig(checkpoint=str(run), episodes=3, output=str(output), **settings))
        told: dict[str, Any] = json.loads(output.read_text())
        return told

    assert report("own")["greedy"] is True
    assert report("sampled", greedy=False)["greedy"] is False
    assert report("wide", env_kwargs={"width": 5})["env_kwargs"] == {**SMALL, "width": 5}


def test_an_observation_that_does_not_fit_is_told(run: Path) -> None:
    with pytest.raises(ValueError, match="the observation"):
        load_policy(run).act(Clock().reset())


def test_after_self_play_every_side_is_played_by_itself(tmp_path: Path) -> None:
    pytest.importorskip("openskill")
    train(
        tiny_config(tmp_path / "a", env=EnvConfig(), self_play=SelfPlayConfig(enabled=True, snapshot_interval=32)),
        env=Duel,
    )
    result = evaluate(EvalConfig(checkpoint=str(tmp_path / "a"), episodes=20), env=Duel)
    mirrored = evaluate(EvalConfig(checkpoint=str(tmp_path / "a"), episodes=20, opponent=str(tmp_path / "a")), env=Duel)
    assert result.estimates == mirrored.estimates
    assert "win_rate" in result.estimates
