"""A world that hangs is named, and with `env.timeout` ends the run, which can be resumed."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from enn_ppo import EnvConfig, RolloutConfig, TrainConfig, train
from enn_ppo.checkpoints import load_checkpoint
from enn_ppo.settings.command_line.cli import run_train
from enn_ppo.training.errors import EnvironmentHangs
from entity_gym import Action, Observation
from tests.enn_ppo.worlds import Copycat, tiny_config

#: Steps of all environments before the third update: a first rollout, which measures the observations, and two updates.
TWO_UPDATES = 32 + 32 + 32


class Stuck(Copycat):
    """Step number `at` of all environments in this process takes `seconds`."""

    num_steps = 0

    def __init__(self, at: int, seconds: float = 1000.0, ignores_signals: bool = False) -> None:
        self.at, self.seconds, self.ignores_signals = at, seconds, ignores_signals

    def act(self, actions: Mapping[str, Action]) -> Observation:
        Stuck.num_steps += 1
        if Stuck.num_steps == self.at:
            if self.ignores_signals:
                signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
            time.sleep(self.seconds)
        return super().act(actions)


@pytest.fixture(autouse=True)
def no_steps() -> None:
    Stuck.num_steps = 0


def stuck(run_dir: Path, timeout: float | None = 0.5, rollout: Any = None, **kwargs: Any) -> Any:
    config = tiny_config(run_dir, env=EnvConfig(kwargs=kwargs, timeout=timeout))
    return replace(config, rollout=replace(config.rollout, **(rollout or {})))


def assert_hangs_and_goes_on(run_dir: Path, rollout: dict[str, Any], who: str) -> None:
    """The run ends with a checkpoint of the last update, from which it is resumed."""
    config = stuck(run_dir, rollout=rollout, at=TWO_UPDATES + 3)
    with pytest.raises(EnvironmentHangs, match=rf"({who}) has not answered for env.timeout=0.5 seconds") as error:
        train(config, env=Stuck)
    (saved,) = [note for note in error.value.__notes__ if "resume" in note]
    assert f"go on with resume={run_dir}" in saved
    assert load_checkpoint(run_dir).step == 64
    Stuck.num_steps = 10_000  # it does not hang again
    again = replace(config, resume=str(run_dir), run_dir=None, rollout=RolloutConfig(num_envs=4, steps=8))
    assert train(again, env=Stuck).step == 160


@pytest.mark.parametrize(
    ("rollout", "who"),
    [
        ({}, r"Stuck \(environment 2\)"),
        ({"num_threads": 2}, r"Stuck \(environment \d\)"),
        ({"pipeline": 2}, r"Stuck \(environment \d\)"),
    ],
)
@pytest.mark.filterwarnings("ignore:environments are still taking a step:RuntimeWarning")
def test_a_world_that_hangs_ends_the_run_with_a_checkpoint_of_the_last_update(
    rollout: dict[str, Any], who: str, tmp_path: Path
) -> None:
    assert_hangs_and_goes_on(tmp_path / "run", rollout, who)


def test_a_world_that_hangs_right_after_a_checkpoint_leaves_it_as_it_is(tmp_path: Path) -> None:
    config = replace(stuck(tmp_path / "run", at=TWO_UPDATES + 3), checkpoint_interval=1)
    with pytest.raises(EnvironmentHangs):
        train(config, env=Stuck)
    checkpoint = load_checkpoint(tmp_path / "run")
    assert checkpoint.step == 64
    assert "blocks" not in checkpoint.trainer["collector"]


def test_a_world_that_takes_long_is_named_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("enn_ppo.training.watchdog.PATIENCE", 0.1)
    train(stuck(tmp_path / "run", timeout=None, at=TWO_UPDATES + 3, seconds=1.5), env=Stuck)
    line = capsys.readouterr().err
    assert "waiting for Stuck (environment 2) for" in line
    assert "env.timeout=<seconds> would end the run" in line


@pytest.mark.parametrize(
    "env", ["env=MineSweeper", "env=custom env.id=a:B", "env=program", "env=gymnasium env.id=A-v1"]
)
def test_the_command_line_sets_the_timeout_of_any_world(env: str) -> None:
    found: list[TrainConfig] = []
    for timeout in ("env.timeout=2.5", ""):
        assert run_train(found.append, [*env.split(), *timeout.split()]) == 0
    assert [config.env.timeout for config in found] == [2.5, None]
