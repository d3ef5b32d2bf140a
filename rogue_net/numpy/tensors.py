"""The tensors of a network: what a policy file must hold for given settings and spaces."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from .reading import ACTORS, Array, Feature

Shapes = dict[str, tuple[int, ...]]


def check_tensors(tensors: Mapping[str, Array], shapes: Shapes) -> None:
    """Raise a ValueError unless there are these tensors and no others, but for regression heads, which no action needs."""
    for name, shape in shapes.items():
        counted = {"norm.count": np.int64, "norm.mean": np.float64, "norm.squares": np.float64}
        dtype = next((each for end, each in counted.items() if name.endswith(f".{end}")), np.float32)
        found = tensors.get(name)
        if found is None or (found.shape, found.dtype) != (shape, dtype):
            given = "missing" if found is None else f"{found.dtype} of shape {found.shape}"
            raise ValueError(f"the tensor {name!r} is {given}; expected {np.dtype(dtype)} of shape {shape}")
    if more := [name for name in tensors if name not in shapes and not name.startswith("regression_heads.")]:
        raise ValueError(f"the settings ask for no tensor {more[0]!r}")


def shapes_of(
    settings: Mapping[str, Any],
    actions: Mapping[str, Mapping[str, Any]],
    features: Mapping[str, list[Feature]],
    num_placed: int,
) -> Shapes:
    """The shape of each tensor, by name.

    Args:
        settings: of the network.
        actions: by name.
        features: those that join in the embedding of each entity type, the global ones last.
        num_placed: how many types have relative positions.
    """
    width, key_width, size = settings["d_model"], settings["d_qk"], settings["d_model"] // settings["n_head"]

    def linear(name: str, inputs: int, outputs: int) -> Shapes:
        return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}

    def norm(name: str) -> Shapes:
        return {f"{name}.weight": (width,), f"{name}.bias": (width,)}

    def running(name: str, count: int) -> Shapes:
        return {f"{name}.count": (), f"{name}.mean": (count,), f"{name}.squares": (count,)}

    shapes: Shapes = {"value_head.mean": (), "value_head.deviation": (), **linear("value_head.project", width, 1)}
    for k, given in enumerate(features.values()):
        kinds, at = [kind["type"] if kind else "" for _, kind in given], f"embedding.entities.{k}"
        shapes |= norm(f"{at}.project.2") if given else {f"{at}.vector": (1, width)}
        if plain := kinds.count(""):
            shapes |= running(f"{at}.norm", plain)
        if inputs := plain + 2 * kinds.count("Angle") + kinds.count("Flag"):
            shapes |= linear(f"{at}.project.0", inputs, width)
        nums = [kind["num"] for _, kind in given if kind and kind["type"] == "Category"]
        shapes |= {f"{at}.tables.{k}": (num, width) for k, num in enumerate(nums)}
    for k in range(settings["n_layer"]):
        at = f"transformer.blocks.{k}"
        shapes |= norm(f"{at}.attention_norm") | norm(f"{at}.mlp.0")
        shapes |= linear(f"{at}.mlp.1", width, 4 * width) | linear(f"{at}.mlp.3", 4 * width, width)
        if settings["pooling"] == "none":
            shapes |= linear(f"{at}.query_key_value", width, 3 * width) | linear(f"{at}.project", width, width)
        else:
            pooled = width * (1 + (settings["pooling"] == "meanmax"))
            shapes |= linear(f"{at}.pool.prepare", width, width) | linear(f"{at}.pool.project", pooled, width)
    if settings["memory"] != "none":
        at = "transformer.memory"
        shapes |= norm(f"{at}.norm_in") | norm(f"{at}.norm_out") | {f"{at}.first": (len(features), width)}
        shapes |= linear(f"{at}.gates", width, 2 * width) | linear(f"{at}.out", width, width)
    if (relpos := settings["relpos"])["kind"] != "none":
        at, components = "transformer.relative_positions", len(relpos["position_features"]) + 1
        buckets = math.prod(2 * extent + 1 if relpos["kind"] == "grid" else extent for extent in relpos["extent"])
        blocks = num_placed if relpos["per_entity_values"] else 1
        shapes |= {f"{at}.keys": (buckets, size), f"{at}.values": (blocks * buckets, size)}
        if relpos["value_gate"] != "none":
            shapes |= linear(f"{at}.gate_projection", width, size)
        for part in ("key_projection", "value_projection"):
            if relpos[part]:
                shapes |= linear(f"{at}.{part}", components, size) | running(f"{at}.norm", components)
    for k, (name, action) in enumerate(actions.items()):
        at, kind, n = f"heads.{k}", action["type"], len(action.get("choices", action.get("low", ())))
        is_in_turn = ACTORS in action.get("after", ())
        if action.get("after"):
            shapes |= linear(f"{at}.reader.hidden", 2 * width, width) | linear(f"{at}.reader.project", width, width)
        tells = is_in_turn or any(name in later.get("after", ()) for later in actions.values())
        if kind.startswith("Select"):
            shapes |= linear(f"{at}.query", width, key_width) | linear(f"{at}.key", width, key_width)
            if tells:
                shapes |= linear(f"{at}.told.selected", width, width) | linear(f"{at}.told.selecting", width, width)
        else:
            shapes |= linear(f"{at}.project", width, n)
            if tells:
                is_number = kind == "ContinuousActionSpace"
                shapes |= linear(f"{at}.told", n, width) if is_number else {f"{at}.told.weight": (n, width)}
        if kind == "ContinuousActionSpace":
            shapes[f"{at}.log_std"] = (n,)
        if action.get("nobody"):
            shapes[f"{at}.nobody"] = (1, key_width)
        if is_in_turn and kind == "SelectEntityActionSpace":
            shapes |= linear(f"{at}.taken", width, 1)
        if action.get("ordered"):
            shapes |= {f"{at}.stop": (1, key_width)} | linear(f"{at}.picked", width, 3 * key_width)
            shapes |= linear(f"{at}.left", 1, key_width) if action.get("budget") else {}
    return shapes
