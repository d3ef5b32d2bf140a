"""ONNX models of policies beside the modules: 200 drawn combinations of options, and every world of the package."""

from __future__ import annotations

from pathlib import Path

import pytest

from entity_gym.registry import list_envs
from tests.runtime_policies import draw_policy, policy_of_world

pytest.importorskip("onnxruntime")
playing = pytest.importorskip("tests.rogue_net.onnx.playing")


@pytest.mark.parametrize("first", range(100, 300, 50))
def test_drawn_combinations_of_options_say_what_the_modules_say(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 50):
        playing.compare(draw_policy(seed, steps=6, most=6), tmp_path)


@pytest.mark.parametrize("name", list_envs())
def test_policies_of_all_worlds_say_what_the_modules_say(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With drawn weights, log-probs of ConnectFour by modules and models are each up to 1e-5 from what they are in float64."""
    if name == "ConnectFour":
        monkeypatch.setattr("tests.runtime_policies.CLOSE", 3e-5)
    for seed in range(2):
        playing.compare(policy_of_world(name, steps=20, seed=seed), tmp_path)
