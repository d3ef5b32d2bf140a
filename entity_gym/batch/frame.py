"""Reading one environment's observation: everything is checked, and ids become entity indices.

Every message names the environment, the entity type or action, what was given and what was expected.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from entity_gym.batch.typed_features import whole_columns_of
from entity_gym.errors import nearest
from entity_gym.observation import (
    ActionMask,
    CategoricalActionMask,
    ContinuousActionMask,
    EntityID,
    GlobalCategoricalActionMask,
    Observation,
    SelectEntityActionMask,
)
from entity_gym.spaces import (
    GLOBAL_ENTITY,
    ActionSpace,
    CategoricalActionSpace,
    ContinuousActionSpace,
    GlobalCategoricalActionSpace,
    ObsSpace,
    SelectEntityActionSpace,
    has_global_entity,
)

Indices = NDArray[np.int64]
MASK_OF_SPACE: dict[type, type] = {
    CategoricalActionSpace: CategoricalActionMask,
    GlobalCategoricalActionSpace: GlobalCategoricalActionMask,
    SelectEntityActionSpace: SelectEntityActionMask,
    ContinuousActionSpace: ContinuousActionMask,
}
NOBODY: Indices = np.zeros(0, dtype=np.int64)


class FrameActions(NamedTuple):
    """One action in one frame. `actees` stays empty for all but select-entity."""

    actors: Indices  # (A,) entity indices
    actees: Indices  # (number of actees,) entity indices
    mask: NDArray[np.bool_] | None  # (A, C), or (A, number of actees)


class Frame(NamedTuple):
    """One observation with indices in place of ids."""

    features: dict[str, NDArray[np.float32]]  # (number of entities, F) for every type, in the order of the space
    visible: dict[str, NDArray[np.bool_]]  # (number of entities,) for the types that were listed
    actions: dict[str, FrameActions]  # the actions that were offered
    ids: list[EntityID | None]  # entity index -> id; None for entities without one and for `__global__`

    def copy(self) -> Frame:
        """The same with arrays of its own: these may be the environment's, which may write its next step into them."""
        return Frame(
            {name: rows.copy() for name, rows in self.features.items()},
            {name: flags.copy() for name, flags in self.visible.items()},
            {
                name: action if action.mask is None else action._replace(mask=action.mask.copy())
                for name, action in self.actions.items()
            },
            self.ids,
        )


