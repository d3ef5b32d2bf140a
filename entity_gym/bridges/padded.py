"""The padded form: observations and actions as arrays of fixed shapes, for libraries that have no entities.

An observation is a dictionary of arrays:

    entities/TYPE       (max, F) float32; rows beyond the last entity and rows of hidden ones are 0; types with features only
    mask/TYPE           (max,) int8, 1 where there is an entity that can be seen
    global              (G,) float32 global features, if there are any
    actors/ACTION       (A,) int64, row of each actor, -1 beyond the last one; without global actions
    action_mask/ACTION  (A, C) int8, 1 where the actor may take the choice, 0 where there is no actor; choices only

Rows count through the list of all entities: type after type in the order of the space, `max` rows for each type. A "." in a
name becomes "/", since PyTorch modules cannot be named so.

An action is one array: the numbers of all actors of the first action of the action space, then those of the second, and so on.
A number is a choice, or the row of the selected entity, or the number of rows to select nobody (if the space has `nobody`);
continuous actions have F numbers for each actor. The only choice of the only actor is an integer. In a world that has choices
and continuous actions, an action is a dictionary: action -> (A,) integers, or (A, F) numbers.
Numbers beyond the last actor are ignored. A choice that is not open becomes the next open one, or raises with
`invalid_actions="raise"`.

The info has `env_id`, `elapsed_step`, and `replaced_actions` (number of last choices that were not open, if choices can be
closed).

Shapes: N environments, n frames, T entity types, P rows, A actors with room, K actors in all frames, C choices, F numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from entity_gym.batch.ragged import RaggedBuffer, offsets_of
from entity_gym.batch.vec_obs import VecAction, VecObs
from entity_gym.errors import nearest
from entity_gym.pools.spec import EnvSpec
from entity_gym.spaces import GLOBAL_ENTITY, bounds

_INT64, _FLOAT32 = np.dtype(np.int64), np.dtype(np.float32)

EnvIds: TypeAlias = NDArray[np.int64]
#: Name -> (n, ...) array of n frames.
Frames: TypeAlias = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Field:
    """Shape, dtype and inclusive bounds of one environment's array."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    low: Any = -np.inf
    high: Any = np.inf

    def bounds(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return both bounds in the field's shape and dtype; integers, which have no infinity, are bounded by their dtype."""
        smallest, largest = (-np.inf, np.inf)
        if self.dtype.kind in "iu":
            smallest, largest = np.iinfo(self.dtype).min, np.iinfo(self.dtype).max
        return self._bound(self.low, -np.inf, smallest), self._bound(self.high, np.inf, largest)

    def _bound(self, given: Any, infinite: float, limit: float) -> NDArray[Any]:
        bound = np.full(self.shape, limit, self.dtype)
        finite = np.broadcast_to(np.asarray(given) != infinite, self.shape)
        bound[finite] = np.broadcast_to(given, self.shape)[finite]
        return bound


def flags(*shape: int) -> Field:
    """Return the field of an array of 0s and 1s."""
    return Field(shape, np.dtype(np.int8), 0, 1)


def frame_of(frames: Frames, row: int) -> dict[str, Any]:
    """Return one frame; single numbers are NumPy scalars."""
    return {name: array[row] for name, array in frames.items()}


class PaddedForm:
    """Frames of N environments as padded arrays, and padded actions as a pool takes them.

    Attributes:
        observation, info: name -> `Field` of one environment.
        action: the `Field` of one environment's action, or action -> `Field`.

    Raises:
        ValueError: if the spec does not say how many entities or actors there can be, or two arrays have the same name.
    """

    def __init__(self, spec: EnvSpec, num_envs: int = 1) -> None:
        self._world = spec.config.name
        self._entities = _PaddedEntities(spec)
        self._actions = {name: _PaddedAction(spec, name, self._entities, num_envs) for name in spec.actions}
        self._closable = any(action.closable for action in self._actions.values())
        self._counts = np.zeros((num_envs, len(spec.entities)), np.int64)
        self.observation = self._entities.fields()
        for action in self._actions.values():
            named = {
                _path("actors", action.name): action.actors_field,
                _path("action_mask", action.name): action.mask_field,
            }
            self.observation |= {path: field for path, field in named.items() if field is not None}
        for names in (spec.entities, spec.actions):
            known: dict[str, str] = {}
            for name in names:
                other = known.setdefault(_path("", name), name)
                if other != name:
                    raise ValueError(f"{self._world} has {other!r} and {name!r}, which are one name here; rename one")
        self.info = {"env_id": Field((), _INT64, 0, num_envs - 1), "elapsed_step": Field((), _INT64, 0)}
        if self._closable:
            self.info["replaced_actions"] = Field((), _INT64, 0)
        self._fields = {name: action.field for name, action in self._actions.items()}
        dtypes = {field.dtype for field in self._fields.values()}
        self.action: Field | dict[str, Field] = _joined(self._fields) if len(dtypes) == 1 else self._fields

    def show(self, obs: VecObs) -> tuple[Frames, Frames]:
        """Return the observation and info of `obs`, which the next actions of its environments answer.

        Raises:
            ValueError: if there are more entities or actors than there is room for.
        """
        observation, info = self.show_final(obs)
        self._counts[obs.env_id] = self._entities.counts(obs)
        for name, action in self._actions.items():
            action.remember(obs, observation.get(_path("action_mask", name)))
        if self._closable:
            info["replaced_actions"][obs.elapsed_step == 0] = 0  # no action has led to a first frame
        return observation, info

    def show_final(self, obs: VecObs) -> tuple[Frames, Frames]:
        """Return observation and info of last observations, which no action answers; raises as `show` does."""
        counts = self._entities.counts(obs)
        observation = self._entities.pad(obs)
        for name, action in self._actions.items():
            action.check_fits(obs)
            if action.actors_field is not None:
                observation[_path("actors", name)] = action.actors(obs, counts)
            if action.mask_field is not None:
                observation[_path("action_mask", name)] = action.offered(obs, counts)
        info = {"env_id": obs.env_id, "elapsed_step": obs.elapsed_step}
        if self._closable:
            replaced = [action.num_replaced[obs.env_id] for action in self._actions.values()]
            info["replaced_actions"] = np.sum(replaced, axis=0)
        return observation, info

    def masks(self, observation: Mapping[str, NDArray[Any]]) -> dict[str, list[NDArray[np.int8]]]:
        """Return action -> one (C,) mask for each number of the action; continuous actions have none."""
        return {
            name: list(observation[_path("action_mask", name)])
            for name, action in self._actions.items()
            if action.mask_field is not None
        }

    def to_pool(self, actions: Any, ids: EnvIds) -> dict[str, VecAction]:
        """Convert the actions of the environments `ids`, (n, ...), to what their pool takes.

        Raises:
            ValueError: for actions that are missing, of another shape or type, or out of bounds; with
                `invalid_actions="raise"` also for choices that are not open.
        """
        values = self._split(actions, len(ids))
        return {name: action.read(values[name], ids, self._counts) for name, action in self._actions.items()}

    def forget_replaced(self) -> None:
        """Set the counts of replaced actions to 0, before a reset."""
        for action in self._actions.values():
            action.num_replaced[:] = 0

    def _split(self, actions: Any, num_envs: int) -> dict[str, NDArray[Any]]:
        """Return action -> its (n, A) or (n, A, F) part of `actions`."""
        if isinstance(self.action, dict):
            given = self._named(actions)
            return {
                name: self._checked(given[name], f"action {name!r}", field, num_envs)
                for name, field in self.action.items()
            }
        whole = self._checked(actions, f"the action, numbers of {list(self._fields)},", self.action, num_envs)
        sizes = [int(np.prod(field.shape)) for field in self._fields.values()]
        parts = np.split(whole.reshape(num_envs, sum(sizes)), np.cumsum(sizes)[:-1], axis=1)
        return {
            name: part.reshape(num_envs, *field.shape)
            for (name, field), part in zip(self._fields.items(), parts, strict=True)
        }

    def _named(self, actions: Any) -> Mapping[str, Any]:
        if not isinstance(actions, Mapping):
            raise ValueError(
                f"{self._world}: actions are {actions!r:.200}; expected a dictionary with {list(self._fields)}"
            )
        for name in actions:
            if name not in self._fields:
                raise ValueError(f"{self._world}: unknown action {name!r}; {nearest(name, self._fields)}")
        for name, field in self._fields.items():
            if name not in actions:
                raise ValueError(f"{self._world}: action {name!r} is missing; give numbers of shape {field.shape}")
        return actions

    def _checked(self, values: Any, what: str, field: Field, num_envs: int) -> NDArray[Any]:
        """Return `values` as an (n, ...) array with the dtype of `field`."""
        given, whole = np.asarray(values), field.dtype == _INT64
        if given.shape[:1] != (num_envs,):
            raise ValueError(
                f"{self._world}: {what} has shape {given.shape}; expected one row for each of {num_envs} environments"
            )
        if given.dtype.kind not in ("iu" if whole else "fiu") or given.shape[1:] != field.shape:
            raise ValueError(
                f"{self._world}: {what} has shape {given.shape[1:]} and dtype {given.dtype} in each environment; expected "
                f"{'whole numbers' if whole else 'numbers'} of shape {field.shape}"
            )
        with np.errstate(over="ignore"):  # a value that float32 cannot hold becomes infinite, and is refused
            return given.astype(field.dtype)


class _PaddedEntities:
    """Entities of n frames as arrays of fixed shapes; raises ValueError if the spec does not say how many there can be."""

    def __init__(self, spec: EnvSpec) -> None:
        self._world, self._entities = spec.config.name, spec.entities
        unknown = [name for name, entity in spec.entities.items() if entity.max is None]
        if unknown:
            example = "{" + ", ".join(f"{name!r}: 10" for name in unknown) + "}"
            raise ValueError(
                f"{self._world} does not say how many entities of a type there can be, which this form needs; say it, for "
                f"example max_entities={example}"
            )
        self._max = np.array([entity.max for entity in spec.entities.values()], np.int64)  # (T,)
        self._ends = np.cumsum(self._max)  # (T,) in the list of all rows
        self.num_rows = int(self._max.sum())  # P
        self._global_features, self._global_kinds = spec.obs_space.global_features, spec.obs_space.global_kinds

    def fields(self) -> dict[str, Field]:
        """Return the fields of `pad`."""
        fields: dict[str, Field] = {}
        for name, entity in self._entities.items():
            room = entity.max or 0
            if entity.features:
                limits = bounds(entity.features, entity.kinds)
                fields[_path("entities", name)] = Field((room, len(entity.features)), _FLOAT32, *limits)
            fields[_path("mask", name)] = flags(room)
        if names := self._global_features:
            fields["global"] = Field((len(names),), _FLOAT32, *bounds(names, self._global_kinds))
        return fields

    def counts(self, obs: VecObs) -> NDArray[np.int64]:
        """Return the (n, T) numbers of entities; raises ValueError if there are more than there is room for."""
        counts = np.zeros((len(obs), len(self._entities)), np.int64)
        for column, name in enumerate(self._entities):
            counts[:, column] = obs.features[name].size1()
        if (counts > self._max).any():
            frame, column = (int(i) for i in np.argwhere(counts > self._max)[0])
            name = list(self._entities)[column]
            raise ValueError(
                f"{self._world} (environment {obs.env_id[frame]}) shows {counts[frame, column]} entities of type {name!r}; "
                f"there is room for {self._max[column]}: see max_entities"
            )
        return counts

    def pad(self, obs: VecObs) -> Frames:
        """Return the entities and global features of `obs`, whose counts fit."""
        frames: Frames = {}
        for name, entity in self._entities.items():
            rows, shown, room = obs.features[name], obs.visible.get(name), entity.max or 0
            if entity.features:
                values = rows.values if shown is None else np.where(shown.values, rows.values, np.float32(0))
                frames[_path("entities", name)] = _padded(values, rows.offsets, room)
            seen = np.ones(rows.items(), np.int8) if shown is None else shown.values[:, 0].astype(np.int8)
            frames[_path("mask", name)] = _padded(seen, rows.offsets, room)
        if self._global_features:
            frames["global"] = obs.features[GLOBAL_ENTITY].values.copy()
        return frames

    def to_rows(self, counts: NDArray[np.int64], index: NDArray[np.int64]) -> NDArray[np.int64]:
        """Convert (K,) entity indices inside frames, whose counts are (K, T), to rows in the list of all entities."""
        ends = np.cumsum(counts, axis=1)
        column = (index[:, None] >= ends).sum(axis=1)
        here = np.arange(len(index))
        rows: NDArray[np.int64] = (
            self._ends[column] - self._max[column] + index - ends[here, column] + counts[here, column]
        )
        return rows

    def to_index(self, counts: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Invert `to_rows`."""
        column = np.searchsorted(self._ends, rows, side="right")
        here = np.arange(len(rows))
        starts = np.cumsum(counts, axis=1)[here, column] - counts[here, column]
        index: NDArray[np.int64] = starts + rows - (self._ends - self._max)[column]
        return index


class _PaddedAction:
    """One action of N environments: what they offered last, and the way from padded values to a pool's.

    Attributes:
        field: of an environment's values.
        actors_field, mask_field: of the observation's arrays, if it has them.
        num_replaced: (N,) how many of an environment's last values were not open and became others.

    Raises:
        ValueError: if the spec does not say how many actors there can be.
    """

    def __init__(self, spec: EnvSpec, name: str, entities: _PaddedEntities, num_envs: int) -> None:
        action = spec.actions[name]
        if action.max_actors is None:
            raise ValueError(
                f"{spec.config.name} does not say how many actors {name!r} can have, which this form needs; say it, for "
                f"example max_actors={{{name!r}: 1}}"
            )
        self.name, self.space = name, spec.action_space[name]
        self.max_actors, self.closable = action.max_actors, action.closable
        self._world, self._entities = spec.config.name, entities
        self._raises = spec.config.invalid_actions == "raise"
        self.num_choices = self.space.padded_choices(entities.num_rows)
        self._bounds = self.space.padded_bounds(self.num_choices)
        numbers = () if self.space.discrete else (self.space.width,)
        self.field = Field((self.max_actors, *numbers), np.dtype(self.space.dtype), *self._bounds)
        rows = Field((self.max_actors,), _INT64, -1, entities.num_rows - 1)
        self.actors_field = None if self.space.is_global else rows
        self.mask_field = flags(self.max_actors, self.num_choices) if self.space.discrete else None
        self.num_replaced = np.zeros(num_envs, np.int64)
        self._num_actors = np.zeros(num_envs, np.int64)
        self._open = np.zeros((num_envs, self.max_actors if self.closable else 0, self.num_choices), np.int8)

    def actors(self, obs: VecObs, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the (n, A) rows of the actors, -1 beyond the last one."""
        buffer = obs.action_masks[self.name].actors
        frame = np.repeat(np.arange(len(obs)), buffer.size1())
        rows = self._entities.to_rows(counts[frame], buffer.values[:, 0])
        return _padded(rows, buffer.offsets, self.max_actors, fill=-1)

    def offered(self, obs: VecObs, counts: NDArray[np.int64]) -> NDArray[np.int8]:
        """Return (n, A, C) 1 where the actor may take the choice."""
        mask = obs.action_masks[self.name]
        rows = None
        if mask.actees is not None:
            frame = np.repeat(np.arange(len(obs)), mask.actees.size1())
            rows = self._entities.to_rows(counts[frame], mask.actees.values[:, 0])
        return _padded(self.space.padded_mask(mask, self.num_choices, rows), mask.actors.offsets, self.max_actors)

    def remember(self, obs: VecObs, offered: NDArray[np.int8] | None) -> None:
        """Note that the next actions of these environments answer `obs`; `offered` is None for continuous actions."""
        self._num_actors[obs.env_id] = obs.action_masks[self.name].actors.size1()
        if self.closable:
            assert offered is not None
            self._open[obs.env_id] = offered

    def check_fits(self, obs: VecObs) -> None:
        """Raise ValueError if there are more actors than there is room for."""
        lengths = obs.action_masks[self.name].actors.size1()
        if len(lengths) and int(lengths.max()) > self.max_actors:
            frame = int(lengths.argmax())
            raise ValueError(
                f"{self._world} (environment {obs.env_id[frame]}) has {lengths[frame]} actors of {self.name!r}; there is "
                f"room for {self.max_actors}: see max_actors"
            )

    def read(self, values: NDArray[Any], ids: EnvIds, counts: NDArray[np.int64]) -> VecAction:
        """Convert padded values of the environments `ids` to what a pool takes.

        Args:
            values: (n, A) integers, or (n, A, F) float32.
            ids: (n,).
            counts: (N, T) numbers of entities in the frames that are answered.

        Raises:
            ValueError: for values out of bounds; with `invalid_actions="raise"` also for choices that are not open.
        """
        num_actors = self._num_actors[ids]
        here = np.arange(self.max_actors) < num_actors[:, None]  # (n, A)
        owner, offsets = np.repeat(ids, num_actors), offsets_of(num_actors)  # (K,)
        picked = values[here]  # (K, ...)
        self._check_bounds(picked, owner)
        self.num_replaced[ids] = 0
        if not self.space.discrete:
            return RaggedBuffer(picked, offsets)
        if self.closable:
            picked = self._open_only(picked, owner, self._open[ids][here])
        if self.space.selects:
            rows, picked = picked, np.full(len(picked), -1, np.int64)
            some = (rows >= 0) & (rows < self._entities.num_rows)  # the number of rows selects nobody
            picked[some] = self._entities.to_index(counts[owner[some]], rows[some])
        return RaggedBuffer(picked[:, None], offsets)

    def _check_bounds(self, picked: NDArray[Any], owner: EnvIds) -> None:
        low, high = self._bounds
        fits = (picked >= low) & (picked <= high) & np.isfinite(picked)
        if not fits.all():
            row = int(np.argwhere(~fits)[0][0])
            raise ValueError(f"{self._where(owner, row)}{self.space.padded_refusal(picked[row], high)}")

    def _open_only(self, asked: NDArray[np.int64], owner: EnvIds, open_: NDArray[np.int8]) -> NDArray[np.int64]:
        """Return (K,) open choices, -1 where nothing is open; `open_` is (K, C)."""
        closed = open_[np.arange(len(asked)), asked] == 0
        if not closed.any():
            return asked
        some_open = open_.any(axis=1)
        refused = np.flatnonzero(closed & some_open)
        if len(refused) and self._raises:
            k = int(refused[0])
            raise ValueError(
                f"{self._where(owner, k)} is {asked[k]}, which is not open now; open are {np.flatnonzero(open_[k]).tolist()}"
            )
        chosen = np.where(closed & ~some_open, -1, asked)
        chosen[refused] = _next_open(asked[refused], open_[refused])
        np.add.at(self.num_replaced, owner[refused], 1)
        return chosen

    def _where(self, owner: EnvIds, row: int) -> str:
        """Return how messages name the value in a row of (K, ...)."""
        actor = row - int((owner == owner[row]).argmax())
        return f"{self._world} (environment {owner[row]}): action {self.name!r} of actor {actor}"


def _path(kind: str, name: str) -> str:
    """Return the name of an array of the observation."""
    return f"{kind}/{name.replace('.', '/')}"


def _joined(fields: Mapping[str, Field]) -> Field:
    """Return the field of all values one after another; the only choice of the only actor has no dimension."""
    low, high = (np.concatenate([field.bounds()[side].ravel() for field in fields.values()]) for side in (0, 1))
    if low.dtype == _INT64 and len(low) == 1:
        return Field((), low.dtype, low[0], high[0])
    return Field(low.shape, low.dtype, low, high)


def _padded(values: NDArray[Any], offsets: NDArray[np.int64], most: int, fill: int = 0) -> NDArray[Any]:
    """Return (n, most, ...): the rows `values[offsets[i]:offsets[i + 1]]` of each frame i, then `fill`."""
    lengths = np.diff(offsets)
    out = np.full((len(lengths), most, *values.shape[1:]), fill, values.dtype)
    frame = np.repeat(np.arange(len(lengths)), lengths)
    out[frame, np.arange(len(values)) - offsets[frame]] = values
    return out


def _next_open(asked: NDArray[np.int64], open_: NDArray[np.int8]) -> NDArray[np.int64]:
    """Return (K,) the first open choice from each of `asked` on, continuing at 0 after the last; each row of (K, C) has one."""
    order = (asked[:, None] + np.arange(open_.shape[1])) % open_.shape[1]  # (K, C)
    first = np.take_along_axis(open_, order, axis=1).argmax(axis=1)
    found: NDArray[np.int64] = order[np.arange(len(asked)), first]
    return found


def in_batch(action: Any) -> Any:
    """Return one environment's action with a dimension for environments."""
    if isinstance(action, Mapping):
        return {name: np.asarray(values)[None] for name, values in action.items()}
    return np.asarray(action)[None]
