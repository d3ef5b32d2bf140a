"""A world that hangs is named."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from enn_ppo import EnvConfig, train
from entity_gym import Action, Observation
from tests.enn_ppo.worlds import Copycat, tiny_config


class Stuck(Copycat):
    """Step number 99 of all environments in this process takes long: the third update's third."""

    num_steps = 0

    def act(self, actions: Mapping[str, Action]) -> Observation:
        Stuck.num_steps += 1
        if Stuck.num_steps == 99:
            time.sleep(1.5)
        return super().act(actions)


def test_a_world_that_takes_long_is_named_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("enn_ppo.training.watchdog.PATIENCE", 0.1)
    train(tiny_config(tmp_path / "run", env=EnvConfig()), env=Stuck)
    assert "waiting for Stuck (environment 2) for 0.1 seconds; two Ctrl-C end the run" in capsys.readouterr().err