class FrameReader:
    """Reads observations of one kind of environment.

    Args:
        obs_space: what it may show.
        action_space: its actions by name.
        environment: its class, for messages.
        first_env: the number by which messages call environment 0: a pool may be a part of a larger one.
    """

    def __init__(
        self,
        obs_space: ObsSpace,
        action_space: Mapping[str, ActionSpace],
        environment: str = "Environment",
        first_env: int = 0,
    ) -> None:
        self.obs_space = obs_space
        self.action_space = action_space
        self.environment = environment
        self.first_env = first_env
        self.has_global = has_global_entity(obs_space, action_space)
        self.widths = {name: len(entity.features) for name, entity in obs_space.entities.items()}
        self.whole_columns = whole_columns_of(obs_space)

    def where(self, env_id: int) -> str:
        """How messages name an environment."""
        return f"{self.environment} (environment {self.first_env + env_id})"

    def read(self, obs: Observation, env_id: int) -> Frame:
        """Check `obs` and turn ids into indices.

        Raises:
            ValueError: for anything that does not fit the spaces.
        """
        where = self.where(env_id)
        if not isinstance(obs, Observation):
            raise ValueError(f"{where} returned {type(obs).__name__} where an Observation was expected")
        for field, given in (("features", obs.features), ("ids", obs.ids), ("visible", obs.visible)):
            for name in given:
                if name not in self.widths:
                    raise ValueError(f"{where}: {field} of unknown entity type {name!r}; {nearest(name, self.widths)}")

        features: dict[str, NDArray[np.float32]] = {}
        starts: dict[str, int] = {}
        ids: list[EntityID | None] = []
        for name, width in self.widths.items():
            rows = features[name] = _rows(obs.features.get(name), width, name, where)
            starts[name] = len(ids)
            given_ids = obs.ids.get(name)
            if given_ids is None:
                ids.extend([None] * len(rows))  # types without ids advance the index all the same
            elif len(given_ids) != len(rows):
                raise ValueError(f"{where}: entity type {name!r} has {len(given_ids)} ids for {len(rows)} entities")
            else:
                ids.extend(given_ids)
        try:
            index_of = {id_: index for index, id_ in enumerate(ids) if id_ is not None}
        except TypeError as error:
            raise ValueError(f"{where}: ids are {obs.ids!r:.200}; every id must be hashable: {error}") from error
        if len(index_of) != len(ids) - ids.count(None):
            _raise_duplicate_id(ids, where)
        visible = {name: _visible(flags, len(features[name]), name, where) for name, flags in obs.visible.items()}

        lookup = _Lookup(self.widths, starts, features, ids, index_of)
        actions = {}
        for name, mask in obs.actions.items():
            actions[name] = self._read_action(name, mask, lookup, where)
        if self.has_global:
            features[GLOBAL_ENTITY] = self._global_row(obs, where)
            ids.append(None)
        elif len(obs.global_features):
            raise ValueError(
                f"{where}: {len(obs.global_features)} global_features; the observation space declares none"
            )
        return Frame(features, visible, actions, ids)

    def _global_row(self, obs: Observation, where: str) -> NDArray[np.float32]:
        names = self.obs_space.global_features
        if len(obs.global_features) != len(names):
            raise ValueError(
                f"{where}: {len(obs.global_features)} global_features; the observation space declares {len(names)}: {list(names)}"
            )
        try:
            return np.asarray(obs.global_features, dtype=np.float32).reshape(1, len(names))
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{where}: global_features are {obs.global_features!r:.200}; expected one number for each of {list(names)}"
            ) from error

    def _read_action(self, name: str, mask: ActionMask, lookup: _Lookup, where: str) -> FrameActions:
        space = self.action_space.get(name)
        if space is None:
            raise ValueError(f"{where}: unknown action {name!r}; {nearest(name, self.action_space)}")
        where = f"{where}: action {name!r}"
        expected = MASK_OF_SPACE[type(space)]
        if not isinstance(mask, expected):
            raise ValueError(
                f"{where}: a {type(mask).__name__} was given; {type(space).__name__} takes a {expected.__name__}"
            )
        if isinstance(space, GlobalCategoricalActionSpace):
            assert isinstance(mask, GlobalCategoricalActionMask)
            actors = np.array([len(lookup.ids)], dtype=np.int64)  # `__global__` stands last in the frame
            return FrameActions(
                actors, NOBODY, _mask(mask.mask, (1, len(space.choices)), "choices", [GLOBAL_ENTITY], where)
            )
        assert isinstance(mask, CategoricalActionMask | SelectEntityActionMask | ContinuousActionMask)
        actors = lookup.find(mask.actor_ids, mask.actor_types, "actor", where)
        if isinstance(mask, ContinuousActionMask):
            return FrameActions(actors, NOBODY, None)
        actor_ids = [lookup.ids[index] for index in actors.tolist()]
        if isinstance(space, CategoricalActionSpace):
            return FrameActions(
                actors, NOBODY, _mask(mask.mask, (len(actors), len(space.choices)), "choices", actor_ids, where)
            )
        assert isinstance(mask, SelectEntityActionMask) and isinstance(space, SelectEntityActionSpace)
        if len(actors) == 0:
            return FrameActions(actors, NOBODY, None)
        actees = lookup.find(mask.actee_ids, mask.actee_types, "actee", where)
        pairs = _mask(mask.mask, (len(actors), len(actees)), "actees", actor_ids, where, can_close=space.can_close)
        return FrameActions(actors, actees, _without_self(pairs, actors, actees) if space.exclude_self else pairs)


