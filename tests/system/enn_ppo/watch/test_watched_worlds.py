"""Every world can be watched."""

from __future__ import annotations

from pathlib import Path

import pytest

from enn_ppo import EnvConfig
from entity_gym.registry import list_envs
from tests.enn_ppo.watch.test_watch import trained, watched


@pytest.mark.parametrize("name", list_envs())
def test_every_world_of_the_zoo_can_be_watched(name: str, tmp_path: Path) -> None:
    run = trained(tmp_path / "run", env=EnvConfig(id=name))
    shown = watched(run, tmp_path / "page.html", episodes=2)
    assert shown["world"] == name and len(shown["episodes"]) == 2
    if shown["entities"]:
        assert all(set(episode["drawing"]["types"]) >= set(shown["entities"]) for episode in shown["episodes"])
