"""Every world can be watched: its page opens in a headless Chromium without an error, and shows the policy's numbers.

That the data of a page is the network's stands in `test_watch.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from enn_ppo import EnvConfig
from entity_gym.registry import list_envs
from tests.chromium import CHROMIUM, NO_CHROMIUM, Browser
from tests.enn_ppo.replay_contract import weights_of
from tests.enn_ppo.watch.test_watch import trained, watched

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as made:
        yield made


@pytest.mark.parametrize("name", list_envs())
def test_every_world_of_the_zoo_can_be_watched(name: str, browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    shown = watched(trained(tmp_path / "run", env=EnvConfig(id=name)), path, episodes=2)
    assert shown["world"] == name and len(shown["episodes"]) == 2
    if shown["entities"]:
        assert all(set(episode["drawing"]["types"]) >= set(shown["entities"]) for episode in shown["episodes"])
    page = browser.open(path.as_uri() + "#episode=2&step=0")
    page.wait_for("window.replay?.drawing.count > 0")
    view = shown["episodes"][1]["steps"][0]["views"][0]
    num_entities = len(page.evaluate("replay.entities()"))
    if view["attention"] is not None:
        weights = weights_of(shown, view, num_entities)
        for entity in range(num_entities):
            np.testing.assert_allclose(
                page.evaluate(f"replay.attention({entity}, 0, 1)"), weights[0, 1, entity], atol=1e-5
            )
    for kind, decision in view["actions"].items():
        for row, actor in enumerate(decision["actors"]):
            probabilities = page.evaluate(f"replay.probabilities({actor})")[kind]
            assert probabilities == pytest.approx(decision["probs"][row], abs=1e-6)
    assert page.errors == []
    page.close()
