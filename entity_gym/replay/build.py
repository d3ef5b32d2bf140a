"""Build the JSON of a replay, in the format of docs/replays.md, from observations, actions and what a policy says of them.

Shapes: N frames of a batch, E entities of one frame with the `__global__` entity, n blocks, H heads, k largest weights of a row.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from numbers import Real
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import ActionSpace
from entity_gym.actions.reading import NO_INDICES, EntityID, Offer
from entity_gym.batch.vec_obs import VecAction, VecActionMask, VecObs
from entity_gym.replay.page import FORMAT, VERSION
from entity_gym.spaces import GLOBAL_ENTITY, Category, FeatureKind, ObsSpace

MOST_DENSE = 64  # entities of a frame whose attention weights are all kept
TOP = 16  # weights of each row that are kept in larger frames
LONGEST_TEXT = 1000  # characters of a value in an info
DECIMALS = 7  # of probabilities
_LARGEST_WHOLE = 2.0**53  # float64 and the numbers of JavaScript are exact up to here

NOTHING = ObsSpace()  # of a live page that waits for the first replay


def build_replay(
    *,
    title: str,
    world: str = "",
    settings: Mapping[str, Any] = MappingProxyType({}),
    obs_space: ObsSpace = NOTHING,
    action_space: Mapping[str, ActionSpace] = MappingProxyType({}),
    players: Sequence[str] = ("",),
    network: Mapping[str, Any] | None = None,
    episodes: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return a replay of these parts."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "title": title,
        "world": world,
        "settings": plain(settings),
        "entities": {
            name: {"features": list(entity.features), "kinds": _kinds(entity.kinds)}
            for name, entity in obs_space.entities.items()
        },
        "global_features": list(obs_space.global_features),
        "global_kinds": _kinds(obs_space.global_kinds),
        "actions": {name: space.described() for name, space in action_space.items()},
        "players": list(players),
        "network": network,
        "episodes": list(episodes),
    }


def build_view(
    obs: VecObs, row: int, obs_space: ObsSpace, ids: Sequence[EntityID | None] | None = None
) -> dict[str, Any]:
    """Return what is to be seen in a frame, without decisions.

    Args:
        obs: N frames.
        row: number of the frame among them.
        obs_space: of the world.
        ids: of the frame's entities, by entity index; None: the numbers in `obs.ids`.
    """
    view: dict[str, Any] = {"features": {}, "globals": None, "value": None, "actions": {}, "attention": None}
    texts: dict[str, list[str]] = {}
    hidden: dict[str, list[int]] = {}
    first = 0
    for name in obs_space.entities:
        rows = obs.features[name][row].values
        view["features"][name] = to_decimals(rows)
        if ids is not None:
            of_type = list(ids[first : first + len(rows)])
        else:
            numbers = obs.ids[name][row].values[:, 0].tolist() if name in obs.ids else []
            of_type = [None if each < 0 else each for each in numbers]
        if any(each is not None for each in of_type):
            texts[name] = ["" if each is None else str(each)[:LONGEST_TEXT] for each in of_type]
        if name in obs.visible and not (flags := obs.visible[name][row].values[:, 0]).all():
            hidden[name] = (~flags).astype(np.int64).tolist()
        first += len(rows)
    if obs_space.global_features:
        view["globals"] = to_decimals(obs.features[GLOBAL_ENTITY][row].values[0])
    else:
        del view["globals"]
    return view | ({"ids": texts} if texts else {}) | ({"hidden": hidden} if hidden else {})


def build_decisions(
    obs: VecObs,
    row: int,
    action_space: Mapping[str, ActionSpace],
    actions: Mapping[str, VecAction],
    logits: Mapping[str, NDArray[np.float32]] | None = None,
    entropies: Mapping[str, NDArray[np.float32]] | None = None,
) -> dict[str, Any]:
    """Return action -> decisions of a frame's actors. Actions that nobody takes are left out.

    Args:
        obs: N frames.
        row: number of the frame among them.
        action_space: of the world.
        actions: action -> N sequences, as `VecEnv.act` takes them.
        logits: action -> rows of this frame, as a policy's are laid out. None: they are not known.
        entropies: action -> (A,) of this frame. None: they are not known.
    """
    found = {}
    for name, space in action_space.items():
        offer = offer_of(obs.action_masks[name], row)
        if not len(offer.actors):
            continue
        known = None if logits is None else logits.get(name)
        found[name] = _decisions(space, offer, actions[name][row].values, known)
        if entropies is not None:
            found[name]["entropy"] = to_decimals(entropies[name])
    return found


def _decisions(
    space: ActionSpace, offer: Offer, values: NDArray[Any], logits: NDArray[np.float32] | None
) -> dict[str, Any]:
    """Return the decisions of a frame's actors without entropies; `values` (A, width), or (A * N, 1), are what they chose."""
    decisions: dict[str, Any] = {"actors": offer.actors.tolist(), "probs": None}
    if not space.discrete:
        decisions["chosen"] = to_decimals(values)
        if logits is not None:  # (A, 2 n): means and standard deviations stand for probabilities
            means, log_stds = np.split(logits, 2, axis=1)
            del decisions["probs"]
            decisions.update(mean=to_decimals(means), std=to_decimals(np.exp(log_stds)))
        return decisions
    decisions["chosen"] = space.for_page(values, offer)
    if logits is not None:
        probs = space.by_actor(np.exp(logits.astype(np.float64)).round(DECIMALS), offer, values)
        for rows, chosen in zip(probs, decisions["chosen"], strict=True):
            if len(rows) > 1:  # an ordered set: what was picked has the probability of its pick
                rows[-1, chosen] = rows[np.arange(len(chosen)), chosen]
        decisions["probs"] = [rows[-1].tolist() for rows in probs]
    _, is_open = space.columns(offer)
    if not is_open.all():
        decisions["mask"] = is_open.astype(np.int64).tolist()
    if space.selects:
        decisions["actees"] = offer.actees.tolist()
    return decisions


