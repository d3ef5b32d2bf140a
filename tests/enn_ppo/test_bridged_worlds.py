"""Worlds of other interfaces in the trainer: `env=gymnasium env.id=...`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

gymnasium = pytest.importorskip("gymnasium")

from enn_ppo import evaluate, train  # noqa: E402
from enn_ppo.checkpoints import load_checkpoint  # noqa: E402
from enn_ppo.settings.command_line.cli import run_eval, run_train  # noqa: E402
from enn_ppo.settings.config import EnvConfig  # noqa: E402
from enn_ppo.training.environment import bind_environment  # noqa: E402

TINY = (
    "rollout.num_envs=4",
    "rollout.steps=8",
    "net.d_model=16",
    "optim.batch_size=32",
    "optim.epochs=1",
    "total_timesteps=64",
    "device=cpu",
    "run_dir=a",
)
LINE = "tests.entity_gym.bridges.gym_worlds:Line"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("env_id", "processes"), [("Pendulum-v1", 0), (LINE, 2)])
def test_gymnasium_worlds_are_trained_and_evaluated(env_id: str, processes: int) -> None:
    arguments = [*TINY, "env=gymnasium", f"env.id={env_id}", f"rollout.num_processes={processes}"]
    assert run_train(train, arguments) == 0
    assert load_checkpoint(Path("a")).step == 64
    assert run_eval(evaluate, ["checkpoint=a", "episodes=3", "num_envs=2", "output=result.json"]) == 0
    assert json.loads(Path("result.json").read_text())["episodic_reward"]["n"] == 3


def test_dm_env_worlds_are_trained() -> None:
    pytest.importorskip("dm_env")
    assert run_train(train, [*TINY, "env=dm_env", "env.id=tests.entity_gym.bridges.test_dm_in:Walk"]) == 0
    assert load_checkpoint(Path("a")).step == 64


@pytest.mark.parametrize(
    ("api", "env_id"),
    [
        ("gymnasium", "CartPole-v1"),
        ("dm_env", "tests.entity_gym.bridges.test_dm_in:Walk"),
        ("pettingzoo", "tests.entity_gym.bridges.herds:Herd"),
    ],
)
def test_the_agents_of_other_libraries_can_remember(api: str, env_id: str) -> None:
    pytest.importorskip(api)
    assert run_train(train, [*TINY, f"env={api}", f"env.id={env_id}", "net.memory=entity"]) == 0
    (states,) = load_checkpoint(Path("a")).trainer["collector"]["policies"]
    assert len(states["keys"]) == 4 and bool((states["known"]["hidden"][0] != 0).any())


def test_options_of_reset_can_be_drawn_anew_by_every_episode() -> None:
    arguments = [*TINY, "env=gymnasium", f"env.id={LINE}", "env.kwargs.limit=1", "env.info.place=[20,20]"]
    assert run_train(train, arguments) == 0
    rows = [json.loads(line) for line in Path("a/metrics.jsonl").read_text().splitlines()]
    assert 19 <= rows[-1]["episodic_reward"] <= 21, "every episode is one step from 20"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (EnvConfig(api="gymnasium", id="CartPol-v1"), r"'CartPol-v1' is no environment that Gymnasium knows"),
        (EnvConfig(api="dm_env", id="nowhere:World"), r"there is no module 'nowhere'"),
        (EnvConfig(api="dm_env", id="World"), r"dm_env environment is 'World'; your own is written as"),
    ],
)
def test_a_world_that_is_not_there_is_told(config: EnvConfig, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bind_environment(config)


@pytest.mark.parametrize(
    ("library", "api", "env_id", "extra"),
    [
        ("gymnasium", "gymnasium", "CartPole-v1", "gymnasium"),
        ("pettingzoo", "pettingzoo", "needs_it:make", "pettingzoo"),
        ("dm_env", "dm_env", "needs_it:make", "dm"),
    ],
)
def test_a_library_that_is_missing_is_a_line_that_says_what_to_install(
    library: str, api: str, env_id: str, extra: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("needs_it.py").write_text(f"import {library}\ndef make(): ...\n")
    monkeypatch.syspath_prepend(".")
    monkeypatch.delitem(sys.modules, "needs_it", raising=False)
    monkeypatch.setitem(sys.modules, library, None)
    assert run_train(train, [*TINY, f"env={api}", f"env.id={env_id}"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: ") and told.endswith(f'pip install "enn-ppo[{extra}]"\n') and told.count("\n") == 1


# ---- views and wrappers

VIEW = "entities: {Place: {count: 1, features: [place]}, Clock: {count: 1, features: [steps]}}\nactor: Place\n"


def test_a_view_in_a_file_is_kept_with_the_checkpoint() -> None:
    Path("mine.yaml").write_text(VIEW)
    typed = ["env=gymnasium", f"env.id={LINE}", "env.view=mine.yaml", *TINY]
    assert run_train(lambda config: train(config), typed) == 0
    Path("mine.yaml").unlink()
    saved = bind_environment(
        load_checkpoint(Path("a")).config["env"] and EnvConfig(**load_checkpoint(Path("a")).config["env"])
    )
    assert list(saved.source.as_environment().obs_space().entities) == ["Place", "Clock"]
    assert run_eval(lambda config: evaluate(config), ["checkpoint=a", "episodes=2"]) == 0


def test_wrappers_are_named_on_the_command_line() -> None:
    limit = (
        """env.wrappers=["gymnasium.wrappers:TimeLimit(max_episode_steps=2)",gymnasium.wrappers:TimeAwareObservation]"""
    )
    assert run_train(lambda config: train(config), ["env=gymnasium", "env.id=CartPole-v1", limit, *TINY]) == 0
    rows = [json.loads(line) for line in Path("a/metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["episode_length"] == 2


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (
            ["env=MineSweeper", "env.view=highway"],
            "env.view is for env.api=gymnasium or dm_env or pettingzoo; it is entity",
        ),
        (["env=gymnasium", "env.id=CartPole-v1", "env.view=highwy"], "did you mean 'highway'?"),
        (
            ["env=gymnasium", "env.id=CartPole-v1", "env.view=highway"],
            "CartPole-v1: view highway: entities.Ego: the 4 numbers of the observation from 0 on are not 1 rows",
        ),
    ],
)
def test_views_and_wrappers_that_cannot_be_are_refused(
    typed: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_train(lambda config: train(config), [*typed, *TINY]) == 2
    assert message in capsys.readouterr().err
