"""Padded form: observations and actions as nested arrays of fixed shapes, for libraries that have no entities.

An environment that declares fixed arrays shows these: `obs` is the observation itself, `obs:a.b` is
`observation["a"]["b"]`, and `info:a.b` is `info["a"]["b"]`. Every other environment shows its entities, padded:

    entities      type -> (max, F) float32; rows beyond the count and rows of hidden entities are 0; types with features only
    counts        type -> () int64, number of entities
    visible       type -> (max,) int8, 1 where the entity may be seen; types that can hide only
    global        (G,) float32 global features, if there are any
    actors        action -> (A,) int64, row of each actor, -1 beyond the last one; without global actions
    action_mask   action -> (A, C) int8, 1 where the actor may take the choice, 0 where there is no actor; (C,) in the plain form

Rows count through the list of all entities: type after type in the order of the space, `max` rows for each type.

An action is action -> (A,) integers: a choice, or the row of the selected entity, or the number of rows to select nobody (if
the space has `nobody`). Continuous actions are (A, F) numbers. Values beyond the last actor are ignored. If the environment has
one action with at most one actor, an action is *plain*: without the dictionary and the dimension of actors.
A choice that is not open becomes the next open one, or raises with `invalid_actions="raise"`.

The info of a frame has `env_id`, `elapsed_step`, `replaced_actions` (number of last actions that were not open, if actions can be
closed), `action_mask` (if fixed arrays are the observation), `players` (`env_id` of each row, if there are arrays with a row for
each player), and the `info:` arrays.

`PaddedForm` has room for as many entities as the spec says. `RaggedForm` is the same for one environment with exactly as much
room as each frame needs.

Shapes: N environments, n frames, T entity types, P rows, A actors with room, K actors in all frames, C choices, F numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from entity_gym.batch.ragged import RaggedBuffer, RaggedBufferF32, RaggedBufferI64, offsets_of
from entity_gym.batch.vec_obs import PLAYER_REWARD, TARGET, VecAction, VecObs
from entity_gym.errors import nearest
from entity_gym.pools.spec import EnvSpec
from entity_gym.spaces import GLOBAL_ENTITY, bounds

#: Upper bound of entity places in spaces of the ragged form, where the number of entities has no limit.
MAX_PLACES = 2**31

_INT64, _FLOAT32 = np.dtype(np.int64), np.dtype(np.float32)

#: Nested dictionaries. Leaves are `Field`s, or (N, ...) arrays, or `RaggedBuffer`s with some rows for each environment.
Tree: TypeAlias = Any
EnvIds = NDArray[np.int64]


# ---- trees


@dataclass(frozen=True)
class Field:
    """Shape, dtype and inclusive bounds of one environment's array; with `ragged`, of each of its rows."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    low: Any = -np.inf
    high: Any = np.inf
    ragged: bool = False

    def bounds(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return both bounds in the field's shape and dtype; integers, which have no infinity, are bounded by their dtype."""
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


def flags(*shape: int, ragged: bool = False) -> Field:
    """Return the field of an array of 0s and 1s."""
    return Field(shape, np.dtype(np.int8), 0, 1, ragged)


def map_tree(function: Callable[[Any], Any], tree: Tree) -> Tree:
    """Apply `function` to every leaf."""
    if isinstance(tree, dict):
        return {name: map_tree(function, branch) for name, branch in tree.items()}
    return function(tree)


def merge_trees(first: dict[str, Tree], second: dict[str, Tree]) -> dict[str, Tree]:
    """Merge two trees; raises ValueError if both have a leaf in the same place."""
    merged = dict(first)
    for name, branch in second.items():
        if name not in merged:
            merged[name] = branch
        elif isinstance(merged[name], dict) and isinstance(branch, dict):
            merged[name] = merge_trees(merged[name], branch)
        else:
            raise ValueError(f"there are two values called {name!r} in one place; rename one of them")
    return merged


def nest(values: Mapping[str, Any], prefix: str) -> Tree:
    """Nest the values with the keys `prefix` or `prefix:a.b` as a tree; {} if there are none.

    Raises:
        ValueError: if two keys lead to the same place, or a key is no path of names.
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


def frame_of(tree: Tree, row: int) -> Tree:
    """Return one frame: (...) arrays, and (rows, ...) arrays for ragged leaves."""

    def one(array: NDArray[Any] | RaggedBuffer[Any]) -> NDArray[Any]:
        if isinstance(array, RaggedBuffer):
            return array.values[array.offsets[row] : array.offsets[row + 1]]
        return np.asarray(array[row])

    return map_tree(one, tree)


def frames_of(tree: Tree) -> list[Tree]:
    """Return all frames, each as `frame_of` does."""
    if isinstance(tree, dict):
        branches = [frames_of(branch) for branch in tree.values()]
        return [dict(zip(tree, values, strict=True)) for values in zip(*branches, strict=True)]
    if isinstance(tree, RaggedBuffer):
        return [tree.values[lo:hi] for lo, hi in itertools.pairwise(tree.offsets.tolist())]
    return list(tree) if tree.ndim > 1 else [np.asarray(value) for value in tree]


def without_offsets(tree: Tree) -> Tree:
    """Replace every ragged leaf by its rows, those of all environments one after another."""
    return map_tree(lambda array: array.values if isinstance(array, RaggedBuffer) else array, tree)


# ---- entities


class PaddedEntities:
    """Entities of n frames as arrays of fixed shapes.

    Raises:
        ValueError: if the spec does not say how many entities there can be.
    """

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

    def fields(self, *, ragged: bool = False) -> dict[str, Tree]:
        """Return the fields of `pad`; with `ragged`, of rows that vary in number."""
        tree: dict[str, Tree] = {"entities": {}, "counts": {}, "visible": {}}
        for name, entity in self._entities.items():
            room = () if ragged else (entity.max or 0,)
            tree["counts"][name] = Field((), _INT64, 0, np.inf if ragged else entity.max)
            if entity.features:
                limits = bounds(entity.features, entity.kinds)
                tree["entities"][name] = Field((*room, len(entity.features)), _FLOAT32, *limits, ragged)
            if entity.hideable:
                tree["visible"][name] = flags(*room, ragged=ragged)
        if names := self._global_features:
            tree["global"] = Field((len(names),), _FLOAT32, *bounds(names, self._global_kinds))
        return without_empty(tree)

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

    def pad(self, obs: VecObs, counts: NDArray[np.int64]) -> dict[str, Tree]:
        """Return the frames of `obs`, whose `counts` (n, T) fit, as padded arrays."""
        tree: dict[str, Tree] = {"entities": {}, "counts": {}, "visible": {}}
        for column, (name, entity) in enumerate(self._entities.items()):
            rows, shown = obs.features[name], obs.visible.get(name)
            tree["counts"][name] = counts[:, column].copy()
            if entity.features:
                values = rows.values if shown is None else np.where(shown.values, rows.values, np.float32(0))
                tree["entities"][name] = padded(values, rows.offsets, entity.max or 0)
            if entity.hideable:
                seen = np.ones(rows.items(), np.int8) if shown is None else shown.values[:, 0].astype(np.int8)
                tree["visible"][name] = padded(seen, rows.offsets, entity.max or 0)
        if self._global_features:
            tree["global"] = obs.features[GLOBAL_ENTITY].values.copy()
        return without_empty(tree)

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


def padded(values: NDArray[Any], offsets: NDArray[np.int64], most: int, fill: int = 0) -> NDArray[Any]:
    """Return (n, most, ...): the rows `values[offsets[i]:offsets[i + 1]]` of each frame i, then `fill`."""
    lengths = np.diff(offsets)
    out = np.full((len(lengths), most, *values.shape[1:]), fill, values.dtype)
    frame = np.repeat(np.arange(len(lengths)), lengths)
    out[frame, np.arange(len(values)) - offsets[frame]] = values
    return out


def without_empty(tree: dict[str, Tree]) -> dict[str, Tree]:
    """Drop the branches that hold nothing."""
    return {name: branch for name, branch in tree.items() if not isinstance(branch, dict) or branch}


# ---- actions


class PaddedAction:
    """One action of N environments: what they offered last, and the way from padded values to a pool's.

    Attributes:
        num_replaced: (N,) how many of an environment's last values were not open and became others.

    Raises:
        ValueError: if the spec does not say how many actors there can be.
    """

    def __init__(self, spec: EnvSpec, name: str, entities: PaddedEntities, num_envs: int) -> None:
        action = spec.actions[name]
        if action.max_actors is None:
            raise ValueError(
                f"{spec.config.name} does not say how many actors {name!r} can have, which this form needs; say it, for "
                f"example max_actors={{{name!r}: 1}}"
            )
        self.name, self.space, self.max_actors = name, spec.action_space[name], action.max_actors
        self._world, self._entities = spec.config.name, entities
        self._raises = spec.config.invalid_actions == "raise"
        self.num_choices = self.space.padded_choices(entities.num_rows)
        self.has_choices = self.space.discrete
        self.closable = action.closable
        self._field = self.field()
        self.num_replaced = np.zeros(num_envs, np.int64)
        self.num_actors = np.zeros(num_envs, np.int64)
        self.open = np.zeros((num_envs, self.max_actors if self.closable else 0, self.num_choices), np.int8)

    def field(self, *shape: int, ragged: bool = False) -> Field:
        """Return the field of values for actors of this shape."""
        numbers = () if self.has_choices else (self.space.width,)
        low, high = self.space.padded_bounds(self.num_choices)
        return Field((*shape, *numbers), np.dtype(self.space.dtype), low, high, ragged)

    def actors(self, obs: VecObs, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the (n, A) rows of the actors, -1 beyond the last one."""
        buffer = obs.action_masks[self.name].actors
        frame = np.repeat(np.arange(len(obs)), buffer.size1())
        rows = self._entities.to_rows(counts[frame], buffer.values[:, 0])
        return padded(rows, buffer.offsets, self.max_actors, fill=-1)

    def offered(self, obs: VecObs, counts: NDArray[np.int64]) -> NDArray[np.int8]:
        """Return (n, A, C) 1 where the actor may take the choice; raises ValueError if there are too many actors."""
        self.check_fits(obs)
        mask = obs.action_masks[self.name]
        rows = None
        if mask.actees is not None:
            frame = np.repeat(np.arange(len(obs)), mask.actees.size1())
            rows = self._entities.to_rows(counts[frame], mask.actees.values[:, 0])
        return padded(self.space.padded_mask(mask, self.num_choices, rows), mask.actors.offsets, self.max_actors)

    def remember(self, obs: VecObs, offered: NDArray[np.int8] | None) -> None:
        """Note that the next actions of these environments answer `obs`; `offered` may be None unless `closable`."""
        self.num_actors[obs.env_id] = obs.action_masks[self.name].actors.size1()
        if self.closable:
            assert offered is not None
            self.open[obs.env_id] = offered

    def check_fits(self, obs: VecObs) -> None:
        """Raise ValueError if there are more actors than there is room for."""
        lengths = obs.action_masks[self.name].actors.size1()
        if len(lengths) and int(lengths.max()) > self.max_actors:
            frame = int(lengths.argmax())
            raise ValueError(
                f"{self._world} (environment {obs.env_id[frame]}) has {lengths[frame]} actors of {self.name!r}; there is "
                f"room for {self.max_actors}: see max_actors"
            )

    def read(self, values: Any, shape: tuple[int, ...], ids: EnvIds, counts: NDArray[np.int64]) -> VecAction:
        """Convert padded values of the environments `ids` to what a pool takes.

        Args:
            values: of this action's `field`, for actors of `shape`.
            shape: (n, A), or (n,) in the plain form.
            ids: (n,).
            counts: (N, T) numbers of entities in the frames that are answered.

        Raises:
            ValueError: for values of another shape or type, or out of bounds; with `invalid_actions="raise"` also for
                choices that are not open.
        """
        given = self.checked(values, shape)
        num_actors = self.num_actors[ids]
        here = np.arange(self.max_actors) < num_actors[:, None]  # (n, A)
        owner = np.repeat(ids, num_actors)  # (K,)
        picked = given.reshape(*here.shape, *given.shape[len(shape) :])[here]  # (K, ...)
        self.check_bounds(picked, owner)
        self.num_replaced[ids] = 0
        open_ = self.open[ids][here] if self.closable else None
        return self.to_pool(picked, num_actors, owner, open_, counts)

    def checked(self, values: Any, shape: tuple[int, ...]) -> NDArray[Any]:
        """Return `values` as an array with the dtype of the field; raises ValueError for another shape or type."""
        given, wanted = np.asarray(values), (*shape, *self._field.shape)
        if given.dtype.kind not in ("iu" if self.has_choices else "fiu") or given.shape != wanted:
            raise ValueError(
                f"action {self.name!r} has shape {given.shape} and dtype {given.dtype}; expected "
                f"{'whole numbers' if self.has_choices else 'numbers'} of shape {wanted}"
            )
        if self.has_choices:
            return given.astype(np.int64)
        with np.errstate(over="ignore"):  # a value that float32 cannot hold becomes infinite, and is refused
            return given.astype(np.float32)

    def check_bounds(self, picked: NDArray[Any], owner: EnvIds, most: int | None = None) -> None:
        """Raise ValueError if one of (K, ...) values is out of bounds; `most` replaces the largest choice."""
        low, high = self._field.low, self._field.high if most is None else most
        fits = (picked >= low) & (picked <= high)
        if not self.has_choices:
            fits &= np.isfinite(picked)
        if not fits.all():
            row = int(np.argwhere(~fits)[0][0])
            raise ValueError(f"{self._where(owner, row)}{self.space.padded_refusal(picked[row], high)}")

    def to_pool(
        self,
        picked: NDArray[Any],
        num_actors: NDArray[np.int64],
        owner: EnvIds,
        open_: NDArray[np.int8] | None,
        counts: NDArray[np.int64],
    ) -> VecAction:
        """Convert (K, ...) values of actors to what a pool takes; `open_` (K, C) says which are open, None: all."""
        offsets = offsets_of(num_actors)
        if not self.has_choices:
            return RaggedBufferF32.from_offsets(picked, offsets)
        if open_ is not None:
            picked = self._open_only(picked, owner, open_)
        if self.space.selects:
            rows, picked = picked, np.full(len(picked), -1, np.int64)
            some = (rows >= 0) & (rows < self._entities.num_rows)  # the number of rows selects nobody
            picked[some] = self._entities.to_index(counts[owner[some]], rows[some])
        return RaggedBufferI64.from_offsets(picked[:, None], offsets)

    def _open_only(self, asked: NDArray[np.int64], owner: EnvIds, open_: NDArray[np.int8]) -> NDArray[np.int64]:
        """Return (K,) open choices, -1 where nothing is open; choices below 0 were not given."""
        known = (asked >= 0) & (asked < self.num_choices)
        if known.all():
            closed = open_[np.arange(len(asked)), asked] == 0
        else:
            closed = ~known
            closed[known] = open_[known, asked[known]] == 0
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
        chosen[refused] = _next_open(np.maximum(asked[refused], 0), open_[refused])
        np.add.at(self.num_replaced, owner[refused], 1)
        return chosen

    def _where(self, owner: EnvIds, row: int) -> str:
        """Return how messages name the value in a row of (K, ...)."""
        actor = row - int((owner == owner[row]).argmax())
        return f"{self._world} (environment {owner[row]}): action {self.name!r} of actor {actor}"


def _next_open(asked: NDArray[np.int64], open_: NDArray[np.int8]) -> NDArray[np.int64]:
    """Return (K,) the first open choice from each of `asked` on, continuing at 0 after the last; each row of (K, C) has one."""
    order = (asked[:, None] + np.arange(open_.shape[1])) % open_.shape[1]  # (K, C)
    first = np.take_along_axis(open_, order, axis=1).argmax(axis=1)
    found: NDArray[np.int64] = order[np.arange(len(asked)), first]
    return found


def named_actions(actions: Any, wanted: Mapping[str, str]) -> Mapping[str, Any]:
    """Return `actions`; raises ValueError unless it is a dictionary with the names `wanted`, which also say for whom they are."""
    if not isinstance(actions, Mapping):
        # Without the dimension of environments, as the user of a single environment gave it.
        shown = actions.squeeze().tolist() if isinstance(actions, np.ndarray) else actions
        raise ValueError(f"actions are {shown!r:.200}; expected a dictionary with {list(wanted)}")
    for name in actions:
        if name not in wanted:
            raise ValueError(f"unknown action {name!r}; {nearest(name, wanted)}")
    for name, whom in wanted.items():
        if name not in actions:
            raise ValueError(f"action {name!r} is missing; give one number for {whom}")
    return actions


def in_batch(action: Any) -> Any:
    """Return one environment's action with a dimension for environments."""
    if isinstance(action, Mapping):
        return {name: np.asarray(values)[None] for name, values in action.items()}
    return np.asarray(action)[None]


# ---- forms


class PaddedForm:
    """Frames of N environments as trees of padded arrays, and padded actions as a pool takes them.

    Attributes:
        plain: whether an action is a plain number (or, if continuous, plain numbers) instead of a dictionary.
        observation, info, action: trees of `Field`s, of one environment.

    Raises:
        ValueError: if the spec does not say how many entities or actors there can be, or arrays have impossible names.
    """

    def __init__(self, spec: EnvSpec, num_envs: int = 1) -> None:
        self._world, self._arrays = spec.config.name, spec.arrays
        observation, info = _array_fields(spec)
        self._entities = PaddedEntities(spec)
        self._actions = {name: PaddedAction(spec, name, self._entities, num_envs) for name in spec.actions}
        actions = self._actions.values()
        self.plain = len(actions) == 1 and all(action.max_actors == 1 for action in actions)
        self._closable = any(action.closable for action in actions)
        self._shows_entities = observation == {}
        self._masks_in_info = not self._shows_entities and (self._closable or not self.plain)
        self._masks = self._shows_entities or self._masks_in_info
        selects = any(space.selects for space in spec.action_space.values())
        self._needs_counts = self._masks or selects
        self._counts = np.zeros((num_envs, len(spec.entities)), np.int64)
        self._per_player = next((name for name, array in spec.arrays.items() if array.per_player), None)

        shapes = {action.name: () if self.plain else (action.max_actors,) for action in actions}
        masks = {action.name: flags(*shapes[action.name], action.num_choices) for action in actions}
        if self._shows_entities:
            acting = {
                action.name: Field((action.max_actors,), _INT64, -1, self._entities.num_rows - 1)
                for action in actions
                if not action.space.is_global
            }
            observation = without_empty({**self._entities.fields(), "action_mask": masks, "actors": acting})
        own: dict[str, Tree] = {"env_id": Field((), _INT64, 0, num_envs - 1), "elapsed_step": Field((), _INT64, 0)}
        if self._closable:
            own["replaced_actions"] = Field((), _INT64, 0)
        if self._masks_in_info:
            own["action_mask"] = masks
        if self._per_player is not None:
            own["players"] = {"env_id": Field((), _INT64, 0, num_envs - 1, ragged=True)}
        self.observation: Tree = observation
        self.info: dict[str, Tree] = merge_trees(own, info)
        fields = {action.name: action.field(*shapes[action.name]) for action in actions}
        self.action: Tree = next(iter(fields.values())) if self.plain else fields

    def show(self, obs: VecObs) -> tuple[Tree, dict[str, Tree]]:
        """Return the observation and info of `obs`, which the next actions of its environments answer."""
        counts, offered = self._offered(obs)
        for name, action in self._actions.items():
            if offered is None:
                action.check_fits(obs)
            action.remember(obs, None if offered is None else offered[name])
        if counts is not None:
            self._counts[obs.env_id] = counts
        observation, info = self._frames(obs, counts, offered)
        if self._closable:
            info["replaced_actions"][obs.elapsed_step == 0] = 0  # no action has led to a first frame
        return observation, info

    def show_final(self, obs: VecObs) -> tuple[Tree, dict[str, Tree]]:
        """Return observation and info of last observations, which no action answers."""
        return self._frames(obs, *self._offered(obs))

    def to_pool(self, actions: Any, ids: EnvIds) -> dict[str, VecAction]:
        """Convert the padded actions of the environments `ids` to what their pool takes.

        Raises:
            ValueError: for actions that are missing, of another shape or type, or out of bounds.
        """
        if self.plain:
            given: Mapping[str, Any] = {next(iter(self._actions)): actions}
        else:
            whom = {name: f"each of {action.max_actors} actors" for name, action in self._actions.items()}
            given = named_actions(actions, whom)
        return {
            name: action.read(
                given[name], (len(ids),) if self.plain else (len(ids), action.max_actors), ids, self._counts
            )
            for name, action in self._actions.items()
        }

    def forget_replaced(self) -> None:
        """Set the counts of replaced actions to 0, before a reset."""
        for action in self._actions.values():
            action.num_replaced[:] = 0

    def _offered(self, obs: VecObs) -> tuple[NDArray[np.int64] | None, dict[str, NDArray[np.int8]] | None]:
        counts = self._entities.counts(obs) if self._needs_counts else None
        if counts is None or not self._masks:
            return counts, None
        return counts, {name: action.offered(obs, counts) for name, action in self._actions.items()}

    def _frames(
        self, obs: VecObs, counts: NDArray[np.int64] | None, offered: dict[str, NDArray[np.int8]] | None
    ) -> tuple[Tree, dict[str, Tree]]:
        shown = {name for name in obs.arrays if name != PLAYER_REWARD and not name.startswith(TARGET)}
        if missing := sorted(self._arrays.keys() ^ shown):
            raise ValueError(f"{self._world}: the pool does not show the declared arrays as they are: {missing}")
        masks = {name: mask[:, 0] if self.plain else mask for name, mask in (offered or {}).items()}
        own: dict[str, Tree] = {"env_id": obs.env_id, "elapsed_step": obs.elapsed_step}
        if self._closable:
            own["replaced_actions"] = _num_replaced(self._actions, obs)
        if self._masks_in_info:
            own["action_mask"] = masks
        if self._per_player is not None:
            rows = obs.arrays[self._per_player]
            assert isinstance(rows, RaggedBuffer)
            own["players"] = {"env_id": RaggedBuffer.from_offsets(np.repeat(obs.env_id, rows.size1()), rows.offsets)}
        info = merge_trees(own, nest(obs.arrays, "info"))
        if counts is None or not self._shows_entities:
            return nest(obs.arrays, "obs"), info
        return {**self._entities.pad(obs, counts), **_actors_and_masks(self._actions, obs, counts, masks)}, info


class RaggedForm:
    """Frames of one environment with as many rows as there are, and actions with a value for each actor.

    The observation is that of the padded form without padding, also where the environment declares fixed arrays; n, A and the
    number of pairs differ between frames:

        entities      type -> (n, F) float32
        counts        type -> () int64
        visible       type -> (n,) int8
        global        (G,) float32
        actors        action -> (A,) int64, index of the entity that acts
        action_mask   action -> (A, C) int8; (C,) for a global action; for selecting entities (pairs, 2) int64: place of an actor
                      in `actors`, and index of an entity that it may select; without continuous actions

    An action is action -> (A,) integers, (A, F) numbers if continuous, () for a global action. The environment decides how many
    actors there are: values beyond the last one are ignored, and an actor without a value takes the first open choice, or the
    numbers nearest to 0. That counts as replaced, and raises with `invalid_actions="raise"`.

    Attributes:
        observation, action: trees of `Field`s.
    """

    def __init__(self, spec: EnvSpec) -> None:
        _array_fields(spec)  # refuses impossible names
        self._spec = spec
        self._raises = spec.config.invalid_actions == "raise"
        self._actions: dict[str, PaddedAction] = {}  # of the last frame
        self._counts = np.zeros((1, len(spec.entities)), np.int64)
        roomy = _with_room(spec, [0] * len(spec.entities), dict.fromkeys(spec.actions, 0))
        entities = PaddedEntities(roomy)
        tree: dict[str, Tree] = {**entities.fields(ragged=True), "actors": {}, "action_mask": {}}
        self.action: dict[str, Tree] = {}
        for name, space in spec.action_space.items():
            action = PaddedAction(roomy, name, entities, 1)
            self.action[name] = action.field(ragged=not action.space.is_global)
            if not action.space.is_global:
                tree["actors"][name] = Field((), _INT64, 0, MAX_PLACES, ragged=True)
            if space.selects:
                self.action[name] = Field((), _INT64, 0, MAX_PLACES, ragged=True)
                tree["action_mask"][name] = Field((2,), _INT64, 0, ragged=True)
            elif action.has_choices:
                tree["action_mask"][name] = flags(action.num_choices, ragged=not action.space.is_global)
        self.observation: Tree = without_empty(tree)

    def show(self, obs: VecObs) -> tuple[Tree, dict[str, Tree]]:
        """Return the observation and info of `obs`, of one environment, which the next action answers."""
        assert len(obs) == 1, "this form is of one environment"
        num_entities = [int(obs.features[name].items()) for name in self._spec.entities]
        num_actors = {name: int(mask.actors.items()) for name, mask in obs.action_masks.items()}
        num_replaced = _num_replaced(self._actions, obs)
        spec = _with_room(self._spec, num_entities, num_actors)
        entities = PaddedEntities(spec)
        counts = self._counts = entities.counts(obs)
        self._actions = {name: PaddedAction(spec, name, entities, 1) for name in spec.actions}
        masks: dict[str, NDArray[Any]] = {}
        for name, action in self._actions.items():
            offered = action.offered(obs, counts)
            action.remember(obs, offered if action.closable else None)
            if action.space.selects:
                masks[name] = np.argwhere(offered[0, :, : entities.num_rows]).astype(np.int64)[None]
            elif action.has_choices:
                masks[name] = np.asarray(offered.any(axis=1), np.int8) if action.space.is_global else offered
        own = {"env_id": obs.env_id, "elapsed_step": obs.elapsed_step, "replaced_actions": num_replaced}
        tree = {**entities.pad(obs, counts), **_actors_and_masks(self._actions, obs, counts, masks)}
        return tree, merge_trees(own, nest(obs.arrays, "info"))

    def to_pool(self, actions: Any, ids: EnvIds) -> dict[str, VecAction]:
        """Convert an action, with a dimension for the one environment, to what its pool takes.

        Raises:
            ValueError: for actions that are missing, of another shape or type, or out of bounds; with
                `invalid_actions="raise"` also for choices that are not open, and too many or too few values.
        """
        whom = {name: f"each of {action.max_actors} actors" for name, action in self._actions.items()}
        given = named_actions(actions, whom)
        self.forget_replaced()
        return {name: self._read(action, np.asarray(given[name])[0], ids) for name, action in self._actions.items()}

    def forget_replaced(self) -> None:
        """Set the counts of replaced actions to 0, before a reset."""
        for action in self._actions.values():
            action.num_replaced[:] = 0

    def _read(self, action: PaddedAction, values: NDArray[Any], ids: EnvIds) -> VecAction:
        field = self.action[action.name]
        if not values.size and field.ragged:
            values = np.zeros((0, *field.shape), field.dtype)  # an empty list has no dtype
        picked = action.checked(values, values.shape[:1] or (action.max_actors,) if field.ragged else ())
        picked = picked if field.ragged else picked[None]
        num_actors = action.max_actors
        if self._raises and len(picked) != num_actors:
            raise ValueError(
                f"{self._spec.config.name}: action {action.name!r} has {len(picked)} rows, and {num_actors} actors: give one "
                f"for each, as many as the observation has in ['actors'][{action.name!r}]"
            )
        action.check_bounds(picked, np.zeros(len(picked), np.int64), None if field.shape else field.high)
        missing = max(0, num_actors - len(picked))
        nothing: Any = -1  # becomes the first open choice
        if not action.has_choices:
            nothing = np.clip(np.float32(0), field.low, field.high)
            action.num_replaced[:] += missing
        filled = np.empty((num_actors, *field.shape), field.dtype)
        filled[: len(picked)], filled[len(picked) :] = picked[:num_actors], nothing
        open_ = action.open[0] if action.closable else None
        return action.to_pool(filled, action.num_actors, np.repeat(ids, num_actors), open_, self._counts)


def _with_room(spec: EnvSpec, num_entities: Sequence[int], num_actors: Mapping[str, int]) -> EnvSpec:
    """Return the spec with this much room for entities and actors; all choices can be closed, also by not being given."""
    entities = {
        name: replace(entity, max=most)
        for (name, entity), most in zip(spec.entities.items(), num_entities, strict=True)
    }
    actions = {
        name: replace(
            action,
            max_actors=num_actors[name],
            closable=spec.action_space[name].discrete,
        )
        for name, action in spec.actions.items()
    }
    return replace(spec, entities=entities, actions=actions)


def _num_replaced(actions: Mapping[str, PaddedAction], obs: VecObs) -> NDArray[np.int64]:
    """Return the (n,) numbers of replaced values, over all actions."""
    total = np.zeros(len(obs), np.int64)
    for action in actions.values():
        total += action.num_replaced[obs.env_id]
    return total


def _actors_and_masks(
    actions: Mapping[str, PaddedAction], obs: VecObs, counts: NDArray[np.int64], masks: dict[str, Any]
) -> dict[str, Tree]:
    actors = {name: action.actors(obs, counts) for name, action in actions.items() if not action.space.is_global}
    return without_empty({"action_mask": masks, "actors": actors})


def _array_fields(spec: EnvSpec) -> tuple[Tree, dict[str, Tree]]:
    """Return the fields of the observation and of the info that fixed arrays give; {} for an observation without any.

    Raises:
        ValueError: for names that are neither `obs`, `obs:...` nor `info:...`.
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
    return nest(fields, "obs"), nest(fields, "info")
