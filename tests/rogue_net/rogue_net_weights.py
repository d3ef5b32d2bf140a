"""Networks of rogue-net 0.1.9, which this project descends from, as networks of this package: for the fixtures of conformance.

A fixture's description names the network's settings and spaces in rogue-net's words, and its weights have rogue-net's names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from entity_gym import ActionSpace, CategoricalActionSpace, Entity, ObsSpace, SelectEntityActionSpace
from entity_gym.actions import GlobalCategoricalActionSpace
from entity_gym.actions.kind import has_global_entity
from entity_gym.spaces import GLOBAL_ENTITY
from rogue_net import RogueNet, RogueNetConfig
from rogue_net.config import RelposConfig, RelposKind, TranslationConfig

# rogue-net's settings -> this project's
NET_NAMES = {name: name for name in ("d_model", "n_layer", "n_head", "d_qk", "pooling")}
POSITION_NAMES = {name: name for name in ("position_features", "rotation_vec_features", "rotation_angle_feature")}
TRANSLATION_NAMES = POSITION_NAMES | {"reference_entity": "reference_entity", "add_dist_feature": "add_distance"}
RELPOS_NAMES = POSITION_NAMES | {
    **{name: name for name in ("extent", "scale", "interpolate", "per_entity_values", "value_gate")},
    "key_relpos_projection": "key_projection",
    "value_relpos_projection": "value_projection",
}
# [radial][distance] in rogue-net
RELPOS_KINDS: list[list[RelposKind]] = [["grid", "distance"], ["radial", "polar"]]
#: Tensors that are unused, constant, or copies: all blocks share the relative positions.
NO_WEIGHTS = ("relpos_encoding.strides", "relpos_encoding.extent_tensor", "relpos_encoding.distance_values.weight")


class Description(NamedTuple):
    """A network's settings and spaces, in this project's classes."""

    config: RogueNetConfig
    obs_space: ObsSpace
    action_space: dict[str, ActionSpace]
    regression_heads: dict[str, int]  # without the value head, which every network has

    @staticmethod
    def of(given: Mapping[str, Any], backend: Any) -> Description:
        """Translate a description with rogue-net's names."""
        action_space = {name: _action_space(space) for name, space in given["action_space"].items()}
        heads = {name: size for name, size in given["regression_heads"].items() if name != "value"}
        net = given["net"]
        config = RogueNetConfig(
            **_renamed(net, NET_NAMES),
            relpos=_relpos(net.get("relpos_encoding") or {}),
            translation=TranslationConfig(**_renamed(net.get("translation") or {}, TRANSLATION_NAMES)),
            backend=backend,
        )
        return Description(config, _obs_space(given), action_space, heads)

    def make_net(self, weights: Mapping[str, Tensor]) -> RogueNet:
        """Make a network with rogue-net's weights."""
        net = RogueNet(self.config, self.obs_space, self.action_space, self.regression_heads)
        net.load_state_dict(_Conversion(weights, self).converted())
        return net


def joins_globals(given: Mapping[str, Any]) -> bool:
    """Whether global features join all entities, and are no entity of their own: in rogue-net, without a global action."""
    kinds = {space["kind"] for space in given["action_space"].values()}
    return bool(given["obs_space"].get("global_features")) and "global_categorical" not in kinds


def _obs_space(given: Mapping[str, Any]) -> ObsSpace:
    spaces = given["obs_space"]
    global_features = spaces.get("global_features", [])
    joining = [f"global {name}" for name in global_features] if joins_globals(given) else []
    entities = {name: Entity([*features, *joining]) for name, features in spaces["entities"].items()}
    return ObsSpace(entities, [] if joining else global_features)


def _action_space(space: Mapping[str, Any]) -> ActionSpace:
    match space["kind"]:
        case "categorical":
            return CategoricalActionSpace(space["choices"])
        case "global_categorical":
            return GlobalCategoricalActionSpace(space["choices"])
    return SelectEntityActionSpace()


def _relpos(given: Mapping[str, Any]) -> RelposConfig:
    if not given:
        return RelposConfig()
    kind = RELPOS_KINDS[bool(given.get("radial"))][bool(given.get("distance"))]
    settings = _renamed({name: value for name, value in given.items() if name in RELPOS_NAMES}, RELPOS_NAMES)
    if "value_gate" in given and given["value_gate"] is None:
        settings["value_gate"] = "none"
    if kind in ("grid", "distance"):  # rogue-net does not rotate these
        settings.pop("rotation_vec_features", None)
        settings.pop("rotation_angle_feature", None)
    return RelposConfig(kind=kind, **settings)


def _renamed(given: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names[name]: value for name, value in given.items() if name in names and value is not None}


