"""Records outputs of rogue-net 0.1.9, this project's ancestor, on small batches.

For tests/rogue_net/test_conformance.py. Needs an interpreter with rogue-net, and imports nothing of this project:

    PEER/bin/python scripts/record_rogue_net.py tests/rogue_net/fixtures

Every file is an .npz without pickles. `description` is JSON: the network's settings with rogue-net's names, the spaces, the
auxiliary heads, name and shape of each tensor of the state_dict. A ragged array is stored as `.../values` and `.../lengths`, with
one length per frame.

    weights                                    the state_dict's tensors, flat, one after another
    features/TYPE, visible/TYPE                the network's input
    actors/ACTION, actees/ACTION, mask/ACTION  the action masks; mask has one row per actor
    actions/ACTION                             (A,) the evaluated choices; of select-entity, indices into the frame's actees
    logits/ACTION                              normalized: (A, C), or (P,) for the P pairs of an actor and an actee
    log_probs/ACTION, entropies/ACTION         (A,)
    regressions/HEAD                           (B, n) of every auxiliary head; `value` is one of them

All parameters and statistics are moved away from their initial values, so that every part of the network affects the outputs.
Positions avoid the edges of buckets, where rounding decides, but for entities without a heading, which see themselves exactly at
the start of the first sector. Options that do not work in rogue-net are left out: projections per entity type, interpolated grids
and excluded types. Relative projections are without rotation, which rogue-net ignores. In rogue-net `pooling` fails, because its
forward is given one argument too many, the visibility; this script calls it without.
"""

from __future__ import annotations

import argparse
import json
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from entity_gym.env.environment import (
    CategoricalActionSpace,
    Entity,
    GlobalCategoricalActionSpace,
    ObsSpace,
    SelectEntityActionSpace,
)
from entity_gym.env.vec_env import VecCategoricalActionMask, VecSelectEntityActionMask
from entity_gym.simple_trace import Tracer
from ragged_buffer import RaggedBufferBool, RaggedBufferF32, RaggedBufferI64
from rogue_net.relpos_encoding import RelposEncodingConfig
from rogue_net.translate_positions import TranslationConfig

from rogue_net import transformer
from rogue_net.rogue_net import RogueNet, RogueNetConfig

GLOBAL = "__global__"
MARGIN = 0.02  # least distance of positions from the edges of buckets, in buckets

# ---- worlds: entity types and their features, globals, actions

MOVE = {"move": {"kind": "categorical", "choices": ["stay", "left", "right", "jump"]}}
AIM = {"aim": {"kind": "select_entity"}}
MODE = {"mode": {"kind": "global_categorical", "choices": ["attack", "defend", "hide"]}}


def world(
    entities: dict[str, list[str]], actions: dict[str, Any], global_features: tuple[str, ...] = ()
) -> dict[str, Any]:
    return {"entities": entities, "global_features": list(global_features), "actions": actions}


PLAIN = world({"Ship": ["x", "y", "hp"], "Flag": [], "Mine": ["y", "x"]}, {**MOVE, **AIM})
GLOBALS = world(PLAIN["entities"], {**MODE, **MOVE, **AIM}, ("time", "wind"))
JOINED_GLOBALS = world(PLAIN["entities"], {**MOVE, **AIM}, ("time", "hp", "wind"))
GLOBAL_ACTION = world(PLAIN["entities"], {**MOVE, **MODE})
POSES = ["x", "y", "heading", "cos", "sin"]
FIELD = world({"Base": POSES, "Ship": ["hp", *POSES], "Mine": ["size", "y", "x"]}, {**MOVE, **AIM})
POSED_FIELD = world({"Base": POSES, "Ship": ["hp", *POSES], "Mine": ["size", *POSES]}, {**MOVE, **AIM})
PLACED_GLOBALS = world(FIELD["entities"], {**MOVE, **MODE}, ("x", "y", "time"))
LINE = world({"Ship": ["x", "hp"], "Mine": ["x"]}, {**MOVE, **AIM})
SPACE = world({"Ship": ["z", "x", "y", "hp"], "Mine": ["x", "y", "z"]}, {**MOVE, **AIM})

# ---- options

