"""Read one environment's observation: check everything, and turn ids into entity indices.

Every message names the environment, the entity type or action, what was given and what was expected.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import ActionSpace
from entity_gym.actions.kind import has_global_entity
from entity_gym.actions.reading import EntityID, FrameEntities, Offer
from entity_gym.environment import Observation
from entity_gym.errors import nearest
from entity_gym.spaces import GLOBAL_ENTITY, ObsSpace, whole_columns_of


class Frame(NamedTuple):
    """One observation with indices in place of ids."""

    features: dict[str, NDArray[np.float32]]  # (number of entities, F) for every type, in the order of the space
    visible: dict[str, NDArray[np.bool_]]  # (number of entities,) for the types that were listed
    actions: dict[str, Offer]  # the actions that were offered
    ids: list[EntityID | None]  # entity index -> id; None for entities without one and for `__global__`
    numbers: dict[str, list[int]]  # entity type -> see `EntityNumbers`, for the types with ids

    def copy(self) -> Frame:
        """Copy the arrays: these may be the environment's, which may write its next step into them."""
        return Frame(
            {name: rows.copy() for name, rows in self.features.items()},
            {name: flags.copy() for name, flags in self.visible.items()},
            {
                name: offer if offer.mask is None else offer._replace(mask=offer.mask.copy())
                for name, offer in self.actions.items()
            },
            self.ids,
            self.numbers,
        )


class EntityNumbers(dict[EntityID | None, int]):
    """id -> number of the entity: 0, 1, ... in the order in which an episode first shows the ids; of None, -1."""

    def __missing__(self, id_: EntityID | None) -> int:
        if id_ is None:
            return -1
        self[id_] = len(self)
        return self[id_]


class FrameReader:
    """Reads observations of one kind of environment.

    Args:
        obs_space: of the environments.
        action_space: their actions by name.
        environment: the name of their class, for messages.
        first_env: added to an environment's number in messages: a pool may be a part of a larger one.
    """

    def __init__(
        self,
        obs_space: ObsSpace,
        action_space: Mapping[str, ActionSpace],
        environment: str = "Environment",
        first_env: int = 0,
    ) -> None:
        if not isinstance(obs_space, ObsSpace):
            raise ValueError(f"{environment}: obs_space() returned {obs_space!r:.200}; expected an ObsSpace")
        if not isinstance(action_space, Mapping) or not all(isinstance(s, ActionSpace) for s in action_space.values()):
            raise ValueError(
                f"{environment}: action_space() returned {action_space!r:.200}; expected a mapping from name to ActionSpace"
            )
        self.obs_space = obs_space
        self.action_space = action_space
        self.environment = environment
        self.first_env = first_env
        self.has_global = has_global_entity(obs_space, action_space)
        self.widths = {name: len(entity.features) for name, entity in obs_space.entities.items()}
        self.whole_columns = whole_columns_of(obs_space)

    def where(self, env_id: int) -> str:
        """Return the name of an environment in messages."""
        return f"{self.environment} (environment {self.first_env + env_id})"

    def read(
        self, obs: Observation, env_id: int, *, is_last: bool = False, numbers: EntityNumbers | None = None
    ) -> Frame:
        """Check `obs` and turn ids into indices.

        Args:
            obs: one observation.
            env_id: its environment, for messages.
            is_last: nobody acts in it, so its actions are not looked at: the last observation of an episode.
            numbers: of the episode so far, to which those of new ids are added. None: a new episode begins.

        Raises:
            ValueError: the observation does not fit the spaces.
        """
        where = self.where(env_id)
        if not isinstance(obs, Observation):
            raise ValueError(f"{where} returned {type(obs).__name__} where an Observation was expected")
        for field, given in _mappings_of(obs, where):
            for name in given:
                if name not in self.widths:
                    raise ValueError(f"{where}: {field} of unknown entity type {name!r}; {nearest(name, self.widths)}")

        features: dict[str, NDArray[np.float32]] = {}
        ranges: dict[str, tuple[int, int]] = {}
        ids: list[EntityID | None] = []
        for name, width in self.widths.items():
            rows = features[name] = _rows(obs.features.get(name), width, name, where)
            ranges[name] = len(ids), len(rows)
            given_ids = obs.ids.get(name)
            if given_ids is None:
                ids.extend([None] * len(rows))  # types without ids advance the index all the same
            elif len(given_ids) != len(rows):
                raise ValueError(f"{where}: entity type {name!r} has {len(given_ids)} ids for {len(rows)} entities")
            else:
                ids.extend(given_ids)
        try:
            index_of = dict(zip(ids, range(len(ids)), strict=True))
        except TypeError as error:
            raise ValueError(f"{where}: ids are {obs.ids!r:.200}; every id must be hashable: {error}") from error
        index_of.pop(None, None)
        if len(index_of) != len(ids) and len(index_of) != len(ids) - ids.count(None):
            _raise_duplicate_id(ids, where)
        visible = {name: _visible(flags, len(features[name]), name, where) for name, flags in obs.visible.items()}

        number_of = (EntityNumbers() if numbers is None else numbers).__getitem__
        numbered = {name: list(map(number_of, given)) for name, given in obs.ids.items()}
        actions = {}
        if not is_last:
            entities = FrameEntities(where, ids, index_of, ranges)
            for name, mask in obs.actions.items():
                actions[name] = self._space_of(name, mask, where).read(name, mask, entities)
        if self.has_global:
            features[GLOBAL_ENTITY] = self._global_row(obs, where)
            ids.append(None)
        elif len(obs.global_features):
            raise ValueError(
                f"{where}: {len(obs.global_features)} global_features; the observation space declares none"
            )
        return Frame(features, visible, actions, ids, numbered)

    def _global_row(self, obs: Observation, where: str) -> NDArray[np.float32]:
        names = self.obs_space.global_features
        if len(obs.global_features) != len(names):
            raise ValueError(
                f"{where}: {len(obs.global_features)} global_features; the observation space declares {len(names)}: {list(names)}"
            )
        try:
            return _numbers(obs.global_features).reshape(1, len(names))
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{where}: global_features are {obs.global_features!r:.200}; expected one number for each of {list(names)}"
            ) from error

    def _space_of(self, name: str, mask: Any, where: str) -> ActionSpace:
        space = self.action_space.get(name)
        if space is None:
            raise ValueError(f"{where}: unknown action {name!r}; {nearest(name, self.action_space)}")
        if not isinstance(mask, space.mask_type):
            raise ValueError(
                f"{where}: action {name!r}: a {type(mask).__name__} was given; {type(space).__name__} takes a "
                f"{space.mask_type.__name__}"
            )
        return space


