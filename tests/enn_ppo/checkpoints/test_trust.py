"""A stranger's checkpoint runs nothing on this machine unless its user says so, and one's own is not in the way."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from enn_ppo import EnvConfig, EvalConfig, evaluate, load_policy, train
from enn_ppo.checkpoints import load_checkpoint, save_policy
from enn_ppo.checkpoints.trust import code_of_training
from enn_ppo.eval.evaluate import evaluate as evaluate_command
from enn_ppo.play import main as play
from enn_ppo.settings.command_line.cli import run_eval, run_train, run_watch
from enn_ppo.watch import watch
from tests.enn_ppo.forged import sealed, with_settings
from tests.enn_ppo.worlds import Copycat, tiny_config

WORLD = """
from pathlib import Path
from tests.enn_ppo.worlds import Copycat

Path(__file__).with_name("imported").touch()


class World(Copycat):
    def __init__(self, size: int = 1) -> None:
        Path(__file__).with_name("made").touch()
"""
EVALUATE = ["episodes=2", "num_envs=2", "device=cpu"]
RESUME = ["total_timesteps=192"]


class Place:
    """A folder with the importable world `stranger:World` and a run that trained in it, and what has been run of it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.run_dir = folder, folder / "run"

    @property
    def ran(self) -> list[str]:
        return sorted(name for name in ("imported", "made", "pwned") if (self.folder / name).exists())

    def forget(self) -> None:
        """As if nothing had been run, and as if another process asked."""
        sys.modules.pop("stranger", None)
        for name in ("imported", "made", "pwned"):
            (self.folder / name).unlink(missing_ok=True)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place")
    (folder / "stranger.py").write_text(WORLD)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        train(tiny_config(folder / "run", env=EnvConfig(id="stranger:World")))
    return folder


@pytest.fixture
def place(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    shutil.copytree(trained, tmp_path / "place", symlinks=True)
    monkeypatch.syspath_prepend(str(tmp_path / "place"))
    monkeypatch.chdir(tmp_path / "place")
    place = Place(tmp_path / "place")
    place.forget()
    return place


@pytest.fixture
def another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "another user"))


COMMANDS = {
    "eval": lambda *given: run_eval(evaluate_command, ["checkpoint=run", *EVALUATE, *given]),
    "watch": lambda *given: run_watch(watch, ["run", "episodes=2", "open=false", *given]),
    "train": lambda *given: run_train(train, ["resume=run", *RESUME, *given]),
    "play": lambda *given: play(["checkpoint=run", *given]),
}
commands = pytest.mark.parametrize("command", COMMANDS)


@pytest.fixture(autouse=True)
def nothing_is_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    """`play` ends at once."""
    monkeypatch.setattr("enn_ppo.play.run", lambda *given: 0)


@commands
def test_ones_own_world_is_used_without_a_question(place: Place, command: str) -> None:
    assert COMMANDS[command]() == 0
    assert place.ran == ["imported", "made"]


@commands
def test_with_trust_a_strangers_world_is_used(place: Place, another_user: None, command: str) -> None:
    """`test_strangers.py` has the commands without `trust=true`."""
    assert COMMANDS[command]("trust=true") == 0
    assert place.ran == ["imported", "made"]
    if command == "train":  # a run that the user has trusted becomes the user's own
        saved = load_checkpoint(place.run_dir)
        assert (saved.step, saved.is_own, saved.config["trust"]) == (192, True, False)
        assert COMMANDS["eval"]() == 0


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (
            {"id": "subprocess:check_output", "kwargs": {"args": ["touch", "pwned"]}},
            "env.id=subprocess:check_output, env.kwargs={'args': ['touch', 'pwned']}",
        ),
        (
            {"api": "program", "id": "game", "kwargs": {"command": ["touch", "pwned"]}},
            "env.api=program, env.id=game, env.kwargs={'command': ['touch', 'pwned']}",
        ),
        (
            {"api": "gymnasium", "id": "CartPole-v1", "wrappers": ["stranger:Wrapper"]},
            "env.api=gymnasium, env.id=CartPole-v1, env.wrappers=['stranger:Wrapper']",
        ),
    ],
)
def test_what_settings_would_run_is_not_run_and_told(
    env: dict[str, Any], message: str, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    with_settings(load_checkpoint(place.run_dir).path, "env", **env)  # the checkpoint loses its signature
    assert COMMANDS["eval"]() == 2
    assert f"its settings would run or use {'' if 'api' in env else 'env.api=entity, '}{message}. Nothing" in (
        capsys.readouterr().err
    )
    assert place.ran == []


def test_in_python_evaluate_asks_and_an_environment_that_is_given_is_the_users_own(
    place: Place, another_user: None
) -> None:
    config = EvalConfig(checkpoint="run", episodes=2, num_envs=2)
    with pytest.raises(ValueError, match=r"env.id=stranger:World. Nothing was run"):
        evaluate(config)
    assert evaluate(config, env=Copycat).episodes
    assert load_policy("run").obs_space.entities  # runs nothing
    assert place.ran == []
    assert evaluate(replace(config, trust=True)).episodes
    assert place.ran == ["imported", "made"]


def test_a_registered_world_is_never_asked_about_but_states_that_nothing_checks_are(tmp_path: Path) -> None:
    config = tiny_config(tmp_path / "run", env=EnvConfig(id="Count"))
    train(config)
    sealed(load_checkpoint(tmp_path / "run").path)
    assert run_eval(evaluate_command, [f"checkpoint={tmp_path / 'run'}", *EVALUATE]) == 0
    more = replace(config, resume=str(tmp_path / "run"), run_dir=str(tmp_path / "a"), total_timesteps=192)
    with pytest.raises(
        ValueError, match=r"resume=.*run is not signed by this installation .*Add trust=true if you trust"
    ):
        train(more)
    assert not (tmp_path / "a").exists()
    assert train(replace(more, trust=True)).step == 192


def test_ones_own_policy_file_is_evaluated_without_a_question_and_cannot_be_resumed(
    place: Place, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = save_policy(place.run_dir, place.folder / "a.safetensors")
    with monkeypatch.context() as another_user:
        another_user.setenv("XDG_CONFIG_HOME", str(place.folder / "another user"))
        assert run_eval(evaluate_command, [f"checkpoint={alone}", *EVALUATE]) == 2
        assert place.ran == []
    assert run_eval(evaluate_command, [f"checkpoint={alone}", *EVALUATE]) == 0
    assert place.ran == ["imported", "made"]
    assert run_train(train, [f"resume={alone}", *RESUME]) == 2
    assert "a.safetensors cannot be resumed: it is a policy file, without the state of a trainer" in (
        capsys.readouterr().err
    )


def test_joining_a_cluster_is_asked_about() -> None:
    ray = {"mode": "ray", "address": "ray://far:1"}
    settings = {"env": {"id": "Xor"}, "distributed": ray}
    assert code_of_training(settings) == ["distributed.address=ray://far:1"]
    assert code_of_training({"env": {"id": "Xor"}, "distributed": {"mode": "ray", "address": "local"}}) == []