XY = {"position_features": ["x", "y"]}
GRID = {**XY, "extent": [2, 3]}
HEADING = {**XY, "rotation_angle_feature": "heading"}
VECTOR = {**XY, "rotation_vec_features": ["cos", "sin"]}
DISTANCE = {**XY, "distance": True, "extent": [4], "scale": 1.7}
POLAR = {"radial": True, "distance": True, "extent": [5, 3], "scale": 2.3}
MOVED = {**XY, "reference_entity": "Base"}


class Case(NamedTuple):
    """A set of options."""

    world: dict[str, Any]
    net: dict[str, Any] = {}
    heads: dict[str, int] = {"value": 1}
    hidden: bool = False
    lengths: tuple[int, ...] = ()  # entities per frame, the same for every type; (): random


def small(world: dict[str, Any] = PLAIN, n_layer: int = 1, **net: Any) -> Case:
    return Case(world, {"d_model": 16, "n_layer": n_layer, **net})


def relpos(settings: dict[str, Any], world: dict[str, Any] = FIELD, n_layer: int = 1, **net: Any) -> Case:
    return small(world, n_layer, relpos_encoding=settings, **net)


CASES = {
    "default": Case(PLAIN),
    "no_layers": small(n_layer=0),
    "one_head": small(n_head=1),
    "four_heads_width_64": Case(PLAIN, {"d_model": 64, "n_head": 4, "n_layer": 1}),
    "equal_lengths": small()._replace(lengths=(2, 2, 2)),
    "d_qk_8": small(d_qk=8),
    "globals": small(GLOBALS, n_layer=2),
    "global_action": small(GLOBAL_ACTION),
    "globals_without_action": small(JOINED_GLOBALS, n_layer=2)._replace(hidden=True),
    "visibility": small(n_layer=2)._replace(hidden=True),
    "visibility_globals": small(GLOBALS)._replace(hidden=True),
    "visibility_equal_lengths": small()._replace(hidden=True, lengths=(2, 2, 2)),
    "regression_heads": small()._replace(heads={"distance": 3, "value": 1}),
    **{f"pooling_{pooling}": small(n_layer=2, pooling=pooling) for pooling in ("mean", "max", "meanmax")},
    "translation": small(FIELD, translation=MOVED),
    "translation_vector": small(FIELD, translation={**MOVED, **VECTOR}),
    "translation_angle": small(FIELD, translation={**MOVED, **HEADING}),
    "translation_distance": small(FIELD, translation={**MOVED, "add_dist_feature": True}),
    "translation_angle_distance": small(FIELD, translation={**MOVED, **HEADING, "add_dist_feature": True}),
    "translation_globals": small(
        world(FIELD["entities"], {**MOVE, **MODE}, ("time", "wind")),
        translation={**MOVED, **VECTOR, "add_dist_feature": True},
    ),
    "grid": relpos(GRID, n_layer=2),
    "grid_scale": relpos({**GRID, "scale": 2.0}),
    "grid_equal_lengths": relpos(GRID)._replace(lengths=(2, 2, 2)),
    "grid_line": relpos({"position_features": ["x"], "extent": [3]}, LINE),
    "grid_space": relpos({"position_features": ["x", "y", "z"], "extent": [1, 2, 1]}, SPACE),
    "grid_globals": relpos(GRID, PLACED_GLOBALS),
    "grid_visibility": relpos(GRID)._replace(hidden=True),
    "grid_four_heads": relpos(GRID, n_head=4, d_model=32),
    "grid_per_entity_values": relpos({**GRID, "per_entity_values": True}),
    "grid_key_projection": relpos({**GRID, "key_relpos_projection": True}),
    "grid_value_projection": relpos({**GRID, "value_relpos_projection": True}),
    "grid_projections": relpos(
        {**GRID, "key_relpos_projection": True, "value_relpos_projection": True, "per_entity_values": True}
    ),
    **{
        f"grid_gate_{gate or 'none'}": relpos({**GRID, "value_gate": gate})
        for gate in (None, "linear", "gelu", "sigmoid")
    },
    "radial_vector": relpos({**VECTOR, "radial": True, "extent": [5]}),
    "radial_angle": relpos({**HEADING, "radial": True, "extent": [6]}),
    "radial_vector_interpolated": relpos({**VECTOR, "radial": True, "extent": [5], "interpolate": True}, POSED_FIELD),
    "radial_angle_interpolated": relpos(
        {**HEADING, "radial": True, "extent": [6], "interpolate": True, "per_entity_values": True}, POSED_FIELD
    ),
    "distance": relpos(DISTANCE),
    "distance_interpolated": relpos({**DISTANCE, "interpolate": True, "per_entity_values": True}),
    "distance_projections": relpos({**DISTANCE, "key_relpos_projection": True, "value_relpos_projection": True}),
    "distance_space": relpos({**DISTANCE, "position_features": ["x", "y", "z"]}, SPACE),
    "polar_vector": relpos({**VECTOR, **POLAR, "per_entity_values": True}),
    "polar_angle": relpos({**HEADING, **POLAR}),
    "polar_vector_interpolated": relpos({**VECTOR, **POLAR, "interpolate": True}, POSED_FIELD, n_layer=2),
    "polar_angle_interpolated": relpos(
        {**HEADING, **POLAR, "interpolate": True, "per_entity_values": True}, POSED_FIELD
    )._replace(hidden=True),
    # the entities without a heading see themselves exactly at the start of a sector
    "radial_vector_interpolated_unposed": relpos({**VECTOR, "radial": True, "extent": [5], "interpolate": True}),
    "polar_angle_interpolated_unposed": relpos({**HEADING, **POLAR, "interpolate": True}, n_layer=2)._replace(
        hidden=True
    ),
    "globals_without_action_translated": relpos(
        DISTANCE,
        world(FIELD["entities"], {**MOVE, **AIM}, ("time", "wind")),
        translation={**MOVED, **VECTOR, "add_dist_feature": True},
    ),
    "polar_angle_interpolated_translated": relpos(
        {**HEADING, **POLAR, "interpolate": True}, translation={**MOVED, **HEADING, "add_dist_feature": True}
    ),
    "distance_of_translated": relpos(DISTANCE, translation={**MOVED, **HEADING, "add_dist_feature": True}),
}