def offer_of(mask: VecActionMask, row: int) -> Offer:
    """Return who may do what in a frame."""
    actors = mask.actors[row].values[:, 0]
    actees = NO_INDICES if mask.actees is None else mask.actees[row].values[:, 0]
    is_open = None if mask.mask is None else mask.mask[row].values
    if is_open is not None and mask.actees is not None:
        is_open = is_open.reshape(len(actors), len(actees))
    return Offer(actors, actees, is_open)


def build_attention(weights: NDArray[np.floating[Any]], num_entities: int) -> dict[str, Any]:
    """Return weights (n, H, e, e) as JSON, for a frame of E = `num_entities`.

    Entities behind the first e, which the network does not see, attend to nothing and get no attention.
    """
    missing = num_entities - weights.shape[-1]
    padded = np.pad(weights, ((0, 0), (0, 0), (0, missing), (0, missing)))
    levels = np.rint(padded.clip(0, 1) * 65535).astype("<u2")
    if num_entities <= MOST_DENSE:
        return {"dense": _base64(levels)}
    largest = np.argsort(-levels.astype(np.int64), axis=-1, kind="stable")[..., :TOP]
    return {
        "top": TOP,
        "indices": _base64(largest.astype("<u2")),
        "weights": _base64(np.take_along_axis(levels, largest, axis=-1)),
    }


def to_decimals(values: NDArray[Any]) -> Any:
    """Return nested lists: whole numbers as int, others as the shortest decimal that float32 reads as the same number.

    Numbers that are not finite, which JSON does not have, become None.
    """
    array = np.asarray(values, np.float32)
    if (array == np.round(array)).all() and (np.abs(array) < _LARGEST_WHOLE).all():
        return array.astype(np.int64).tolist()
    shortest: NDArray[Any] = array.astype(str).astype(np.float64).astype(object)
    shortest[~np.isfinite(array)] = None
    return shortest.tolist()


def plain(value: Any) -> Any:
    """Return a value of an info or a setting as JSON holds it; what JSON does not have becomes text, or null if not finite."""
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each) for each in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else None
    return str(value)[:LONGEST_TEXT]


def number(value: float) -> float | None:
    """Return a reward or an estimate, rounded to as many digits as float32 has; None where it is not finite."""
    return float(f"{value:.{DECIMALS}g}") if math.isfinite(value) else None


def _kinds(kinds: Mapping[str, FeatureKind]) -> dict[str, Any]:
    return {
        name: {"kind": type(kind).__name__.lower()} | ({"num": kind.num} if isinstance(kind, Category) else {})
        for name, kind in kinds.items()
    }


def _base64(array: NDArray[Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")
