"""Ragged observations as arrays of fixed shapes, for interfaces that know nothing of entities: pure functions of a `VecObs`.

An environment that declares fixed arrays is seen through these: `obs` is the observation itself, `obs:a.b` stands at
`{"a": {"b": ...}}` of it, and `info:a.b` in the same place of the info. All others are seen through their entities, padded:

    entities      type -> (max, F) float32, rows beyond its count and those of hidden entities 0; types with features only;
                  categories and flags have bounds
    counts        type -> () int64, how many there are
    visible       type -> (max,) int8, 1 where the entity may be seen; types that can hide only
    global        (G,) float32, the global features, if any
    actors        action -> (A,) int64, which entity acts, -1: nobody; without global actions
    action_mask   action -> (A, C) int8, 1 where the actor may take the choice, 0 where there is no actor; (C,) where actions
                  are plain numbers, see `dense_actions`

An entity is named by its place in the list of all rows, type after type in the order of the space, each with `max` rows.

Shapes: N frames, T entity types, P rows in the list of all entities, A actors, C choices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from entity_gym.batch.vec_obs import VecObs
from entity_gym.pools.spec import EnvSpec
from entity_gym.spaces import GLOBAL_ENTITY, bounds


@dataclass(frozen=True)
class Field:
    """An array of one environment, or with `per_player` of one player, or of whatever else has a row and varies in number."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    low: Any = -np.inf
    high: Any = np.inf
    per_player: bool = False

    def bounds(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Smallest and largest values, in the field's shape and dtype, in which integers have no infinity."""
        smallest, largest = -np.inf, np.inf
        if self.dtype.kind == "b":
            smallest, largest = 0, 1
        elif self.dtype.kind in "iu":
            smallest, largest = np.iinfo(self.dtype).min, np.iinfo(self.dtype).max
        return self._bound(self.low, -np.inf, smallest), self._bound(self.high, np.inf, largest)

    def _bound(self, given: Any, infinite: float, limit: float) -> NDArray[Any]:
        bound = np.full(self.shape, limit, self.dtype)
        finite = np.broadcast_to(np.asarray(given) != infinite, self.shape)
        bound[finite] = np.broadcast_to(given, self.shape)[finite]
        return bound


#: Nested dictionaries, with a `Field` or an array (N, ...) or a `RaggedArray` (a row a player) at each end.
Tree: TypeAlias = Any


def flags(*shape: int) -> Field:
    """Of numbers that are 0 or 1."""
    return Field(shape, np.dtype(np.int8), 0, 1)


def map_tree(function: Callable[[Any], Any], tree: Tree) -> Tree:
    """The same tree with `function` applied at each end."""
    if isinstance(tree, dict):
        return {name: map_tree(function, branch) for name, branch in tree.items()}
    return function(tree)


def merge_trees(first: dict[str, Tree], second: dict[str, Tree]) -> dict[str, Tree]:
    """Everything in both.

    Raises:
        ValueError: if both have something in one place.
    """
    merged = dict(first)
    for name, branch in second.items():
        if name not in merged:
            merged[name] = branch
        elif isinstance(merged[name], dict) and isinstance(branch, dict):
            merged[name] = merge_trees(merged[name], branch)
        else:
            raise ValueError(f"there are two values called {name!r} in one place; rename one of them")
    return merged


def tree_of_keys(values: Mapping[str, Any], prefix: str) -> Tree:
    """What stands under `prefix`: at keys like `obs`, or `obs:a.b`, which "." nests. {} if nothing does.

    Raises:
        ValueError: for keys that cannot stand beside each other.
    """
    chosen = {key: value for key, value in values.items() if key.partition(":")[0] == prefix}
    if prefix in chosen:
        if len(chosen) > 1:
            raise ValueError(f"arrays {list(chosen)}: {prefix!r} is the whole of it, and cannot stand beside others")
        return chosen[prefix]
    tree: dict[str, Tree] = {}
    for key, value in chosen.items():
        *path, last = key.partition(":")[2].split(".")
        branch = tree
        for name in path:
            branch = branch.setdefault(name, {})
            if not isinstance(branch, dict):
                break
        if not isinstance(branch, dict) or last in branch or not all((*path, last)):
            raise ValueError(f"arrays: {key!r} is no path of names, or leads through or to another of {list(chosen)}")
        branch[last] = value
    return tree


def field_trees(spec: EnvSpec) -> tuple[Tree, dict[str, Tree]]:
    """The observation and the info that fixed arrays give; an observation of {} if there are none for it.

    Raises:
        ValueError: for keys that are neither `obs`, `obs:...` nor `info:...`.
    """
    for key in spec.arrays:
        if key != "obs" and not key.startswith(("obs:", "info:")):
            raise ValueError(
                f"{spec.config.name} declares the array {key!r}; these forms know 'obs', 'obs:...' and 'info:...'"
            )
    fields = {
        key: Field(array.item_shape, array.dtype, array.low, array.high, array.per_player)
        for key, array in spec.arrays.items()
    }
    return tree_of_keys(fields, "obs"), tree_of_keys(fields, "info")


class Padding:
    """Entities of N frames as arrays of fixed shapes.

    Args:
        spec: of the environment.

    Raises:
        ValueError: if it does not say how many entities there can be.
    """

    def __init__(self, spec: EnvSpec) -> None:
        self._where, self._entities = spec.config.name, spec.entities
        unknown = [name for name, entity in spec.entities.items() if entity.max is None]
        if unknown:
            example = "{" + ", ".join(f"{name!r}: 10" for name in unknown) + "}"
            raise ValueError(
                f"{self._where} does not say how many entities of a type there can be, which this form needs; say it, for "
                f"example max_entities={example}"
            )
        self._max = np.array([entity.max for entity in spec.entities.values()], np.int64)  # (T,)
        self._ends = np.cumsum(self._max)  # (T,) in the list of all rows
        self.num_rows = int(self._max.sum())  # P
        self._global_features, self._global_kinds = spec.obs_space.global_features, spec.obs_space.global_kinds

    def fields(self) -> dict[str, Tree]:
        """What `pad` returns."""
        f32, i64 = np.dtype(np.float32), np.dtype(np.int64)
        tree: dict[str, Tree] = {
            "entities": {
                name: Field((entity.max or 0, len(entity.features)), f32, *bounds(entity.features, entity.kinds))
                for name, entity in self._entities.items()
                if entity.features
            },
            "counts": {name: Field((), i64, 0, entity.max) for name, entity in self._entities.items()},
            "visible": {name: flags(entity.max or 0) for name, entity in self._entities.items() if entity.hideable},
        }
        tree = {name: branch for name, branch in tree.items() if branch}
        names = self._global_features
        return tree | ({"global": Field((len(names),), f32, *bounds(names, self._global_kinds))} if names else {})

    def counts(self, obs: VecObs) -> NDArray[np.int64]:
        """(N, T) how many entities of each type there are.

        Raises:
            ValueError: if there are more than the spec says.
        """
        counts = np.zeros((len(obs), len(self._entities)), np.int64)
        for column, name in enumerate(self._entities):
            counts[:, column] = obs.features[name].size1()
        if (counts > self._max).any():
            frame, column = (int(i) for i in np.argwhere(counts > self._max)[0])
            name = list(self._entities)[column]
            raise ValueError(
                f"{self._where} (environment {obs.env_id[frame]}) shows {counts[frame, column]} entities of type {name!r}; "
                f"there is room for {self._max[column]}: see max_entities"
            )
        return counts

    def pad(self, obs: VecObs) -> dict[str, Tree]:
        """The frames of `obs`; their counts must fit."""
        tree: dict[str, Tree] = {"entities": {}, "counts": {}, "visible": {}}
        for name, entity in self._entities.items():
            rows = obs.features[name]
            shown = obs.visible.get(name)
            tree["counts"][name] = rows.size1().copy()
            if entity.features:
                values = rows.values if shown is None else np.where(shown.values, rows.values, np.float32(0))
                tree["entities"][name] = padded(values, rows.offsets, entity.max or 0)
            if entity.hideable:
                seen = np.ones(rows.items(), np.int8) if shown is None else shown.values[:, 0].astype(np.int8)
                tree["visible"][name] = padded(seen, rows.offsets, entity.max or 0)
        tree = {name: branch for name, branch in tree.items() if branch}
        return tree | ({"global": obs.features[GLOBAL_ENTITY].values} if self._global_features else {})

    def to_rows(self, counts: NDArray[np.int64], index: NDArray[np.int64]) -> NDArray[np.int64]:
        """(K,) rows in the list of all entities.

        Args:
            counts: (K, T), of the frames that the entities are in.
            index: (K,), entity indices inside the frame.
        """
        ends = np.cumsum(counts, axis=1)
        column = (index[:, None] >= ends).sum(axis=1)
        here = np.arange(len(index))
        rows: NDArray[np.int64] = (
            self._ends[column] - self._max[column] + index - ends[here, column] + counts[here, column]
        )
        return rows

    def to_index(self, counts: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """(K,) entity indices inside the frame; what `to_rows` takes."""
        column = np.searchsorted(self._ends, rows, side="right")
        here = np.arange(len(rows))
        starts = np.cumsum(counts, axis=1)[here, column] - counts[here, column]
        index: NDArray[np.int64] = starts + rows - (self._ends - self._max)[column]
        return index


def padded(values: NDArray[Any], offsets: NDArray[np.int64], most: int, fill: int = 0) -> NDArray[Any]:
    """(N, most, ...) the rows of each frame, then `fill`.

    Args:
        values: (rows, ...).
        offsets: (N + 1,), frame i has values[offsets[i]:offsets[i + 1]], at most `most`.
        most: rows in the result.
        fill: what stands where there is no row.
    """
    lengths = np.diff(offsets)
    out = np.full((len(lengths), most, *values.shape[1:]), fill, values.dtype)
    frame = np.repeat(np.arange(len(lengths)), lengths)
    out[frame, np.arange(len(values)) - offsets[frame]] = values
    return out