# ---- batches


def lengths_of(case: Case, rng: np.random.Generator, frames: int) -> dict[str, np.ndarray]:
    """Numbers of entities per frame, by type: at least one in all, one base, at times no ship."""
    drawn = {}
    for number, name in enumerate(case.world["entities"]):
        low, high = {"Base": (1, 1), "Flag": (0, 1), "Ship": (0, 3), "Mine": (1, 4)}[name]
        drawn[name] = rng.integers(low, high + 1, frames)
        if case.lengths:
            drawn[name][:] = case.lengths[number]
    if (
        case.world["global_features"] or "mode" in case.world["actions"]
    ):  # without the action the row only joins the others
        drawn[GLOBAL] = np.ones(frames, dtype=np.int64)
    return drawn


def entity_features(case: Case, rng: np.random.Generator, names: list[str], count: int) -> np.ndarray:
    """(count, F) random features: coordinates (whole numbers for grids), headings as angles and vectors, other numbers."""
    settings = case.net.get("relpos_encoding", {})
    on_grid = bool(settings) and not settings.get("radial") and not settings.get("distance")
    columns = {name: rng.normal(0.5, 2.0, count) for name in names}
    for name in [name for name in ("x", "y", "z") if name in names]:
        whole = rng.integers(-2, 3, count) * settings.get("scale", 1.0)
        columns[name] = whole if on_grid else rng.uniform(-4, 4, count)
    if "heading" in names:
        columns["heading"] = rng.uniform(-3, 3, count)
        columns["cos"], columns["sin"] = np.cos(columns["heading"]), np.sin(columns["heading"])
    return np.stack([columns[name] for name in names], axis=1) if names else np.zeros((count, 0))


def near_an_edge(settings: dict[str, Any], frame: list[dict[str, float]]) -> bool:
    """Whether a pair of the frame's entities is so near the edge of two buckets that rounding could decide.

    The pair of an entity without a heading with itself is exactly at the start of the first sector, without rounding.
    """
    if not settings.get("radial") and not settings.get("distance"):
        return False
    here = np.array([[entity[name] for name in settings["position_features"]] for entity in frame])
    difference = here[:, None] - here[None]
    others = ~np.eye(len(frame), dtype=bool)
    buckets = []
    if settings.get("distance"):
        buckets.append((np.linalg.norm(difference, axis=-1) / settings["scale"])[others])
    if settings.get("radial"):
        heading = np.array([entity.get("heading", 0.0) for entity in frame])
        angle = np.arctan2(difference[..., 1], difference[..., 0]) - heading[:, None]
        turned = others | (heading != 0)[:, None]
        buckets.append((angle / (2 * np.pi) * settings["extent"][0])[turned])
    return any(bool((np.abs(bucket - np.round(bucket)) < MARGIN).any()) for bucket in buckets)


