"""docs/replays.md as a check: what every replay of a policy keeps to."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from entity_gym.replay.page import read_page


def read(path: Path) -> dict[str, Any]:
    """The replay of a page, which keeps to the contract."""
    replay = read_page(path.read_text("utf-8"))
    check_replay(replay)
    return replay


def check_replay(replay: dict[str, Any]) -> None:
    json.dumps(replay, allow_nan=False)
    assert (replay["format"], replay["version"]) == ("enn-ppo replay", 1)
    assert replay["order"] == list(replay["entities"])
    assert replay["episodes"]
    for episode in replay["episodes"]:
        *acting, last = episode["steps"]
        assert len(acting) == episode["length"] > 0
        assert last["done"] and not any(step["done"] for step in acting)
        assert episode["reward"] == pytest.approx(sum(step["reward"] for step in episode["steps"]), abs=1e-4)
        assert acting[0]["reward"] == 0 and not any(acting[0]["rewards"])
        for step in episode["steps"]:
            assert len(step["views"]) == len(replay["players"])
            for view in step["views"]:
                check_view(replay, view, is_last=step is last)


def check_view(replay: dict[str, Any], view: dict[str, Any], is_last: bool) -> None:
    num_entities = 0
    for name, rows in view["features"].items():
        width = len(replay["entities"][name]["features"])
        assert all(len(row) == width for row in rows)
        num_entities += len(rows)
    is_global = any(space["kind"] == "global_categorical" for space in replay["actions"].values())
    has_global = bool(replay["global_features"]) or is_global
    num_entities += has_global
    if replay["global_features"] and view["features"]:
        assert len(view["globals"]) == len(replay["global_features"])
    if is_last:
        assert view["actions"] == {} and view["value"] is None and view["attention"] is None
    for name, decision in view["actions"].items():
        check_decision(replay["actions"][name], decision, num_entities)
    if view["attention"] is not None:
        weights_of(replay, view, num_entities)
    memory = view.get("memory", [])
    assert len(memory) <= num_entities and all(share is None or 0 <= share <= 1 for share in memory)


def check_decision(space: dict[str, Any], decision: dict[str, Any], num_entities: int) -> None:
    actors = decision["actors"]
    assert actors and all(0 <= actor < num_entities for actor in actors) and len(decision["chosen"]) == len(actors)
    if space["kind"] == "continuous":
        return
    if space["kind"] == "select_entities":
        check_sets(space, decision, num_entities)
        return
    if space["kind"] == "select_entity":
        assert all(0 <= actee < num_entities for actee in decision["actees"])
        num_choices = len(decision["actees"]) + space["nobody"]
    else:
        num_choices = len(space["choices"])
    mask = decision.get("mask", [[1] * num_choices] * len(actors))
    for row, (chosen, opened) in enumerate(zip(decision["chosen"], mask, strict=True)):
        assert len(opened) == num_choices
        assert (opened[chosen] == 1) if chosen >= 0 else not any(opened)
        if decision["probs"] is not None:
            probs = decision["probs"][row]
            assert len(probs) == num_choices and all(
                p == 0 for p, is_open in zip(probs, opened, strict=True) if not is_open
            )
            assert sum(probs) == pytest.approx(float(any(opened)), abs=1e-5)
            assert decision["entropy"][row] == pytest.approx(-sum(p * np.log(p) for p in probs if p), abs=1e-4)


def check_sets(space: dict[str, Any], decision: dict[str, Any], num_entities: int) -> None:
    count = len(decision["actees"])
    assert all(0 <= actee < num_entities for actee in decision["actees"])
    for row, chosen in enumerate(decision["chosen"]):
        opened = decision["mask"][row] if "mask" in decision else [1] * count
        assert len(set(chosen)) == len(chosen) and all(opened[column] == 1 for column in chosen)
        most = sum(opened) if space["max"] is None else min(space["max"], sum(opened))
        assert min(space["min"], sum(opened)) <= len(chosen) <= most
        if decision["probs"] is not None:
            probs = decision["probs"][row]
            assert len(probs) == count + space["ordered"] and all(0 <= p <= 1 for p in probs)
            assert all(p == 0 for p, is_open in zip(probs, opened, strict=False) if not is_open)
            if not space["ordered"]:
                entropy = -sum(p * np.log(p) for each in probs for p in (each, 1 - each) if p > 0)
                assert decision["entropy"][row] == pytest.approx(entropy, abs=1e-4)


def weights_of(replay: dict[str, Any], view: dict[str, Any], num_entities: int) -> NDArray[np.float64]:
    """(layers, heads, E, E) weights of a view; those that were not kept are 0."""
    shape = replay["network"]["layers"], replay["network"]["heads"], num_entities
    found = view["attention"]
    if "dense" in found:
        weights = _unpacked(found["dense"], *shape, num_entities) / 65535
        np.testing.assert_allclose(weights.sum(-1)[..., :-1], 1, atol=num_entities / 65535)
        return weights
    indices, kept = (_unpacked(found[name], *shape, found["top"]) for name in ("indices", "weights"))
    weights = np.zeros((*shape, num_entities))
    np.put_along_axis(weights, indices.astype(np.int64), kept / 65535, axis=-1)
    return weights


def _unpacked(text: str, *shape: int) -> NDArray[np.uint16]:
    return np.frombuffer(base64.b64decode(text, validate=True), "<u2").reshape(shape)
