"""Networks of rogue-net 0.1.9, this project's ancestor, as networks of this package: settings, spaces and weights.

The converted network's outputs equal those of the original up to rounding, with the same normalization statistics. With
interpolated angles rounding may decide which sector counts, where things stand exactly at the start of one. Intended differences:
on grids every coordinate is rounded separately (rogue-net: all together); pooling ignores hidden entities; a hidden
reference entity translates nothing; an actor without selectable entities selects none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from entity_gym import (
    ActionSpace,
    CategoricalActionSpace,
    Entity,
    GlobalCategoricalActionSpace,
    ObsSpace,
    SelectEntityActionSpace,
)
from entity_gym.actions.kind import has_global_entity
from entity_gym.errors import nearest
from entity_gym.spaces import GLOBAL_ENTITY
from rogue_net.config import RelposConfig, RelposKind, RogueNetConfig, TranslationConfig
from rogue_net.inputs.global_features import GlobalFeatures
from rogue_net.rogue_net import RogueNet

VALUE = "value"

# ---- the network's description


class Description(NamedTuple):
    """The network's settings and spaces, in this project's classes."""

    config: RogueNetConfig
    obs_space: ObsSpace
    action_space: dict[str, ActionSpace]
    regression_heads: dict[str, int]  # without the value head, which every network has

    def make_net(self) -> RogueNet:
        """Make a network with new weights."""
        return RogueNet(self.config, self.obs_space, self.action_space, self.regression_heads)


# rogue-net's settings -> this project's
NET_NAMES = {name: name for name in ("d_model", "n_layer", "n_head", "d_qk", "pooling", "translation")} | {
    "embd_pdrop": "embedding_dropout",
    "attn_pdrop": "attention_dropout",
    "resid_pdrop": "residual_dropout",
    "relpos_encoding": "relpos",
}
POSITION_NAMES = {name: name for name in ("position_features", "rotation_vec_features", "rotation_angle_feature")}
TRANSLATION_NAMES = POSITION_NAMES | {"reference_entity": "reference_entity", "add_dist_feature": "add_distance"}
RELPOS_NAMES = POSITION_NAMES | {
    **{name: name for name in ("extent", "scale", "interpolate", "per_entity_values", "value_gate")},
    "key_relpos_projection": "key_projection",
    "value_relpos_projection": "value_projection",
}
# [radial][distance] in rogue-net
RELPOS_KINDS: list[list[RelposKind]] = [["grid", "distance"], ["radial", "polar"]]


def read_description(given: Mapping[str, Any]) -> Description:
    """Translate a description with rogue-net's names.

    Raises:
        ValueError: a setting is missing or unknown, or does not work in rogue-net or works differently here.
    """
    for key in ("net", "obs_space", "action_space", "regression_heads"):
        if not isinstance(given.get(key), Mapping):
            raise ValueError(f"the description's {key} must be a mapping, got {given.get(key)!r}")
    spaces = given["obs_space"]
    entities = {name: Entity(list(features)) for name, features in spaces.get("entities", {}).items()}
    obs_space = ObsSpace(entities, list(spaces.get("global_features", ())))
    action_space = {name: _action_space(name, space) for name, space in given["action_space"].items()}
    heads = dict(given["regression_heads"])
    if heads.pop(VALUE, None) != 1:
        raise ValueError(
            f"regression_heads must hold `{VALUE}: 1`, the value of a frame; got {given['regression_heads']}"
        )
    config = _config(given["net"], obs_space)
    if obs_space.global_features and not any(space.is_global for space in action_space.values()):
        config = replace(config, global_entity=False)
    return Description(config, obs_space, action_space, heads)


def _action_space(name: str, space: Any) -> ActionSpace:
    makers: dict[str, Callable[[], ActionSpace]] = {
        "categorical": lambda: CategoricalActionSpace(space["choices"]),
        "global_categorical": lambda: GlobalCategoricalActionSpace(space["choices"]),
        "select_entity": lambda: SelectEntityActionSpace(),
    }
    kind = space.get("kind") if isinstance(space, Mapping) else None
    if kind not in makers:
        raise ValueError(f"action_space.{name}.kind is {kind!r}; {nearest(str(kind), makers)}")
    if kind != "select_entity" and "choices" not in space:
        raise ValueError(f"action_space.{name} has no choices; a {kind} action needs a list of them")
    return makers[kind]()


def _config(net: Mapping[str, Any], obs_space: ObsSpace) -> RogueNetConfig:
    settings = _renamed("net", net, NET_NAMES)
    settings["relpos"] = _relpos(settings.get("relpos") or {})
    settings["translation"] = _translation(settings.get("translation") or {}, obs_space)
    settings["pooling"] = settings.get("pooling") or "none"
    return RogueNetConfig(**settings)


def _translation(given: Mapping[str, Any], obs_space: ObsSpace) -> TranslationConfig:
    settings = _renamed("net.translation", given, TRANSLATION_NAMES)
    shared = set(settings.get("position_features", ())) & set(obs_space.global_features)
    if shared:
        raise ValueError(
            f"net.translation.position_features names the global features {sorted(shared)}: rogue-net moves them as if they "
            "were coordinates of every entity, here globals stay as they are"
        )
    return TranslationConfig(**_without_none(settings))


def _relpos(given: Mapping[str, Any]) -> RelposConfig:
    if not given:
        return RelposConfig()
    given = dict(given)
    kind = RELPOS_KINDS[bool(given.pop("radial", False))][bool(given.pop("distance", False))]
    for defect in ("exclude_entities", "per_entity_projections", "enable_negative_distance_weight_bug"):
        if given.pop(defect, False):
            raise ValueError(
                f"net.relpos_encoding.{defect} does not work in rogue-net, and its effect there cannot be converted"
            )
    settings = _renamed("net.relpos_encoding", given, RELPOS_NAMES)
    if settings.get("value_gate", "") is None:
        settings["value_gate"] = "none"
    if kind in ("grid", "distance"):  # rogue-net does not rotate these
        settings.pop("rotation_vec_features", None)
        settings.pop("rotation_angle_feature", None)
    elif settings.get("key_projection") or settings.get("value_projection"):
        raise ValueError(
            f"net.relpos_encoding has projections and is {kind}: rogue-net projects differences that are not rotated, here "
            "they are"
        )
    elif settings.get("rotation_vec_features") or settings.get("rotation_angle_feature"):
        settings["world_axis_at_zero"] = True
    if kind in ("radial", "polar") and settings.get("interpolate"):
        settings["next_sector_at_start"] = True
    return RelposConfig(kind=kind, **_without_none(settings))


def _renamed(where: str, given: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    for name in given:
        if name not in names:
            raise ValueError(f"{where}.{name} is not a setting of rogue-net 0.1.9; {nearest(name, names)}")
    return {names[name]: value for name, value in given.items()}


def _without_none(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}


# ---- rules: rogue-net's tensors -> this project's


class Rule(NamedTuple):
    """A rule that makes one tensor of this project (ours) from tensors of rogue-net (theirs)."""

    ours: str
    theirs: tuple[str, ...]
    make: Callable[..., Tensor]


def rename(ours: str, theirs: str) -> Rule:
    """A rule that renames a tensor."""
    return Rule(ours, (theirs,), lambda tensor: tensor)


def linear(ours: str, theirs: str) -> list[Rule]:
    """Rules for a module with a weight and a bias."""
    return [rename(f"{ours}.{part}", f"{theirs}.{part}") for part in ("weight", "bias")]


def reordered(tensor: Tensor, columns: Sequence[int]) -> Tensor:
    """Reorder columns. A tensor with a wrong number of columns is returned unchanged: `convert` reports it."""
    return tensor[..., columns] if tensor.shape[-1] == len(columns) else tensor


def norm(ours: str, theirs: str, columns: Sequence[int]) -> list[Rule]:
    """Rules for running statistics: rogue-net divides the sum of squares by count - 1, this project by count."""

    def mean(mean: Tensor, count: Tensor) -> Tensor:
        return reordered(mean, columns).double() * (count > 1)

    def squares(total: Tensor, count: Tensor) -> Tensor:
        correction = count.double() / (count.double() - 1).clamp(min=1) * (count > 1)
        return reordered(total, columns) * correction

    counts = f"{theirs}.count"
    return [
        Rule(f"{ours}.count", (counts,), lambda count: count * (count > 1)),
        Rule(f"{ours}.mean", (f"{theirs}.mean", counts), mean),
        Rule(f"{ours}.squares", (f"{theirs}.squares_sum", counts), squares),
    ]


def embedding_rules(description: Description) -> Iterator[Rule]:
    """Rules for the embedding of each entity type; ours are numbered, since a module's name allows fewer characters."""
    config, translation = description.config, description.config.translation
    obs_space = GlobalFeatures(config, description.obs_space, description.action_space).obs_space
    features = {name: entity.features for name, entity in obs_space.entities.items()}
    if has_global_entity(obs_space, description.action_space):
        features[GLOBAL_ENTITY] = ()
    num_globals = len(obs_space.global_features)
    for number, (name, own) in enumerate(features.items()):
        ours, theirs = f"embedding.entities.{number}", f"embedding.embeddings.{name}"
        has_distance = (
            translation.add_distance
            and name != translation.reference_entity
            and set(translation.position_features) <= set(own)
        )
        # our distance feature follows the entity's features, theirs follows the global features
        num_columns = len(own) + num_globals + has_distance
        columns = list(range(num_columns))
        columns = columns[: len(own)] + columns[len(own) + num_globals :] + columns[len(own) : len(own) + num_globals]
        if num_columns == 0:
            yield rename(f"{ours}.vector", f"{theirs}.embedding")
            continue
        yield from norm(f"{ours}.norm", f"{theirs}.0", columns)
        weight, bias = linear(f"{ours}.project.0", f"{theirs}.1")
        yield from (weight._replace(make=lambda tensor, columns=columns: reordered(tensor, columns)), bias)
        yield from linear(f"{ours}.project.2", f"{theirs}.3")


