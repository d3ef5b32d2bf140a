"""Gymnasium's observation spaces as entities. `gym_features` has rows of features alone, and `gym_actions` the action spaces."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import Any

import numpy as np

from entity_gym.bridges.gym_features import (
    FIXED,
    GROUPS,
    FixedFeatures,
    Group,
    Leaf,
    Node,
    PlainSpace,
    Rows,
    as_numbers,
    join,
    kind_of,
    members_of,
    named,
    shape_of,
    space_at,
)
from entity_gym.errors import nearest
from entity_gym.spaces import GLOBAL_ENTITY, Category, Entity, Feature, Flag, ObsSpace

#: The entity that has the features of the outermost space, and takes all actions.
AGENT = "Agent"


class GymObservations:
    """Entities from the observations of an environment.

    The fixed leaves of the outermost Dict or Tuple are the features of one entity `Agent`. Every Dict or Tuple inside it is an
    entity of a type of its own, called by its path, and holds its fixed leaves. The elements of a Sequence are entities, of a
    type that is called by its path, "Item" if that is empty; the nodes of a Graph in the same way, or "Node". The edges of a
    graph are entities `<type>.edge`, with features of their own, followed by those of their ends, "from.x" and "to.x".

    Args:
        space: of the observations.
        global_features: show the outermost leaves as global features. `Agent` remains, without features, to act.
        rows: paths of Boxes of two or more dimensions whose rows are entities, of a type called by the path ("Item" if empty).

    Attributes:
        obs_space: what it makes of them.
        counts: entity type -> how many there always are, or None where that varies. Global features are one row of `__global__`.

    Raises:
        ValueError: for a space that has no such form, naming it and what to do.
    """

    def __init__(self, space: Any, *, global_features: bool = False, rows: Sequence[str] = ()) -> None:
        self.counts: dict[str, int | None] = {AGENT: 1}
        if not isinstance(global_features, bool | np.bool_):
            raise ValueError(f"global_features is {global_features!r}; it must be true or false")
        if isinstance(rows, str):
            raise ValueError(f"rows is {rows!r}; it must be a list of paths, such as rows=({rows!r},)")
        self._outer = GLOBAL_ENTITY if global_features else AGENT
        self._rows = tuple(rows)
        self._boxes: list[str] = []  # paths of all that `rows` may name
        self._types: dict[str, list[Feature]] = {AGENT: []}
        if global_features:
            self.counts[GLOBAL_ENTITY] = 1
            self._types[GLOBAL_ENTITY] = []
        self._node = self._node_of(space, "", "", self._outer)
        for path in self._rows:
            if path not in self._boxes:
                raise ValueError(
                    f"rows names {path!r}, which is no Box of two or more dimensions; {nearest(path, self._boxes)}"
                )
        given = {name: self._checked(name, features) for name, features in self._types.items()}
        everywhere = given.pop(GLOBAL_ENTITY, Entity())
        self.obs_space = ObsSpace(given, everywhere.features, everywhere.kinds)
        if global_features and not everywhere.features:
            del self.counts[GLOBAL_ENTITY]
        self.widths = {name: len(features) for name, features in self._types.items()}

    def empty(self) -> dict[str, Rows]:
        """Type -> (n, F) zeros, with as many rows as there always are, and none where that varies."""
        return {name: np.zeros((count or 0, self.widths[name]), np.float32) for name, count in self.counts.items()}

    def write(self, observation: Any, to: MutableMapping[str, Rows]) -> None:
        """Write an observation over the rows in `to`, as `empty` has them; types that vary get new arrays.

        Raises:
            ValueError: for an observation outside the space, naming where; values outside bounds are not noticed.
        """
        self._node.write(observation, to)

    def _node_of(self, space: Any, path: str, name: str, owner: str) -> Node:
        """What writes `space`, whose fixed leaves belong to `owner`, by the names below `name`."""
        kind = kind_of(space)
        if kind == "Box" and len(shape_of(space)) > 1:
            self._boxes.append(path or "Item")
            if (path or "Item") in self._rows:
                return self._rows_of(space, path)
        if kind in FIXED:
            features = self._types[owner]
            leaf = Leaf(space, path, name, len(features), rows=(path or "Item") in self._boxes)
            features += leaf.features
            return _OfType(owner, leaf)
        if kind in GROUPS:
            if path:
                owner = self._new_type(path, 1)
            inner = {key: self._node_of(each, join(path, str(key)), str(key), owner) for key, each in members_of(space)}
            if path and not self._types[owner]:  # it holds only what has types of its own
                del self._types[owner], self.counts[owner]
            return Group(inner, path, kind == "Tuple")
        if kind == "Sequence":
            items = FixedFeatures(space.feature_space, path)
            return _Items(self._new_type(path or "Item", None, items.features), items)
        if kind == "Graph":
            return self._graph(space, path)
        raise ValueError(
            f"{space_at(path)} is a {kind}, which has no form as entities: leave it out, or turn it into numbers, in a wrapper "
            "such as gymnasium.wrappers.TransformObservation"
        )

    def _rows_of(self, space: Any, path: str) -> Node:
        count, *shape = shape_of(space)
        row = FixedFeatures(PlainSpace("Box", shape=tuple(shape)), path)
        return _FixedRows(self._new_type(path or "Item", count, row.features), row, count)

    def _graph(self, space: Any, path: str) -> Node:
        nodes = FixedFeatures(space.node_space, path)
        name = self._new_type(path or "Node", None, nodes.features)
        if space.edge_space is None:
            return _Graph(name, nodes, None)
        edges = FixedFeatures(space.edge_space, join(path, "edge"))
        ends = [_renamed(feature, end) for end in ("from", "to") for feature in nodes.features]
        self._new_type(f"{name}.edge", None, [*edges.features, *ends])
        return _Graph(name, nodes, edges)

    def _new_type(self, name: str, count: int | None, features: Sequence[Feature] = ()) -> str:
        if name in self._types or name == GLOBAL_ENTITY:
            raise ValueError(
                f"the observation space has two things that would be the entity type {name!r}: rename a key in a wrapper"
            )
        self.counts[name] = count
        self._types[name] = list(features)
        return name

    def _checked(self, name: str, features: Sequence[Feature]) -> Entity:
        try:
            return Entity(features)
        except ValueError as error:
            raise ValueError(
                f"the observation space as features of {name!r}: {error}; rename a key in a wrapper"
            ) from None


class _OfType:
    """A leaf among the features of the only entity of a type."""

    def __init__(self, name: str, leaf: Leaf) -> None:
        self._name, self._leaf = name, leaf

    def write(self, value: Any, to: MutableMapping[str, Rows]) -> None:
        self._leaf.write(value, to[self._name][0])


class _FixedRows:
    """A Box each of whose rows is an entity."""

    def __init__(self, name: str, row: FixedFeatures, count: int) -> None:
        self._name, self._row, self._count = name, row, count

    def write(self, value: Any, to: MutableMapping[str, Rows]) -> None:
        rows = self._row.rows(as_numbers(value, self._row.path))
        if len(rows) != self._count:
            raise ValueError(f"{named(self._row.path)} has {len(rows)} rows; expected {self._count}")
        to[self._name][:] = rows


class _Items:
    """A Sequence."""

    def __init__(self, name: str, items: FixedFeatures) -> None:
        self._name, self._items = name, items

    def write(self, value: Any, to: MutableMapping[str, Rows]) -> None:
        to[self._name] = self._items.rows(value)


class _Graph:
    """Nodes, and edges where there can be any."""

    def __init__(self, name: str, nodes: FixedFeatures, edges: FixedFeatures | None) -> None:
        self._name, self._nodes, self._edges = name, nodes, edges

    def write(self, value: Any, to: MutableMapping[str, Rows]) -> None:
        if not all(hasattr(value, part) for part in ("nodes", "edges", "edge_links")):
            raise ValueError(f"{named(self._nodes.path)} is {value!r:.200}; expected a GraphInstance")
        if value.nodes is None:
            raise ValueError(f"{named(self._nodes.path)} has the nodes None; where there are none, show an empty array")
        nodes = to[self._name] = self._nodes.rows(value.nodes)
        if self._edges is None:
            if value.edges is not None:
                raise ValueError(f"{named(self._nodes.path)} has edges, and its space has no edge_space")
            return
        edges = self._edges.rows(() if value.edges is None else value.edges)
        links = as_numbers(
            np.zeros((0, 2), np.int64) if value.edge_links is None else value.edge_links, self._edges.path
        )
        fits = links.shape == (len(edges), 2) and links.dtype.kind in "iu"
        if not fits or (links.size and not (links.min() >= 0 and links.max() < len(nodes))):
            raise ValueError(
                f"{named(self._edges.path)}: edge_links are {links.tolist()!r:.200}; expected two of the {len(nodes)} nodes for "
                f"each of the {len(edges)} edges"
            )
        to[f"{self._name}.edge"] = np.concatenate([edges, nodes[links[:, 0]], nodes[links[:, 1]]], axis=1)


def _renamed(feature: Feature, end: str) -> Feature:
    if isinstance(feature, str):
        return f"{end}.{feature}"
    return (
        Category(f"{end}.{feature.name}", feature.num)
        if isinstance(feature, Category)
        else Flag(f"{end}.{feature.name}")
    )
