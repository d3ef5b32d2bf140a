"""Pages of trained policies in a headless Chromium, world by world: they open without an error, and show the policy's numbers.

That the data of a page is the network's stands in `test_watch.py`; here, the browser's numbers are compared with the data.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from enn_ppo import EnvConfig, SelfPlayConfig
from tests.chromium import CHROMIUM, NO_CHROMIUM, Browser
from tests.enn_ppo.replay_contract import weights_of
from tests.enn_ppo.watch.test_watch import DUELS, SNAKES, trained, watched
from tests.entity_gym.replay.worlds import Rooms

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)

WORLDS: dict[str, dict[str, Any]] = {
    "MineSweeper": {"env": EnvConfig(id="MineSweeper", kwargs={"orbital_cannon": True})},
    "CherryPick": {"env": EnvConfig(id="CherryPick")},
    "Minefield": {"env": EnvConfig(id="Minefield")},
    "MultiSnake for two": {
        "env": EnvConfig(id="MultiSnake", kwargs=SNAKES),
        "rollout": DUELS,
        "self_play": SelfPlayConfig(enabled=True),
    },
    "Gymnasium": {"env": EnvConfig(id="CartPole-v1", api="gymnasium")},
    "custom": {"env": EnvConfig(id="rooms"), "world": Rooms},
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as made:
        yield made


@pytest.mark.parametrize("world", WORLDS)
def test_the_browser_shows_probabilities_and_attention_of_the_policy(
    world: str, browser: Browser, tmp_path: Path
) -> None:
    if world == "Gymnasium":
        pytest.importorskip("gymnasium")
    settings = dict(WORLDS[world])
    own = settings.pop("world", None)
    path = tmp_path / "page.html"
    shown = watched(trained(tmp_path / "run", own, **settings), path, own, episodes=2)
    page = browser.open(path.as_uri() + "#episode=2&step=1")
    page.wait_for("window.replay?.drawing.count > 0")
    assert page.evaluate("[replay.state.episode, replay.state.step]") == [1, 1]
    page.key("ArrowLeft")
    page.wait_for("replay.state.step === 0")
    num_actors = 0
    for player, view in enumerate(shown["episodes"][1]["steps"][0]["views"]):
        page.evaluate(f"(() => {{ const p = document.getElementById('player'); p.value = '{player}'; }})()")
        page.evaluate("document.getElementById('player').dispatchEvent(new Event('change'))")
        page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        num_entities = len(page.evaluate("replay.entities()"))
        if view["attention"] is not None:
            weights = weights_of(shown, view, num_entities)
            for entity in range(num_entities):
                page_weights = page.evaluate(f"replay.attention({entity}, 0, 1)")
                np.testing.assert_allclose(page_weights, weights[0, 1, entity], atol=1e-5)
        for name, decision in view["actions"].items():
            for row, actor in enumerate(decision["actors"]):
                page.evaluate(f"replay.select({actor})")
                probabilities = page.evaluate(f"replay.probabilities({actor})")[name]
                assert sum(probabilities) == pytest.approx(1, abs=1e-5)
                assert probabilities == pytest.approx(decision["probs"][row], abs=1e-6)
                num_actors += 1
    assert num_actors > 0
    assert page.errors == []
    page.close()