def block_rules(description: Description) -> Iterator[Rule]:
    """Rules for transformer blocks; our queries, keys and values are one linear layer."""
    for number in range(description.config.n_layer):
        ours, theirs = f"transformer.blocks.{number}", f"backbone.blocks.{number}"
        yield from linear(f"{ours}.attention_norm", f"{theirs}.ln1")
        if description.config.pooling == "none":
            for part in ("weight", "bias"):
                parts = tuple(f"{theirs}.attn.{name}.{part}" for name in ("query", "key", "value"))
                yield Rule(f"{ours}.query_key_value.{part}", parts, lambda *tensors: torch.cat(tensors))
            yield from linear(f"{ours}.project", f"{theirs}.attn.proj")
        else:
            yield from linear(f"{ours}.pool.prepare", f"{theirs}.attn.prepool")
            yield from linear(f"{ours}.pool.project", f"{theirs}.attn.proj")
        yield from linear(f"{ours}.mlp.0", f"{theirs}.ln2")
        yield from linear(f"{ours}.mlp.1", f"{theirs}.mlp.0")
        yield from linear(f"{ours}.mlp.3", f"{theirs}.mlp.2")


def relpos_rules(description: Description) -> Iterator[Rule]:
    """Rules for relative positions, which all blocks share."""
    config, ours, theirs = description.config.relpos, "transformer.relative_positions", "backbone.relpos_encoding"
    if config.kind == "none":
        return
    yield rename(f"{ours}.keys", f"{theirs}.keys.weight")
    yield rename(f"{ours}.values", f"{theirs}.values.weight")
    if config.key_projection:
        yield from linear(f"{ours}.key_projections.0", f"{theirs}.kproj")
    if config.value_projection:
        yield from linear(f"{ours}.value_projections.0", f"{theirs}.vproj")
    if config.key_projection or config.value_projection:
        yield from norm(f"{ours}.norm", f"{theirs}.relpos_norm", range(len(config.position_features) + 1))
    if config.value_gate != "none":
        yield from linear(f"{ours}.gate_projection", f"{theirs}.value_gate_proj")