def draw_features(case: Case, rng: np.random.Generator, lengths: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Entity type -> (entities of all frames, F) float32; frames with a pair near an edge are drawn again."""
    entities = {**case.world["entities"], GLOBAL: case.world["global_features"]}
    frames: list[dict[str, np.ndarray]] = []
    while len(frames) < len(next(iter(lengths.values()))):
        drawn = {
            name: entity_features(case, rng, entities[name], counts[len(frames)]) for name, counts in lengths.items()
        }
        placed = [(entities[name], rows) for name, rows in drawn.items() if name != GLOBAL]
        rows = [dict(zip(names, row, strict=True)) for names, rows in placed for row in rows]
        if not near_an_edge(case.net.get("relpos_encoding", {}), rows):
            frames.append(drawn)
    return {name: np.concatenate([frame[name] for frame in frames]).astype(np.float32) for name in lengths}


def draw_batch(case: Case, rng: np.random.Generator, frames: int = 6) -> dict[str, np.ndarray]:
    """Draw the network's input, under the names of the file."""
    lengths = lengths_of(case, rng, frames)
    batch = {}
    for name, values in draw_features(case, rng, lengths).items():
        batch[f"features/{name}/values"], batch[f"features/{name}/lengths"] = values, lengths[name]
        if case.hidden and name in ("Mine", "Ship"):
            batch[f"visible/{name}/values"] = rng.random((len(values), 1)) < 0.5
            batch[f"visible/{name}/lengths"] = lengths[name]
    starts, before = {}, np.zeros(frames, dtype=np.int64)
    for name, counts in lengths.items():
        starts[name], before = before, before + counts

    def choose(key: str, names: list[str], share: float) -> None:
        chosen = [
            [starts[name][b] + i for name in names for i in range(lengths[name][b]) if rng.random() < share]
            for b in range(frames)
        ]
        batch[f"{key}/values"] = np.array([[i] for frame in chosen for i in frame], dtype=np.int64).reshape(-1, 1)
        batch[f"{key}/lengths"] = np.array([len(frame) for frame in chosen], dtype=np.int64)

    for name, space in case.world["actions"].items():
        if space["kind"] == "select_entity":
            choose(f"actors/{name}", ["Ship"], 0.8)
            choose(f"actees/{name}", ["Mine", "Ship"], 1.0)
        elif space["kind"] == "global_categorical":
            choose(f"actors/{name}", [GLOBAL], 1.0)
        else:
            choose(f"actors/{name}", ["Mine", "Ship"], 1.0)
            mask = rng.random((len(batch[f"actors/{name}/values"]), len(space["choices"]))) < 0.7
            mask[:, 0] = True
            batch[f"mask/{name}"] = mask
    return batch


# ---- rogue-net


def make_net(case: Case) -> RogueNet:
    """Make a network in which every parameter affects the outputs."""
    net = dict(case.net)
    if "relpos_encoding" in net:
        net["relpos_encoding"] = RelposEncodingConfig(**net["relpos_encoding"])
    if "translation" in net:
        net["translation"] = TranslationConfig(**net["translation"])
    kinds = {"categorical": CategoricalActionSpace, "global_categorical": GlobalCategoricalActionSpace}
    actions = {
        name: kinds[space["kind"]](space["choices"]) if "choices" in space else SelectEntityActionSpace()
        for name, space in case.world["actions"].items()
    }
    entities = {name: Entity(features=features) for name, features in case.world["entities"].items()}
    obs_space = ObsSpace(global_features=list(case.world["global_features"]), entities=entities)
    made = RogueNet(RogueNetConfig(**net), obs_space, actions, dict(case.heads))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.8 / made.d_model**0.5)
            parameter.copy_(parameter.half())  # fewer digits make smaller files
    return made


