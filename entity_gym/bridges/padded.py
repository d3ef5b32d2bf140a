"""The padded form: observations and actions as arrays of fixed shapes, for libraries that have no entities.

    env = make_gym("CartPole-v1", num_envs=8)                           # many, as a Gymnasium vector environment
    env = make_dm("CartPole-v1", num_envs=8)                            # many, as a dm_env environment
    env = to_gymnasium("MineSweeper")                                   # one
    env = to_gymnasium(MyWorld, max_entities={"Robot": 4, "Box": 20})   # a Python world does not say how many there can be
    env = to_pettingzoo("MultiSnake", num_snakes=4, num_players=2, max_actors={"move": 2})
    env = to_dm_env("MineSweeper", seed=1)

An observation is a dictionary of arrays:

    entities/TYPE       (max, F) float32; rows beyond the last entity and rows of hidden ones are 0; types with features only
    mask/TYPE           (max,) int8, 1 where there is an entity that can be seen
    global              (G,) float32 global features, if there are any
    actors/ACTION       (A,) int64, row of each actor, -1 beyond the last one; without global actions
    action_mask/ACTION  (A, C) int8, 1 where the actor may take the choice, 0 where there is no actor; choices only. Of sets
                        (A, P), 1 where the actor may select the entity of the row

Rows count through the list of all entities: type after type in the order of the space, `max` rows for each type. A "." in a
name becomes "/", since PyTorch modules cannot be named so.

An action is one array: the numbers of all actors of the first action of the action space, then those of the second, and so on.
A number is a choice, or the row of the selected entity, or the number of rows to select nobody (if the space has `nobody`);
continuous actions have F numbers for each actor. The only choice of the only actor is an integer. In a world that has choices
and continuous actions, an action is a dictionary: action -> (A,) integers, (A, F) numbers, or sets, (A, P) integers.
Numbers beyond the last actor are ignored. A choice that is not open becomes the next open one.

A set has a number for each of the P rows, actor after actor: 1 where the actor selects the row, 0 where it does not. In ordered
sets the numbers from 1 on are the order; rows with equal numbers stay in the order of rows. Closed rows are left out, and so
are the last ones where there are more than the space allows; where there are too few, the first open rows are added.

The info has `env_id`, `elapsed_step`, and `replaced_actions` (number of last choices that were not open, and of rows left out of
sets or added to them, if choices can be closed).

Shapes: N environments, n frames, T entity types, P rows, A actors with room, K actors in all frames, C choices, F numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions.chains import decision_order, narrowed
from entity_gym.actions.select_entity import open_pairs
from entity_gym.batch.ragged import RaggedBuffer, offsets_of
from entity_gym.batch.vec_obs import VecAction, VecObs
from entity_gym.pools.pool import ThreadedVecEnv
from entity_gym.pools.spec import EnvSpec, spec_of
from entity_gym.pools.vec_env import EnvIdLike, VecEnv, check_env_id
from entity_gym.registry import prepare
from entity_gym.spaces import GLOBAL_ENTITY

_MOST = np.iinfo(np.int64).max

Made = TypeVar("Made")

#: Name -> (n, ...) array of n frames.
Frames: TypeAlias = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Field:
    """Shape, dtype and inclusive bounds of one environment's array; both bounds become arrays of that shape."""

    shape: tuple[int, ...]
    dtype: Any
    low: Any
    high: Any

    def __post_init__(self) -> None:
        for side in ("low", "high"):
            bound = np.broadcast_to(np.asarray(getattr(self, side), self.dtype), self.shape)
            object.__setattr__(self, side, bound)