def head_rules(description: Description) -> Iterator[Rule]:
    """Rules for heads of actions, values and regressions; ours are numbered like embeddings."""
    for number, (name, space) in enumerate(description.action_space.items()):
        if isinstance(space, SelectEntityActionSpace):
            yield from linear(f"heads.{number}.query", f"action_heads.{name}.query_proj")
            yield from linear(f"heads.{number}.key", f"action_heads.{name}.key_proj")
        else:
            yield from linear(f"heads.{number}.project", f"action_heads.{name}.proj")
    yield from linear("value_head.project", f"auxiliary_heads.{VALUE}")
    yield Rule("value_head.mean", (), lambda: torch.tensor(0.0))  # their values are not scaled
    yield Rule("value_head.deviation", (), lambda: torch.tensor(1.0))
    for number, name in enumerate(description.regression_heads):
        yield from linear(f"regression_heads.{number}.project", f"auxiliary_heads.{name}")


def rules(description: Description) -> list[Rule]:
    """All rules for a network."""
    parts: Iterable[Callable[[Description], Iterator[Rule]]] = (embedding_rules, block_rules, relpos_rules, head_rules)
    return [rule for part in parts for rule in part(description)]


def is_no_weight(name: str) -> bool:
    """Whether a tensor of rogue-net's state_dict is unused, constant, or a duplicate.

    All blocks share the relative positions, whose tensors are duplicated in every block.
    """
    unused = ("relpos_encoding.strides", "relpos_encoding.extent_tensor", "relpos_encoding.distance_values.weight")
    return name.endswith(unused) or ".attn.relpos_encoding." in name


