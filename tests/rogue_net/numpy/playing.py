"""Policies of the NumPy runtime beside the modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rogue_net.numpy import Policy
from tests.runtime_policies import (
    Drawn,
    assert_like_modules,
    observation_to_json,
)


def load(drawn: Drawn, folder: Path) -> Policy:
    """Write the policy file, and read it."""
    file = folder / "policy.safetensors"
    file.write_bytes(drawn.bytes())
    return Policy.load(file)


def answers(policy: Policy, observations: list[Any], *, greedy: bool, seed: int = 0) -> list[dict[str, Any]]:
    """Answers of a policy in an episode, in the form that `assert_like_modules` takes."""
    state, said, rng = None, [], np.random.default_rng(seed)
    for observation in observations:
        decision = policy.act(observation, state, greedy=greedy, rng=rng)
        state = decision.state
        log_probs = {name: each.tolist() for name, each in decision.log_probs.items()}
        said.append({**decision._asdict(), "logProbs": log_probs})
    return said


def compare(drawn: Drawn, folder: Path) -> None:
    """Play an episode greedily, shown as objects, and by drawing, shown as JSON; and compare with the modules."""
    policy = load(drawn, folder)
    assert_like_modules(drawn, answers(policy, drawn.observations, greedy=True), greedy=True)
    told = [observation_to_json(each) for each in drawn.observations]
    assert_like_modules(drawn, answers(policy, told, greedy=False), greedy=False)