class PaddedForm:
    """Frames of N environments as padded arrays, and padded actions as a pool takes them.

    Args:
        spec: of the environments.
        num_envs: N.
        kind: how messages call what has a frame.

    Attributes:
        observation, info: name -> `Field` of one environment.
        action: the `Field` of one environment's action, or action -> `Field`.

    Raises:
        ValueError: if the spec does not say how many entities or actors there can be.
    """

    def __init__(self, spec: EnvSpec, num_envs: int = 1, kind: str = "environment") -> None:
        self._world, self._kind, self._spec = spec.config.name, kind, spec
        unknown = {
            "max_entities": [name for name, most in spec.entities.items() if most is None],
            "max_actors": [name for name, most in spec.actions.items() if most is None],
        }
        if any(unknown.values()):
            options = [f"{option}={dict.fromkeys(names, 10)}" for option, names in unknown.items() if names]
            raise ValueError(
                f"{self._world} does not say how many entities and actors there can be, which this form needs; say it, for "
                f"example {', '.join(options)}"
            )
        for listed in (list(spec.entities), list(spec.actions)):
            if same := [name for name in listed if "." in name and name.replace(".", "/") in listed]:
                raise ValueError(
                    f"{self._world} has {same[0]!r} and {same[0].replace('.', '/')!r}, which are one name here, as '.' becomes "
                    "'/'; rename one of them"
                )
        self._room = np.array(list(spec.entities.values()), np.int64)  # (T,)
        self._ends = np.cumsum(self._room)  # (T,) in the list of all rows
        num_rows = int(self._room.sum())
        self.observation: dict[str, Field] = {}
        for name, entity in spec.obs_space.entities.items():
            most = spec.entities[name] or 0
            if entity.features:
                shape = most, len(entity.features)
                self.observation[_path("entities", name)] = Field(shape, np.float32, entity.low, entity.high)
            self.observation[_path("mask", name)] = Field((most,), np.int8, 0, 1)
        if names := spec.obs_space.global_features:
            space = spec.obs_space.entity(GLOBAL_ENTITY)
            self.observation["global"] = Field((len(names),), np.float32, space.low, space.high)
        self._fields: dict[str, Field] = {}  # action -> its values of one environment
        self._num_actors: dict[str, NDArray[np.int64]] = {}  # action -> (N,) of the offer that the next action answers
        self._open: dict[str, NDArray[np.int8]] = {}  # action that can be closed -> (N, A, C) its mask in that offer
        self._actees: dict[str, NDArray[np.int64]] = {}  # of sets: action -> (N, P) rows of its actees, then -1
        for name, action in spec.action_space.items():
            most, (low, high) = spec.actions[name] or 0, action.padded_bounds(num_rows)
            self._num_actors[name] = np.zeros(num_envs, np.int64)
            if not action.is_global:
                self.observation[_path("actors", name)] = Field((most,), np.int64, -1, num_rows - 1)
            if not action.discrete:
                self._fields[name] = Field((most, action.width), np.float32, low, high)
                continue
            self._fields[name] = Field((most, num_rows) if action.per_pair else (most,), np.int64, low, high)
            shape = most, num_rows if action.per_pair else high + 1
            self.observation[_path("action_mask", name)] = Field(shape, np.int8, 0, 1)
            if name in spec.closable:
                self._open[name] = np.zeros((num_envs, *shape), np.int8)
            if action.per_pair:
                self._actees[name] = np.full((num_envs, num_rows), -1, np.int64)
        self._shown: dict[int, tuple[VecObs, int]] = {}  # of chained worlds: environment -> its last observation, a row
        self._shift = np.zeros((num_envs, len(self._room)), np.int64)  # row - index, of the entities shown last
        self.info = {"env_id": Field((), np.int64, 0, num_envs - 1), "elapsed_step": Field((), np.int64, 0, _MOST)}
        self.num_replaced = np.zeros(num_envs, np.int64)
        if self._open:
            self.info["replaced_actions"] = Field((), np.int64, 0, _MOST)
        fields = list(self._fields.values())
        self.action: Field | dict[str, Field] = self._fields
        dtypes = {field.dtype for field in fields}
        if len(dtypes) == 1:
            low, high = (np.concatenate([getattr(field, side).ravel() for field in fields]) for side in ("low", "high"))
            shape = () if len(low) == 1 and dtypes == {np.int64} else low.shape
            self.action = Field(shape, dtypes.pop(), low.reshape(shape), high.reshape(shape))

    def show(self, obs: VecObs, *, answered: bool = True) -> tuple[Frames, Frames]:
        """Return the observation and info of `obs`.

        Args:
            obs: of some of the environments.
            answered: the next actions of these environments answer `obs`; false for last observations.

        Raises:
            ValueError: if there are more entities or actors than there is room for.
        """
        observation: Frames = {}
        counts = np.zeros((len(obs), len(self._room)), np.int64)
        for column, (name, entity) in enumerate(self._spec.obs_space.entities.items()):
            rows, visible, most = obs.features[name], obs.visible.get(name), self._spec.entities[name] or 0
            counts[:, column] = rows.size1()
            if entity.features:
                values = rows.values if visible is None else np.where(visible.values, rows.values, np.float32(0))
                observation[_path("entities", name)] = self._padded(name, values, rows.offsets, most)
            seen = np.ones(rows.items(), np.int8) if visible is None else visible.values[:, 0].astype(np.int8)
            observation[_path("mask", name)] = self._padded(name, seen, rows.offsets, most)
        if self._spec.obs_space.global_features:
            observation["global"] = obs.features[GLOBAL_ENTITY].values.copy()
        ends = np.cumsum(counts, axis=1)
        shift = (self._ends - self._room) - (ends - counts)

        def rows_of(index: RaggedBuffer[np.int64]) -> NDArray[np.int64]:
            """Return the rows in the list of all entities of entity indices inside frames."""
            frame, flat = index.sequences, index.values[:, 0]
            rows: NDArray[np.int64] = flat + shift[frame, (flat[:, None] >= ends[frame]).sum(axis=1)]
            return rows

        for name, field in self._fields.items():
            offered, space, most = obs.action_masks[name], self._spec.action_space[name], field.shape[0]
            actors = offered.actors
            if not space.is_global:
                observation[_path("actors", name)] = self._padded(name, rows_of(actors), actors.offsets, most, fill=-1)
            if space.discrete:
                actees = None if offered.actees is None else rows_of(offered.actees)
                num_choices = self.observation[_path("action_mask", name)].shape[1]
                if offered.actees is not None and actees is not None:
                    is_open = np.zeros((actors.items(), num_choices), np.int8)
                    is_open[open_pairs(offered, actees)] = 1
                    is_open[:, self._room.sum() :] = 1  # the number of rows is nobody
                    if answered and name in self._actees:
                        padded = self._padded(name, actees, offered.actees.offsets, num_choices, fill=-1)
                        self._actees[name][obs.env_id] = padded
                else:
                    is_open = offered.spelled_out(num_choices).values.view(np.int8)
                observation[_path("action_mask", name)] = mask = self._padded(name, is_open, actors.offsets, most)
                if answered and name in self._open:
                    self._open[name][obs.env_id] = mask
            if answered:
                self._num_actors[name][obs.env_id] = actors.size1()
                if space.after and space.num_choices:
                    self._shown |= {i: (obs, row) for row, i in enumerate(obs.env_id.tolist())}
        info: Frames = {"env_id": obs.env_id, "elapsed_step": obs.elapsed_step}
        if answered:
            self._shift[obs.env_id] = shift
        if self._open:
            info["replaced_actions"] = self.num_replaced[obs.env_id]
            if answered:
                info["replaced_actions"][obs.elapsed_step == 0] = 0  # no action has led to a first frame
        return observation, info

    def masks(self, observation: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.int8] | None]:
        """Return action -> masks (A, C), or of sets (A, P, C), one for each number of the action; None for continuous actions."""
        masks = {name: observation.get(_path("action_mask", name)) for name in self._fields}
        for name in self._actees:
            if (mask := masks[name]) is not None:  # every row may be left out, so 0 is always open
                places = np.repeat(mask[:, :, None], self._fields[name].high.max(initial=0), axis=2)
                masks[name] = np.insert(places, 0, 1, axis=2)
        return masks

    def to_pool(
        self, actions: Any, ids: NDArray[np.int64], keep: NDArray[np.bool_] | None = None
    ) -> dict[str, VecAction]:
        """Convert the actions of the environments `ids`, (n, ...), to what their pool takes.

        Args:
            actions: a row for each environment.
            ids: (n,) of the environments.
            keep: (n,) false for rows that are not used. None: all are.

        Raises:
            ValueError: for actions that are missing, of another shape or type, or out of bounds.
        """
        given = self._split(actions, len(ids))
        if keep is not None:
            given, ids = {name: values[keep] for name, values in given.items()}, ids[keep]
        replaced = np.zeros(len(self.num_replaced), np.int64)
        pooled = {name: self._read(name, values, ids, replaced) for name, values in given.items()}
        if self._shown and len(ids):
            self._reopen(pooled, ids, replaced)
        self.num_replaced[ids] = replaced[ids]
        return pooled

    def _reopen(self, pooled: Mapping[str, VecAction], ids: NDArray[np.int64], replaced: NDArray[np.int64]) -> None:
        """Replace choices that earlier choices close, in place, by the next open ones; adds to the (N,) numbers `replaced`."""
        spaces, frames = self._spec.action_space, [self._shown[i] for i in ids.tolist()]
        masks = VecObs.cat([obs.gather(np.array([row])) for obs, row in frames]).action_masks
        for name in decision_order(spaces):
            offered, picked = narrowed(name, spaces, masks, pooled), pooled[name].values
            if offered is not masks[name] and offered.mask is not None:
                allowed = spaces[name].closest(picked[:, 0], offered.mask.values)
                np.add.at(replaced, np.repeat(ids, pooled[name].size1()), allowed != picked[:, 0])
                picked[:, 0] = allowed

    def _padded(
        self, name: str, values: NDArray[Any], offsets: NDArray[np.int64], most: int, fill: int = 0
    ) -> NDArray[Any]:
        """Return (n, most, ...): the rows `values[offsets[i]:offsets[i + 1]]` of each frame i, then `fill`."""
        lengths = np.diff(offsets)
        if (lengths > most).any():
            raise ValueError(
                f"{self._world} shows {lengths.max()} entities or actors of {name!r} at once; there is room for {most}: see "
                "max_entities and max_actors"
            )
        out = np.full((len(lengths), most, *values.shape[1:]), fill, values.dtype)
        frame = np.repeat(np.arange(len(lengths)), lengths)
        out[frame, np.arange(len(values)) - offsets[frame]] = values
        return out

    def _split(self, actions: Any, num_envs: int) -> dict[str, NDArray[Any]]:
        """Return action -> its (n, A) or (n, A, F) part of `actions`."""
        fields = self._fields
        if not isinstance(self.action, dict):
            whole = self._checked(actions, f"the action, numbers of {list(fields)},", self.action, num_envs)
            ends = np.cumsum([field.low.size for field in fields.values()])
            parts = np.split(whole.reshape(num_envs, ends[-1]), ends[:-1], axis=1)
            shapes = [(num_envs, *field.shape) for field in fields.values()]
            return {name: part.reshape(shape) for name, part, shape in zip(fields, parts, shapes, strict=True)}
        if not isinstance(actions, Mapping) or actions.keys() != fields.keys():
            expected = {name: field.shape for name, field in fields.items()}
            given = list(actions) if isinstance(actions, Mapping) else actions
            raise ValueError(
                f"{self._world}: the action has {given!r:.200}; expected numbers of these shapes: {expected}"
            )
        return {
            name: self._checked(actions[name], f"action {name!r}", field, num_envs) for name, field in fields.items()
        }

    def _checked(self, values: Any, what: str, field: Field, num_envs: int) -> NDArray[Any]:
        """Return `values` as an (n, ...) array with the dtype of `field`."""
        given, whole = np.asarray(values), field.dtype == np.int64
        has_rows = given.shape[:1] == (num_envs,)
        if not has_rows or given.shape[1:] != field.shape or given.dtype.kind not in ("iu" if whole else "fiu"):
            found, expected = given.shape[1:], f"{field.shape}"  # users of one environment know no rows
            if not has_rows:
                found, expected = given.shape, f"{(num_envs, *field.shape)}, a row for each environment"
            raise ValueError(
                f"{self._world}: {what} has shape {found} and dtype {given.dtype}; expected "
                f"{'whole numbers' if whole else 'numbers'} of shape {expected}"
            )
        with np.errstate(over="ignore"):  # a value that float32 cannot hold becomes infinite, and is refused
            return given.astype(field.dtype)

    def _read(self, name: str, values: NDArray[Any], ids: NDArray[np.int64], replaced: NDArray[np.int64]) -> VecAction:
        """Return the (n, A) or (n, A, F) values of an action as a pool takes them; adds to the (N,) numbers `replaced`."""
        space, field, num_actors = self._spec.action_space[name], self._fields[name], self._num_actors[name][ids]
        here = np.arange(field.shape[0]) < num_actors[:, None]  # (n, A)
        owner, offsets = np.repeat(ids, num_actors), offsets_of(num_actors)  # (K,)
        picked = values[here]  # (K, ...)
        fits = (picked >= field.low[:1]) & (picked <= field.high[:1]) & np.isfinite(picked)
        if not fits.all():
            k = int(np.argwhere(~fits)[0][0])
            actor = k - int((owner == owner[k]).argmax())
            refusal = f" is {picked[k]}; it must be from 0 to {field.high.max()}"
            if not space.discrete:
                refusal = space.refusal(picked[k])
            raise ValueError(f"{self._world} ({self._kind} {owner[k]}): action {name!r} of actor {actor}{refusal}")
        if not space.discrete:
            return RaggedBuffer(picked, offsets)
        if name in self._open:
            asked, picked = picked, space.closest(picked, self._open[name][ids][here] == 1)
            changed = (
                ((picked > 0) != (asked > 0)).sum(axis=1) if picked.ndim > 1 else (picked != asked) & (picked >= 0)
            )
            np.add.at(replaced, owner, changed)
        if name in self._actees:
            actees = self._actees[name][owner]  # (K, P)
            pairs = np.take_along_axis(picked, actees, axis=1)[actees >= 0]
            num_actees = (self._actees[name][ids] >= 0).sum(axis=1)
            return RaggedBuffer(pairs[:, None], offsets_of(num_actors * num_actees))
        if space.selects:
            rows, picked = picked, np.full(len(picked), -1, np.int64)
            some = (rows >= 0) & (rows < self._ends[-1])  # the number of rows selects nobody
            column = np.searchsorted(self._ends, rows[some], side="right")
            picked[some] = rows[some] - self._shift[owner[some], column]
        return RaggedBuffer(picked[:, None], offsets)