def convert(weights: Mapping[str, Tensor], description: Description) -> dict[str, Tensor]:
    """Convert a `state_dict` of rogue-net.

    Args:
        weights: name -> tensor, the state_dict of rogue-net's network.
        description: of that network.

    Returns:
        The state_dict for `description.make_net()`.

    Raises:
        ValueError: a tensor has another shape than described, or tensors are missing or left over; the message names them.
    """
    expected = description.make_net().state_dict()
    table = rules(description)
    assert [rule.ours for rule in table if rule.ours not in expected] == []
    assert expected.keys() - {rule.ours for rule in table} == set()

    needed = dict.fromkeys(name for rule in table for name in rule.theirs)
    missing = [name for name in needed if name not in weights]
    left_over = [name for name in weights if name not in needed and not is_no_weight(name)]
    if missing or left_over:
        raise ValueError(
            f"the weights are not those of the network that is described: missing {missing or 'nothing'}, "
            f"without a place {left_over or 'nothing'}"
        )
    converted = {}
    for rule in table:
        tensor = rule.make(*(weights[name] for name in rule.theirs))
        if tensor.shape != expected[rule.ours].shape:
            raise ValueError(
                f"{' and '.join(rule.theirs)} make {rule.ours} of shape {tuple(tensor.shape)}; by the description it is "
                f"{tuple(expected[rule.ours].shape)}"
            )
        converted[rule.ours] = tensor.to(expected[rule.ours].dtype).contiguous()
    return converted


def is_parameter(name: str) -> bool:
    """Whether a tensor of rogue-net's state_dict is a parameter, one that no other name has: buffers are not."""
    buffers = (".count", ".mean", ".squares_sum", "relpos_encoding.strides", "relpos_encoding.extent_tensor")
    return not name.endswith(buffers) and ".attn.relpos_encoding." not in name


def convert_optimizer(
    optimizer: Mapping[str, Any], weights: Mapping[str, Tensor], description: Description
) -> dict[str, dict[str, Tensor]]:
    """Convert Adam's moment estimates, by the rules of the weights.

    Args:
        optimizer: `state_dict()` of AdamW over all parameters of rogue-net's network, in their order.
        weights: the network's state_dict, in its original order.
        description: of the network.

    Returns:
        Name of a parameter of `description.make_net()` -> its `step`, `exp_avg` and `exp_avg_sq`; parameters that never had a
        gradient are missing.

    Raises:
        ValueError: the optimizer is of other parameters.
    """
    names = [name for name in weights if is_parameter(name)]
    numbers = [number for group in optimizer["param_groups"] for number in group["params"]]
    if len(names) != len(numbers):
        raise ValueError(f"the optimizer has {len(numbers)} parameters and the network {len(names)}")
    moments = {name: optimizer["state"].get(number) for name, number in zip(names, numbers, strict=True)}
    for name, known in moments.items():
        if known and known["exp_avg"].shape != weights[name].shape:
            raise ValueError(
                f"the optimizer has {name} of shape {tuple(known['exp_avg'].shape)}, the network of {tuple(weights[name].shape)}"
            )
    parameters = {name for name, _ in description.make_net().named_parameters()}
    converted = {}
    for rule in rules(description):
        sources = [moments[name] for name in rule.theirs if rule.ours in parameters]
        if sources and all(sources):
            converted[rule.ours] = {
                "step": torch.stack([torch.as_tensor(source["step"]) for source in sources]).amax().float(),
                **{
                    kind: rule.make(*(source[kind] for source in sources)).float().contiguous()
                    for kind in ("exp_avg", "exp_avg_sq")
                },
            }
    return converted
