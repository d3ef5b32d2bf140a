"""Policies of the NumPy runtime beside the modules."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from entity_gym import (
    CategoricalActionSpace,
    ContinuousActionSpace,
    Entity,
    GlobalCategoricalActionSpace,
    ObsSpace,
    SelectEntitiesActionSpace,
    SelectEntityActionSpace,
)
from rogue_net import RelposConfig, RogueNetConfig
from rogue_net.numpy import Policy
from tests.runtime_policies import (
    CARD,
    FLAG,
    ROCK,
    SHIP,
    Drawn,
    assert_like_modules,
    make_net,
    observation_to_json,
    observe,
)


def load(drawn: Drawn, folder: Path) -> Policy:
    """Write the policy file, and read it."""
    file = folder / "policy.safetensors"
    file.write_bytes(drawn.bytes())
    return Policy.load(file)


def answers(policy: Policy, observations: list[Any], *, greedy: bool, seed: int = 0) -> list[dict[str, Any]]:
    """What a policy says of an episode, in the form that `assert_like_modules` takes."""
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


# --- A policy of all kinds of action

SPACE = ObsSpace({name: Entity(["x", "y"]) for name in (SHIP, ROCK, CARD, FLAG)}, ["time"])
ACTIONS = {
    "move": CategoricalActionSpace(["stay", "left", "right"]),
    "aim": SelectEntityActionSpace(),
    "pack": SelectEntitiesActionSpace(max=3),
    "load": SelectEntitiesActionSpace(ordered=True, max=4),
    "steer": ContinuousActionSpace([-1, 0], [1, np.inf]),
    "mode": GlobalCategoricalActionSpace(["calm", "alert"]),
}
RELPOS = RelposConfig(kind="polar", extent=[8, 4], position_features=["x", "y"], interpolate=True)
CONFIG = RogueNetConfig(d_model=16, n_layer=2, d_qk=8, relpos=RELPOS, backend="reference")


def frames(counts: dict[str, int], *, num: int = 2, memory: Any = "none") -> Drawn:
    """A policy of all kinds of action, and frames of so many entities."""
    net = make_net(replace(CONFIG, memory=memory), SPACE, ACTIONS, 0)
    ids = {name: [f"{name} {k}" for k in range(counts.get(name, 0))] for name in SPACE.entities}
    rng = np.random.default_rng(0)
    return Drawn(net, None, [observe(rng, net, ids) for _ in range(num)])