class PaddedPool:
    """A pool in the padded form: what the environments of all libraries have in common.

    Subclasses define `tell`, which returns what the library's `reset`, `step` and `recv` return.

    Args:
        pool: made with final_observations="all", or without autoreset; closed with this object.
        spec: of its environments.

    Attributes:
        obs: the `VecObs` of the last step, with `end_of_episode_info` and metrics.
        begun: its rows where an episode has ended and the next one has begun.
        last: the last observations and infos of the ended episodes, for these rows.
    """

    def __init__(self, pool: VecEnv, spec: EnvSpec) -> None:
        self.pool = pool
        self.form = PaddedForm(spec, len(pool))
        self.obs: VecObs | None = None
        self.begun = np.zeros(0, np.intp)
        self.last: tuple[Frames, Frames] = ({}, {})
        self._everyone = np.arange(len(pool))

    def tell(self, obs: VecObs, observation: Frames, info: Frames) -> Any:
        """Return a step or reset of n environments as the library has it."""
        raise NotImplementedError

    def forget(self) -> None:
        """Forget the episodes that are under way."""
        self.form.num_replaced[:] = 0

    def begin(self, seed: int | None, env_info: Any = None) -> Any:
        """Start an episode in every environment; arguments as in `VecEnv.reset`."""
        self.forget()
        return self._told(self.pool.reset(seed, env_info))

    def step(self, actions: Any, env_id: EnvIdLike | None = None) -> Any:
        """Step environments and wait for them.

        Args:
            actions: of the action space, a row for each environment in `env_id`.
            env_id: (n,) the environments to step. None: all.

        Raises:
            ValueError: for actions outside the space.
        """
        return self._told(self.pool.act(self.form.to_pool(actions, self.ids(env_id)), env_id))

    def async_reset(self) -> None:
        """Start an episode in every environment without waiting; `recv` returns the first observations."""
        self.forget()
        self.pool.async_reset()

    def send(self, actions: Any, env_id: EnvIdLike | None = None) -> None:
        """Step environments without waiting; arguments as in `step`."""
        self.pool.send(self.form.to_pool(actions, self.ids(env_id)), env_id)

    def recv(self) -> Any:
        """Wait for `batch_size` of the environments under way; returns as `step`, and "env_id" of the info names them."""
        return self._told(self.pool.recv())

    def ids(self, env_id: EnvIdLike | None) -> NDArray[np.int64]:
        """Return the numbers of environments; raises ValueError for those that are not there, or named twice."""
        return self._everyone if env_id is None else check_env_id(env_id, len(self.pool))

    def close(self, **kwargs: Any) -> None:
        """Release everything. May be called twice. Gymnasium's wrappers pass arguments, which are not used."""
        self.pool.close()

    def _told(self, obs: VecObs) -> Any:
        self.obs = obs
        observation, info = self.form.show(obs)
        self.begun = np.flatnonzero(obs.done & (obs.elapsed_step == 0))
        if len(self.begun):
            assert obs.final is not None
            self.last = self.form.show(obs.final, answered=False)
        return self.tell(obs, observation, info)