class _Lookup(NamedTuple):
    """Finds entity indices by id or by type within one frame."""

    widths: Mapping[str, int]
    starts: dict[str, int]
    features: dict[str, NDArray[np.float32]]
    ids: list[EntityID | None]
    index_of: dict[EntityID, int]

    def find(self, ids: Sequence[EntityID] | None, types: Sequence[str] | None, role: str, where: str) -> Indices:
        if ids is not None:
            return self._by_id(ids, role, where)
        found: list[int] = []
        for name in self.widths if types is None else types:
            if name not in self.widths:
                raise ValueError(
                    f"{where}: {role}_types names the unknown entity type {name!r}; {nearest(name, self.widths)}"
                )
            start, count = self.starts[name], len(self.features[name])
            if count and None in self.ids[start : start + count]:
                raise ValueError(
                    f"{where}: entities of type {name!r} are {role}s but have no ids; give Observation.ids[{name!r}]"
                )
            found.extend(range(start, start + count))
        if types is not None and len(types) > 1 and len(set(types)) != len(types):
            raise ValueError(f"{where}: {role}_types {list(types)!r} lists a type twice")
        return np.array(found, dtype=np.int64)

    def _by_id(self, ids: Sequence[EntityID], role: str, where: str) -> Indices:
        found = []
        for id_ in ids:
            index = self.index_of.get(id_) if isinstance(id_, Hashable) else None
            if index is None:
                known = [str(known_id) for known_id in self.index_of]
                raise ValueError(f"{where}: {role}_ids names {id_!r}, which no entity has; {nearest(id_, known[:20])}")
            found.append(index)
        if len(set(found)) != len(found):
            raise ValueError(f"{where}: {role}_ids {list(ids)!r} lists an entity twice")
        return np.array(found, dtype=np.int64)


def _rows(given: Any, width: int, name: str, where: str) -> NDArray[np.float32]:
    if given is None:
        return np.zeros((0, width), dtype=np.float32)
    try:
        rows = np.asarray(given, dtype=np.float32, order="C")
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: features of {name!r} are not rows of {width} numbers each: {error}") from error
    if rows.ndim == 2 and rows.shape[1] == width:
        return rows
    if rows.ndim and len(rows) == 0:
        return np.zeros((0, width), dtype=np.float32)
    raise ValueError(f"{where}: features of {name!r} have shape {rows.shape}; expected (number of entities, {width})")


def _visible(given: Any, count: int, name: str, where: str) -> NDArray[np.bool_]:
    try:
        flags = np.asarray(given)
    except ValueError as error:
        raise ValueError(
            f"{where}: visible[{name!r}] is {given!r:.200}; expected one bool for each of {count}"
        ) from error
    if flags.shape != (count,) or (count and flags.dtype != np.bool_):
        raise ValueError(
            f"{where}: visible[{name!r}] has shape {flags.shape} and type {flags.dtype}; expected one bool for each of {count}"
        )
    return flags.astype(np.bool_, copy=False)


def _without_self(pairs: NDArray[np.bool_] | None, actors: Indices, actees: Indices) -> NDArray[np.bool_] | None:
    """The mask (A, number of actees) with those pairs closed, too, in which an actor selects itself."""
    others: NDArray[np.bool_] = actors[:, None] != actees
    if others.all():
        return pairs
    return others if pairs is None else pairs & others


def _mask(
    given: Any, shape: tuple[int, int], columns: str, actors: list[Any], where: str, *, can_close: bool = False
) -> NDArray[np.bool_] | None:
    if given is None:
        return None
    try:
        mask = np.asarray(given, order="C")
    except ValueError as error:
        raise ValueError(f"{where}: the mask's rows differ in length; expected {shape}, one row an actor") from error
    if mask.size == 0 and shape[0] * shape[1] == 0:
        mask = np.zeros(shape, dtype=np.bool_)
    if actors == [GLOBAL_ENTITY] and mask.shape == shape[1:]:
        mask = mask.reshape(shape)
    if mask.shape != shape:
        raise ValueError(
            f"{where}: mask has shape {mask.shape}; expected {shape}, one row an actor and one column for each of the {columns}"
        )
    if mask.dtype != np.bool_:
        raise ValueError(f"{where}: mask is of type {mask.dtype}; expected bool, true where allowed")
    if shape[1] and not can_close:
        closed = ~mask.any(axis=1)
        if closed.any():
            raise ValueError(
                f"{where}: every one of the {shape[1]} {columns} of actor {actors[int(closed.argmax())]!r} is masked; "
                "leave one open, or leave the actor out"
            )
    return mask


def _raise_duplicate_id(ids: list[EntityID | None], where: str) -> None:
    seen = set()
    for id_ in ids:
        if id_ is not None and id_ in seen:
            raise ValueError(f"{where}: id {id_!r} is given to two entities; ids must be unique across all types")
        seen.add(id_)
