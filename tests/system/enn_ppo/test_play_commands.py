"""Watching a checkpoint play as a program and in the browser."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from enn_ppo import EnvConfig, train
from enn_ppo.checkpoints import load_checkpoint
from enn_ppo.checkpoints.policy import load_policy
from enn_ppo.play import NetPolicy
from entity_gym.play.session import Session
from rogue_net import RogueNet
from tests.chromium import CHROMIUM, NO_CHROMIUM, Browser
from tests.enn_ppo.worlds import tiny_config
from tests.entity_gym.check import broken
from tests.entity_gym.play.served import Command

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("walk")
    env = EnvConfig(id="tests.entity_gym.check.broken:Walk", kwargs={"size": 5})
    train(tiny_config(folder, env=env, total_timesteps=32))
    return str(folder)


@pytest.fixture(scope="module")
def net(run_dir: str) -> RogueNet:
    return load_policy(load_checkpoint(Path(run_dir)), torch.device("cpu"))


@pytest.mark.slow
def test_it_runs_as_a_program(run_dir: str) -> None:
    command = [sys.executable, "-m", "enn_ppo.play", run_dir, "--seed", "0", "--greedy"]
    done = subprocess.run(command, cwd=ROOT, input="\nq\n", capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("seed 0; ? for help, q to quit\n\nWalk, episode 1, step 0, expected from here on")


@pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)
def test_in_the_browser_a_person_plays_with_the_policys_advice(run_dir: str, net: RogueNet) -> None:
    session = Session(lambda: broken.Walk(5), 5, "Walk")
    (decision,) = NetPolicy(net, greedy=True)(session.vec_obs()).decisions["step"]
    command = Command("enn_ppo.play", run_dir, "--greedy")
    with Browser() as browser:
        page = browser.open(command.url)
        page.wait_for("window.replay?.drawing.count > 0")
        (actor,) = session.now.frame.actions["step"].actors.tolist()
        shown = page.evaluate(f"replay.probabilities({actor}).step")
        np.testing.assert_allclose(shown, decision.probabilities, atol=1e-5)
        page.click_on("#advised-rest")
        page.wait_for("document.getElementById('turn-text').textContent === 'Everybody has decided.'")
        page.click_on("#take-step")
        page.wait_for("replay.state.step === 1")
        taken = page.evaluate("replay.state.replay.episodes[0].steps[0].views[0].actions.step.chosen")
        assert taken == [decision.value]
        assert page.errors == []
    assert command.end() == (130, "")