def _mappings_of(obs: Observation, where: str) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    """Return the fields with an entry for an entity type, after checking them, `actions` and `metrics`."""
    by_type = ("features", obs.features), ("ids", obs.ids), ("visible", obs.visible)
    for field, given in (*by_type, ("actions", obs.actions), ("metrics", obs.metrics)):
        if type(given) is not dict and not isinstance(given, Mapping):
            raise ValueError(f"{where}: {field} is {given!r:.200}; it must be a mapping, {{}} where there is nothing")
    return by_type


def _rows(given: Any, width: int, name: str, where: str) -> NDArray[np.float32]:
    if given is None:
        return np.zeros((0, width), dtype=np.float32)
    try:
        rows = _numbers(given)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{where}: features of {name!r} are not rows of {width} numbers each: {error}") from error
    if rows.ndim == 2 and rows.shape[1] == width:
        return rows
    if rows.ndim and len(rows) == 0:
        return np.zeros((0, width), dtype=np.float32)
    raise ValueError(f"{where}: features of {name!r} have shape {rows.shape}; expected (number of entities, {width})")


def _numbers(given: Any) -> NDArray[np.float32]:
    """Return numbers as float32; raises TypeError for text, complex numbers and dates, which NumPy would convert."""
    array = np.asarray(given)
    kind = array.dtype.kind
    if kind not in "biufO" or (kind == "O" and any(isinstance(each, str | bytes) for each in array.flat)):
        raise TypeError(f"they are {given!r:.200}")
    return array.astype(np.float32, order="C", copy=False)


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


def _raise_duplicate_id(ids: list[EntityID | None], where: str) -> None:
    seen: set[EntityID] = set()
    for id_ in ids:
        if id_ is not None and id_ in seen:
            raise ValueError(f"{where}: id {id_!r} is given to two entities; ids must be unique across all types")
        seen.add(id_)
