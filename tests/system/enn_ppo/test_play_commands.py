"""Playing beside a checkpoint's policy, as a program in the browser."""

from pathlib import Path

import numpy as np
import pytest

from enn_ppo import EnvConfig, load_policy, train
from tests.chromium import CHROMIUM, NO_CHROMIUM, Browser
from tests.enn_ppo.worlds import tiny_config
from tests.entity_gym.check import broken
from tests.entity_gym.play.served import Command


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
