"""Relative positions in whole networks that act and learn, set as configuration files set them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from enn_ppo.ppo import Advantages, Samples, update
from enn_ppo.settings.config import OptimConfig, PPOConfig
from enn_ppo.settings.learning import PPOSettings
from enn_ppo.settings.schema import from_dict
from entity_gym import (
    Action,
    ActionSpace,
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    Environment,
    GlobalCategoricalActionMask,
    GlobalCategoricalActionSpace,
    Observation,
    ObsSpace,
)
from entity_gym.pools.pool import ListEnv
from rogue_net import RogueNet, RogueNetConfig
from tests.enn_ppo.rollouts import Collector

CPU = torch.device("cpu")


class Cave(Environment):
    """Bats among stalactites, in three dimensions; moss is nowhere in particular. Everybody waits."""

    def obs_space(self) -> ObsSpace:
        bat, stalactite = Entity(["x", "y", "z", "heading"]), Entity(["length", "z", "y", "x"])
        return ObsSpace({"Bat": bat, "Stalactite": stalactite, "Moss": Entity(["age"])}, global_features=["hour"])

    def action_space(self) -> Mapping[str, ActionSpace]:
        return {
            "turn": CategoricalActionSpace(["left", "right"]),
            "light": GlobalCategoricalActionSpace(["on", "off"]),
        }

    def reset(self) -> Observation:
        self.hour = 0
        return self._observation()

    def act(self, actions: Mapping[str, Action]) -> Observation:
        self.hour += 1
        return self._observation()

    def _observation(self) -> Observation:
        columns = {name: len(entity.features) for name, entity in self.obs_space().entities.items()}
        counts = {name: self.rng.integers(1, 5) for name in columns}
        return Observation(
            features={name: 3 * self.rng.normal(size=(counts[name], width)) for name, width in columns.items()},
            ids={"Bat": range(counts["Bat"])},
            global_features=[float(self.hour)],
            actions={
                "turn": CategoricalActionMask(actor_types=["Bat"]),
                "light": GlobalCategoricalActionMask(),
            },
            done=self.hour == 5,
        )


def learn_once(net: RogueNet) -> None:
    """One rollout of random advantages and one step of gradient descent."""
    collector = Collector(ListEnv(Cave, 4), net, CPU, 1)
    collector.reset(1)
    rollout = collector.collect(6)
    net.update_normalization(rollout.frames.obs)
    advantages = torch.randn(rollout.by_step("values").shape)
    update(
        net,
        torch.optim.SGD(net.parameters(), lr=0.1),
        Samples.of(rollout, Advantages(advantages, rollout.by_step("values") + advantages)),
        OptimConfig(batch_size=len(rollout.frames.obs), epochs=1),
        PPOSettings.at(PPOConfig(ent_coef=0.1)),
        generator=torch.Generator().manual_seed(7),
    )


FLAT: dict[str, Any] = {"position_features": ["x", "y"], "exclude_entities": ["Moss"]}
SETTINGS: dict[str, dict[str, Any]] = {
    "three dimensions": {
        "kind": "grid",
        "extent": [2, 2, 1],
        "position_features": ["x", "y", "z"],
        "exclude_entities": ["Moss"],
    },
    "an excluded global entity": {
        **FLAT,
        "kind": "distance",
        "extent": [4],
        "exclude_entities": ["Moss", "__global__"],
    },
    "everything": {
        **FLAT,
        "kind": "polar",
        "extent": [4, 3],
        "interpolate": True,
        "scale": "1.5",
        "rotation_angle_feature": "heading",
        "per_entity_values": True,
        "key_projection": True,
        "value_projection": True,
        "per_entity_projections": True,
        "value_gate": "gelu",
    },
}


@pytest.mark.parametrize("backend", ["reference", "fused"])
@pytest.mark.parametrize("name", SETTINGS)
def test_a_network_with_relative_positions_learns(name: str, backend: str) -> None:
    settings = {"d_model": 16, "n_layer": 1, "n_head": 2, "backend": backend, "relpos": SETTINGS[name]}
    torch.manual_seed(0)
    net = RogueNet(from_dict(RogueNetConfig, settings, "net"), Cave().obs_space(), Cave().action_space())
    positions = net.transformer.relative_positions
    assert positions is not None
    with torch.no_grad():
        for head in net.heads:
            head.project.weight.normal_()
    before = {key: parameter.detach().clone() for key, parameter in positions.named_parameters()}
    learn_once(net)
    for key, parameter in positions.named_parameters():
        assert parameter.isfinite().all()
        assert not torch.equal(parameter, before[key]), key


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"position_features": ["x", "yy"]}, r"net\.relpos\.position_features names 'yy'.*did you mean 'y'"),
        ({"extent": None}, r"net\.relpos\.extent must be a list of integers, got None"),
        ({"extent": []}, r"net\.relpos\.extent must have 2 value\(s\) for kind=grid and 2 position features, got \[\]"),
        ({"extent": [1, 0]}, r"net\.relpos\.extent must be an integer of at least 1, got 0"),
        ({"exclude_entities": []}, r"or the type be listed in net\.relpos\.exclude_entities: 'Moss' lacks 'x', 'y'"),
        ({"exclude_entity": ["Moss"]}, r"net\.relpos\.exclude_entity.*net\.relpos\.exclude_entities"),
        ({"interpolate": 1}, r"net\.relpos\.interpolate must be true or false, got 1"),
    ],
)
def test_a_mistake_is_one_sentence_about_the_setting(changes: dict[str, Any], message: str) -> None:
    settings = {"relpos": {**FLAT, "kind": "grid", "extent": [1, 1], **changes}}
    with pytest.raises(ValueError, match=message):
        RogueNet(from_dict(RogueNetConfig, settings, "net"), Cave().obs_space(), Cave().action_space())