class _Conversion:
    """Tensors of this project, from rogue-net's."""

    def __init__(self, weights: Mapping[str, Tensor], description: Description) -> None:
        self._weights, self._description = weights, description
        self._left = {
            name for name in weights if not name.endswith(NO_WEIGHTS) and ".attn.relpos_encoding." not in name
        }
        self._found: dict[str, Tensor] = {}

    def converted(self) -> dict[str, Tensor]:
        """The state dict."""
        self._embedding()
        for number in range(self._description.config.n_layer):
            self._block(f"transformer.blocks.{number}", f"backbone.blocks.{number}")
        self._relative_positions()
        self._heads()
        assert not self._left, f"without a place: {sorted(self._left)}"
        return self._found

    def _take(self, name: str) -> Tensor:
        self._left.discard(name)
        return self._weights[name]

    def _linear(self, ours: str, theirs: str) -> None:
        """The weight and the bias of a module."""
        for part in ("weight", "bias"):
            self._found[f"{ours}.{part}"] = self._take(f"{theirs}.{part}")

    def _norm(self, ours: str, theirs: str, columns: Sequence[int]) -> None:
        """Running statistics: rogue-net divides the sum of squares by count - 1, this project by count."""
        count = self._take(f"{theirs}.count").double()
        assert count > 1
        self._found[f"{ours}.count"] = count
        self._found[f"{ours}.mean"] = self._take(f"{theirs}.mean")[columns].double()
        self._found[f"{ours}.squares"] = self._take(f"{theirs}.squares_sum")[columns].double() * count / (count - 1)

    def _embedding(self) -> None:
        config, obs_space, action_space, _ = self._description
        features = {name: entity.features for name, entity in obs_space.entities.items()}
        if has_global_entity(obs_space, action_space):
            features[GLOBAL_ENTITY] = ()
        translation, num_globals = config.translation, len(obs_space.global_features)
        for number, (name, own) in enumerate(features.items()):
            ours, theirs = f"embedding.entities.{number}", f"embedding.embeddings.{name}"
            is_moved = name != translation.reference_entity and set(translation.position_features) <= set(own)
            # our distance feature follows the entity's features, theirs follows the global features
            columns = list(range(len(own) + num_globals + (translation.add_distance and is_moved)))
            columns = (
                columns[: len(own)] + columns[len(own) + num_globals :] + columns[len(own) : len(own) + num_globals]
            )
            if not columns:
                self._found[f"{ours}.vector"] = self._take(f"{theirs}.embedding")
                continue
            self._norm(f"{ours}.norm", f"{theirs}.0", columns)
            self._linear(f"{ours}.project.0", f"{theirs}.1")
            self._found[f"{ours}.project.0.weight"] = self._found[f"{ours}.project.0.weight"][:, columns]
            self._linear(f"{ours}.project.2", f"{theirs}.3")

    def _block(self, ours: str, theirs: str) -> None:
        self._linear(f"{ours}.attention_norm", f"{theirs}.ln1")
        if self._description.config.pooling == "none":
            for part in ("weight", "bias"):
                parts = [self._take(f"{theirs}.attn.{name}.{part}") for name in ("query", "key", "value")]
                self._found[f"{ours}.query_key_value.{part}"] = torch.cat(parts)
            self._linear(f"{ours}.project", f"{theirs}.attn.proj")
        else:
            self._linear(f"{ours}.pool.prepare", f"{theirs}.attn.prepool")
            self._linear(f"{ours}.pool.project", f"{theirs}.attn.proj")
        for number, name in (("0", "ln2"), ("1", "mlp.0"), ("3", "mlp.2")):
            self._linear(f"{ours}.mlp.{number}", f"{theirs}.{name}")

    def _relative_positions(self) -> None:
        config, ours, theirs = (
            self._description.config.relpos,
            "transformer.relative_positions",
            "backbone.relpos_encoding",
        )
        if config.kind == "none":
            return
        self._found[f"{ours}.keys"] = self._take(f"{theirs}.keys.weight")
        self._found[f"{ours}.values"] = self._take(f"{theirs}.values.weight")
        if config.key_projection:
            self._linear(f"{ours}.key_projection", f"{theirs}.kproj")
        if config.value_projection:
            self._linear(f"{ours}.value_projection", f"{theirs}.vproj")
        if config.key_projection or config.value_projection:
            self._norm(f"{ours}.norm", f"{theirs}.relpos_norm", range(len(config.position_features) + 1))
        if config.value_gate != "none":
            self._linear(f"{ours}.gate_projection", f"{theirs}.value_gate_proj")

    def _heads(self) -> None:
        for number, (name, space) in enumerate(self._description.action_space.items()):
            parts = ("query", "key") if isinstance(space, SelectEntityActionSpace) else ("project",)
            for part in parts:
                theirs = "proj" if part == "project" else f"{part}_proj"
                self._linear(f"heads.{number}.{part}", f"action_heads.{name}.{theirs}")
        self._linear("value_head.project", "auxiliary_heads.value")
        self._found |= {"value_head.mean": torch.tensor(0.0), "value_head.deviation": torch.tensor(1.0)}
        for number, name in enumerate(self._description.regression_heads):
            self._linear(f"regression_heads.{number}.project", f"auxiliary_heads.{name}")
