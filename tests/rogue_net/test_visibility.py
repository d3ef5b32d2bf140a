"""Hidden entities reach the value and never the policy, whatever mixes the tokens: proved by changing what is hidden.

`kernels/test_program.py` does so for programs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from entity_gym import (
    ActionSpace,
    CategoricalActionMask,
    CategoricalActionSpace,
    ContinuousActionMask,
    ContinuousActionSpace,
    Entity,
    EntityID,
    Observation,
    ObsSpace,
    SelectEntityActionMask,
    SelectEntityActionSpace,
)
from rogue_net import RogueNet, RogueNetConfig
from rogue_net.config import RelposConfig, TranslationConfig
from tests.rogue_net.worlds import World, to_batch

MOVE, STEER, PICK = "move", "steer", "pick"
ACTIONS: dict[str, ActionSpace] = {
    MOVE: CategoricalActionSpace(["stay", "left", "right"]),
    STEER: ContinuousActionSpace([-1, 0], [1, float("inf")]),
    PICK: SelectEntityActionSpace(nobody=True),
}
WORLD = World(
    ObsSpace({"Ship": Entity(["x", "y", "fuel"]), "Mine": Entity(["x", "y"]), "Base": Entity(["x", "y"])}), ACTIONS
)


def relpos(kind: str, extent: list[int], **settings: object) -> dict[str, object]:
    return {"relpos": RelposConfig(kind=kind, extent=extent, position_features=["x", "y"], **settings)}  # type: ignore[arg-type]


CONFIGS: dict[str, dict[str, object]] = {
    "attention": {},
    "no layers": {"n_layer": 0},
    "meanmax": {"pooling": "meanmax"},
    "grid": relpos("grid", [2, 2], per_entity_values=True),
    "gated grid": relpos("grid", [2, 2], value_gate="sigmoid"),
    "polar": relpos("polar", [4, 3], interpolate=True),
    "projections": relpos("polar", [4, 3], interpolate=True, key_projection=True, value_projection=True),
    "translation": {
        "translation": TranslationConfig(reference_entity="Base", position_features=["x", "y"], add_distance=True)
    },
}
_NETS: dict[str, RogueNet] = {}


def net_of(name: str) -> RogueNet:
    """Networks in which everything matters, made once."""
    if name not in _NETS:
        torch.manual_seed(1)
        options = {"backend": "reference", "n_layer": 2} | CONFIGS[name]
        net = RogueNet(RogueNetConfig(d_model=16, d_qk=8, **options), WORLD.obs_space, ACTIONS)  # type: ignore[arg-type]
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.2)
        net.update_normalization(to_batch([scene(seed) for seed in range(20)], WORLD))
        _NETS[name] = net
    return _NETS[name]


def scene(seed: int) -> Observation:
    """One to three ships, mines and a base, some of them hidden; the visible ships do everything, to all that is visible."""
    rng = np.random.default_rng(seed)
    counts = {"Ship": int(rng.integers(1, 4)), "Mine": int(rng.integers(0, 4)), "Base": 1}
    features = {
        name: rng.normal(size=(n, len(WORLD.obs_space.entities[name].features))) * 2 for name, n in counts.items()
    }
    ids: dict[str, list[EntityID]] = {name: [(name, i) for i in range(n)] for name, n in counts.items()}
    visible = {name: rng.random(n) < 0.6 for name, n in counts.items()}
    visible["Ship"][0] = True
    return acting(Observation(features=features, ids=ids, visible=visible))


def acting(observation: Observation) -> Observation:
    """The visible ships act, on everything visible."""
    seen = [
        id_ for name, ids in observation.ids.items() for id_, v in zip(ids, observation.visible[name], strict=True) if v
    ]
    actors = [id_ for id_ in seen if id_[0] == "Ship"]  # type: ignore[index]
    actions = {
        MOVE: CategoricalActionMask(actor_ids=actors),
        STEER: ContinuousActionMask(actor_ids=actors),
        PICK: SelectEntityActionMask(actor_ids=actors, actee_ids=seen),
    }
    return replace(observation, actions=actions)


def changed(observation: Observation, hidden: bool) -> Observation:
    """With other features of everything hidden, or of everything visible."""
    features = {}
    for name, rows in observation.features.items():
        chosen = observation.visible[name] != hidden
        features[name] = np.where(np.asarray(chosen)[:, None], np.asarray(rows) * -3 + 1, rows)
    return replace(observation, features=features)


def without_hidden(observation: Observation) -> Observation:
    """As if what is hidden were not there at all."""
    return replace(
        observation,
        features={name: np.asarray(rows)[observation.visible[name]] for name, rows in observation.features.items()},
        ids={
            name: [id_ for id_, v in zip(ids, observation.visible[name], strict=True) if v]
            for name, ids in observation.ids.items()
        },
        visible={name: [True] * int(np.sum(flags)) for name, flags in observation.visible.items()},
    )


class Said(NamedTuple):
    value: float
    logits: dict[str, Tensor]


def says(net: RogueNet, observation: Observation) -> Said:
    batch = to_batch([observation], WORLD)
    result = net.act(batch, greedy=True, logits=True)
    assert result.logits is not None
    return Said(float(result.values), {name: ragged.values for name, ragged in result.logits.items()})


def hides(observation: Observation) -> bool:
    return not all(np.all(flags) for flags in observation.visible.values())


@pytest.mark.parametrize("name", CONFIGS)
def test_decisions_depend_on_visible_entities_alone_and_the_value_on_all(name: str) -> None:
    net = net_of(name)
    for observation in map(scene, range(15)):
        before, after = says(net, observation), says(net, changed(observation, hidden=True))
        torch.testing.assert_close(after.logits, before.logits, atol=1e-6, rtol=0)
        assert (before.value != after.value) == hides(observation)
        alone = says(net, without_hidden(observation))
        torch.testing.assert_close(alone.logits, before.logits, atol=1e-5, rtol=1e-5)
    before, after = says(net, scene(3)), says(net, changed(scene(3), hidden=False))
    assert abs(before.value - after.value) > 1e-4
    for action in ACTIONS:
        assert not torch.allclose(before.logits[action], after.logits[action], atol=1e-4)


@pytest.mark.parametrize("name", CONFIGS)
def test_no_gradient_of_a_decision_reaches_what_is_hidden(name: str) -> None:
    net, batch = net_of(name), to_batch([scene(seed) for seed in range(30)], WORLD)
    actions = net.act(batch, generator=torch.Generator().manual_seed(0)).actions
    for ragged in batch.features.values():
        ragged.values.requires_grad_()
    evaluation = net.evaluate(batch, actions)
    of_actors = (*evaluation.log_probs.values(), *evaluation.entropies.values())
    decided = torch.cat([each.values for each in of_actors]).sum()
    features = [ragged.values for ragged in batch.features.values()]
    of_policy = torch.autograd.grad(decided, features, retain_graph=True)
    of_value = torch.autograd.grad(evaluation.values.sum(), features)
    hidden = [~batch.visible[name].values[:, 0] for name in batch.features]
    for rows, from_policy, from_value in zip(hidden, of_policy, of_value, strict=True):
        assert rows.any()
        assert (from_policy[rows] == 0).all()
        assert (from_value[rows] != 0).any()
        assert (from_policy[~rows] != 0).any()


# --- Hidden entities that act, or may be selected


def two_ships(fuel: float, actions: dict[str, object]) -> Observation:
    """Ship 0 visible; ships 1 and 2 hidden, ship 2 with this much fuel."""
    return Observation(
        features={"Ship": [[0, 0, 1], [1, 2, 1], [2, 1, fuel]]},
        ids={"Ship": [0, 1, 2]},
        visible={"Ship": [True, False, False]},
        actions=actions,  # type: ignore[arg-type]
    )


def test_a_hidden_actor_decides_by_what_is_hidden_too() -> None:
    actions = {MOVE: CategoricalActionMask(actor_ids=[0, 1])}
    before, after = (says(net_of("attention"), two_ships(fuel, actions)).logits[MOVE] for fuel in (1.0, -5.0))
    torch.testing.assert_close(after[0], before[0], atol=1e-6, rtol=0)
    assert not torch.allclose(after[1], before[1], atol=1e-3)


def test_a_hidden_actee_shows_itself_and_what_it_sees_in_how_likely_it_is_selected() -> None:
    actions = {PICK: SelectEntityActionMask(actor_ids=[0], actee_ids=[0, 1])}
    before, after = (says(net_of("attention"), two_ships(fuel, actions)).logits[PICK] for fuel in (1.0, -5.0))
    assert not torch.allclose(after, before, atol=1e-3)
