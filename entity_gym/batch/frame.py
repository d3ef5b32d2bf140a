"""Read one environment's observation: check everything, and turn ids into entity indices.

Every message names the environment, the entity type or action, what was given and what was expected.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import ActionSpace
from entity_gym.actions.chains import decision_order, read_mask_after
from entity_gym.actions.kind import has_global_entity
from entity_gym.actions.reading import EntityID, FrameEntities, Offer, read_flags
from entity_gym.environment import Observation
from entity_gym.errors import nearest
from entity_gym.spaces import GLOBAL_ENTITY, ObsSpace


class Frame(NamedTuple):
    """One observation with indices in place of ids."""

    features: dict[str, NDArray[np.float32]]  # (number of entities, F) for every type, in the order of the space
    visible: dict[str, NDArray[np.bool_]]  # (number of entities,) for the types that were listed
    actions: dict[str, Offer]  # the actions that were offered
    ids: list[EntityID | None]  # entity index -> id; None for entities without one and for `__global__`
    numbers: dict[str, NDArray[np.int64]]  # entity type -> see `EntityNumbers`, for the types with ids

    def copy(self) -> Frame:
        """Copy the arrays: these may be the environment's, which may write its next step into them."""
        return Frame(
            {name: rows.copy() for name, rows in self.features.items()},
            {name: flags.copy() for name, flags in self.visible.items()},
            {name: Offer._make(map(copy, offer)) for name, offer in self.actions.items()},
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
        try:
            decision_order(action_space)
            for name, space in action_space.items():
                space.check_features(name, obs_space)
        except ValueError as error:
            raise ValueError(f"{environment}: {error}") from None
        self.obs_space = obs_space
        self.action_space = action_space
        self.environment = environment
        self.first_env = first_env
        self.has_global = has_global_entity(obs_space, action_space)
        #: Of all types, `__global__` last if there is one.
        self.types = {name: obs_space.entity(name) for name in obs_space.entities}
        if self.has_global:
            self.types[GLOBAL_ENTITY] = obs_space.entity(GLOBAL_ENTITY)

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
        types = self.obs_space.entities
        given = obs.features, obs.ids, obs.visible, obs.actions, obs.metrics, obs.targets
        are_dicts = set(map(type, given)) == {dict}
        known = types.keys()
        if not (are_dicts and obs.features.keys() <= known and obs.ids.keys() <= known and obs.visible.keys() <= known):
            self._check_fields(obs, where)
        if obs.targets.keys() != self.obs_space.targets.keys():
            declared = list(self.obs_space.targets)
            raise ValueError(f"{where}: targets has {list(obs.targets)}; it must have all of the space's, {declared}")

        features: dict[str, NDArray[np.float32]] = {}
        ranges: dict[str, tuple[int, int]] = {}
        ids: list[EntityID | None] = []
        for name in types:
            rows = features[name] = self._rows(obs.features.get(name, ()), name, where)
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
            twice = next(id_ for k, id_ in enumerate(ids) if id_ is not None and index_of[id_] != k)
            raise ValueError(f"{where}: id {twice!r} is given to two entities; ids must be unique across all types")
        visible = {
            name: read_flags(flags, (len(features[name]),), f"{where}: visible[{name!r}]")
            for name, flags in obs.visible.items()
        }
        number_of = (EntityNumbers() if numbers is None else numbers).__getitem__
        # arrays, since lists are looked at in every garbage collection
        numbered = {name: np.fromiter(map(number_of, given), np.int64, len(given)) for name, given in obs.ids.items()}
        actions = {}
        if not is_last:
            entities = FrameEntities(where, ids, index_of, ranges)
            for name, mask in obs.actions.items():
                space = self.action_space.get(name)
                if space is None:
                    raise ValueError(f"{where}: unknown action {name!r}; {nearest(name, self.action_space)}")
                if not isinstance(mask, space.mask_type):
                    raise ValueError(
                        f"{where}: action {name!r}: a {type(mask).__name__} was given; {type(space).__name__} takes a "
                        f"{space.mask_type.__name__}"
                    )
                actions[name] = space.read(name, mask, entities)
            for name, mask in obs.actions.items():
                if (after := getattr(mask, "mask_after", None)) is not None:
                    actions[name] = read_mask_after(where, name, after, actions, self.action_space)
        if self.has_global:
            features[GLOBAL_ENTITY] = self._rows([obs.global_features], GLOBAL_ENTITY, where)
            ids.append(None)
        elif len(obs.global_features):
            raise ValueError(f"{where}: there are {len(obs.global_features)} global_features, and none in the space")
        return Frame(features, visible, actions, ids, numbered)

    def _check_fields(self, obs: Observation, where: str) -> None:
        by_type = ("features", obs.features), ("ids", obs.ids), ("visible", obs.visible)
        for field, given in (*by_type, ("actions", obs.actions), ("metrics", obs.metrics), ("targets", obs.targets)):
            if not isinstance(given, Mapping):
                raise ValueError(
                    f"{where}: {field} is {given!r:.200}; it must be a mapping, {{}} where there is nothing"
                )
        types = self.obs_space.entities
        for field, given in by_type:
            for name in given:
                if name not in types:
                    raise ValueError(f"{where}: {field} of unknown entity type {name!r}; {nearest(name, types)}")

    def _rows(self, given: Any, name: str, where: str) -> NDArray[np.float32]:
        """Return the features of a type, (number of entities, F); text, complex numbers and dates are no numbers."""
        features, cause = self.types[name].features, None
        width = len(features)
        try:
            array = np.asarray(() if given is None else given)
            kind = array.dtype.kind
            if kind not in "biufO" or (kind == "O" and any(isinstance(each, str | bytes) for each in array.flat)):
                raise TypeError(f"they are {given!r:.200}")
            rows: NDArray[np.float32] = array.astype(np.float32, order="C", copy=False)
            if rows.ndim == 2 and rows.shape[1] == width:
                return rows
            if rows.ndim and len(rows) == 0:
                return np.zeros((0, width), np.float32)
            problem = f"have shape {rows.shape}; expected (number of entities, {width}): {list(features)}"
        except (TypeError, ValueError, OverflowError) as error:
            problem, cause = f"are not rows of {width} numbers each: {error}", error
        what = "global_features" if name == GLOBAL_ENTITY else f"features of {name!r}"
        raise ValueError(f"{where}: {what} {problem}") from cause