def ask(net: RogueNet, case: Case, batch: dict[str, np.ndarray], actions: dict[str, np.ndarray] | None) -> Any:
    """The network's outputs for given `actions`; None: it samples them."""

    def ragged(kind: Any, key: str) -> Any:
        return kind.from_flattened(batch[f"{key}/values"], batch[f"{key}/lengths"])

    masks: dict[str, Any] = {}
    for name, space in case.world["actions"].items():
        actors = ragged(RaggedBufferI64, f"actors/{name}")
        if space["kind"] == "select_entity":
            masks[name] = VecSelectEntityActionMask(actors, ragged(RaggedBufferI64, f"actees/{name}"))
        else:
            mask, counts = batch.get(f"mask/{name}"), batch[f"actors/{name}/lengths"]
            masks[name] = VecCategoricalActionMask(
                actors, None if mask is None else RaggedBufferBool.from_flattened(mask, counts)
            )
    types = [key.split("/")[1] for key in batch if key.startswith("features/") and key.endswith("/values")]
    with torch.no_grad():
        return net.get_action_and_auxiliary(
            {name: ragged(RaggedBufferF32, f"features/{name}") for name in types},
            {name: ragged(RaggedBufferBool, f"visible/{name}") for name in types if f"visible/{name}/values" in batch},
            masks,
            Tracer(cuda=False),
            None
            if actions is None
            else {
                name: RaggedBufferI64.from_flattened(values.reshape(-1, 1), batch[f"actors/{name}/lengths"])
                for name, values in actions.items()
            },
        )


def answers(case: Case, batch: dict[str, np.ndarray], answer: Any) -> dict[str, np.ndarray]:
    """The network's outputs without padding, under the names of the file."""
    _, log_probs, entropies, _, regressions, logits = answer
    said = {f"regressions/{name}": values for name, values in regressions.items()}
    for name in case.world["actions"]:
        said[f"log_probs/{name}"], said[f"entropies/{name}"] = log_probs[name], entropies[name]
        if f"actees/{name}/lengths" in batch:
            sizes = (batch[f"actors/{name}/lengths"], batch[f"actees/{name}/lengths"])
            padded = zip(logits[name], *sizes, strict=True)
            pairs = [rows[:actors, :actees].flatten() for rows, actors, actees in padded]
            said[f"logits/{name}"] = torch.cat(pairs)
        else:
            said[f"logits/{name}"] = logits[name]
    return {name: tensor.numpy() for name, tensor in said.items()}


def record(name: str, case: Case) -> dict[str, np.ndarray]:
    """The contents of a file."""
    seed = zlib.crc32(name.encode())
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    net = make_net(case)
    net.train()
    for _ in range(4):  # normalization statistics change in every forward of training
        ask(net, case, draw_batch(case, rng), None)
    net.eval()
    batch = draw_batch(case, rng)
    for name, features in case.world["entities"].items():
        if "hp" in features:
            batch[f"features/{name}/values"][0, features.index("hp")] = 100.0  # normalization clips this value
    sampled = ask(net, case, batch, None)[0]
    actions = {action: buffer.as_array().reshape(-1) for action, buffer in sampled.items()}
    # all blocks share the encoding, whose tensors the state_dict repeats for every block
    weights = {key: value for key, value in net.state_dict().items() if ".attn.relpos_encoding." not in key}
    description = {
        "net": case.net,
        "obs_space": {"entities": case.world["entities"], "global_features": case.world["global_features"]},
        "action_space": case.world["actions"],
        "regression_heads": case.heads,
        "weights": {key: list(value.shape) for key, value in weights.items()},
    }
    return {
        "description": np.array(json.dumps(description)),
        "weights": torch.cat([value.flatten().float() for value in weights.values()]).numpy(),
        **batch,
        **{f"actions/{action}": values for action, values in actions.items()},
        **answers(case, batch, ask(net, case, batch, actions)),
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("folder", type=Path, help="where the .npz files go")
    arguments.add_argument("--only", nargs="*", choices=CASES, metavar="CASE", help="record these and leave the others")
    given = arguments.parse_args()
    torch.set_num_threads(1)
    forward = transformer.Pool.forward
    transformer.Pool.forward = lambda self, x, batch_index, shape, visible=None: forward(self, x, batch_index, shape)
    given.folder.mkdir(parents=True, exist_ok=True)
    for name in given.only or CASES:
        path = given.folder / f"{name}.npz"
        np.savez_compressed(path, **record(name, CASES[name]))
        print(f"{path.stat().st_size:>8} {path}")


if __name__ == "__main__":
    main()