# ---- how environments in the padded form are made


def make_form(
    form: Callable[[VecEnv, EnvSpec], Made], env: Any, options: dict[str, Any], num_envs: int | None = None
) -> Made:
    """Make a pool, and form(pool, spec), which closes it.

    Without `num_envs` it is one environment without autoreset.
    """
    config = prepare(env, dict(num_envs=num_envs or 1, final_observations="all", **options))
    pool = ThreadedVecEnv(**config.of_pool(), autoreset=num_envs is not None)
    try:
        return form(pool, spec_of(config, pool))
    except BaseException:
        pool.close()
        raise


# ---- arrays


def frame_of(frames: Frames, row: int) -> dict[str, Any]:
    """Return one frame; single numbers are NumPy scalars."""
    return {name: array[row] for name, array in frames.items()}


def in_batch(action: Any) -> Any:
    """Return one environment's action with a dimension for environments."""
    if isinstance(action, Mapping):
        return {name: np.asarray(values)[None] for name, values in action.items()}
    return np.asarray(action)[None]


def with_report(obs: VecObs, row: int, info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the info, and the end-of-episode info of a row of `obs` under all other names."""
    return {**obs.end_of_episode_info.get(int(obs.env_id[row]), {}), **info}


def _path(kind: str, name: str) -> str:
    """Return the name of an array of the observation."""
    return f"{kind}/{name.replace('.', '/')}"
