"""Actions of fixed shapes, for interfaces that know nothing of entities: what was offered, and the way back to ragged ones.

An environment whose only action has at most one actor takes a plain number; others take action -> (A,) numbers, one for each
actor in the order of its last observation, and those beyond the last actor are ignored. A number is a choice, from 0; to
select an entity, it is its place in the list of all rows (see `dense_obs`), or the number of these rows for nobody, where the
space says that nobody is a choice at all times. An actor that may select nobody else selects nobody, whatever its number.

A continuous action takes F numbers where others take one: (F,) or action -> (A, F). They must be finite and within their
bounds, and are never replaced. To a mask it is an action of one choice, which is open to every actor.

Shapes: N environments, n frames, K actors in all of them, A actors that one environment can have, C choices, F numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import ContinuousActionSpace
from entity_gym.batch.ragged import RaggedBufferF32, RaggedBufferI64
from entity_gym.batch.vec_obs import VecAction, VecActionMask, VecObs
from entity_gym.bridges.dense_obs import Field, Padding, Tree, flags, padded
from entity_gym.errors import nearest
from entity_gym.pools.spec import ActionSpec, EnvSpec

EnvIds = NDArray[np.int64]


class _Sizes(NamedTuple):
    actors: int  # A
    choices: int  # C; 1 for a continuous action
    numbers: int = 0  # F; 0 for other actions


class DenseActions:
    """What each of N environments offered last, and actions for them.

    Args:
        spec: of the environment.
        num_envs: N.

    Attributes:
        plain: whether an action is a plain number.
        num_replaced: (N,) how many of an environment's last actions were not open and became another, see `ragged`.

    Raises:
        ValueError: if the spec does not say how many actors there can be.
    """

    def __init__(self, spec: EnvSpec, num_envs: int) -> None:
        self._name, self._specs = spec.config.name, spec.actions
        self._spaces = {n: space for n, space in spec.action_space.items() if isinstance(space, ContinuousActionSpace)}
        self._raises = spec.config.invalid_actions == "raise"
        self._sizes = {name: _sizes(spec, name, action) for name, action in spec.actions.items()}
        self.plain = len(self._sizes) == 1 and next(iter(self._sizes.values())).actors == 1
        selects = any(action.kind == "select entity" for action in spec.actions.values())
        self._padding = Padding(spec) if selects else None
        self.closable = any(action.closable for action in spec.actions.values())
        self.num_replaced = np.zeros(num_envs, np.int64)
        self._num_actors = {name: np.zeros(num_envs, np.int64) for name in self._sizes}
        self._counts = np.zeros((num_envs, len(spec.entities)), np.int64)
        self._open = {
            name: np.zeros((num_envs, size.actors, size.choices), np.int8)
            for name, size in self._sizes.items()
            if spec.actions[name].closable
        }

    def fields(self) -> Tree:
        """An action of one environment: a `Field`, or action -> `Field`; bounds are inclusive."""
        tree = {}
        for name, size in self._sizes.items():
            shape = () if self.plain else (size.actors,)
            if size.numbers:
                low, high = self._spaces[name].bounds()
                tree[name] = Field((*shape, size.numbers), np.dtype(np.float32), low, high)
            else:
                tree[name] = Field(shape, np.dtype(np.int64), 0, size.choices - 1)
        return next(iter(tree.values())) if self.plain else tree

    def mask_fields(self) -> dict[str, Field]:
        """What `masks` returns."""
        return {
            name: flags(size.choices) if self.plain else flags(size.actors, size.choices)
            for name, size in self._sizes.items()
        }

    def offered(self, obs: VecObs) -> dict[str, NDArray[np.int8]]:
        """Action -> (n, A, C) 1 where the actor may take the choice; for all actions.

        Raises:
            ValueError: if there are more actors than the spec says.
        """
        masks = {}
        for name, (most, num_choices, _) in self._sizes.items():
            offered = obs.action_masks[name]
            self._check_fits(name, most, offered.actors, obs)
            if offered.actees is not None:
                rows = self._open_entities(offered, obs, num_choices)
                if self._specs[name].nobody:
                    rows[:, -1] = 1
            elif offered.mask is None:
                rows = np.ones((offered.actors.items(), num_choices), np.int8)
            else:
                rows = offered.mask.values.view(np.int8)
            masks[name] = padded(rows, offered.actors.offsets, most)
        return masks

    def masks(self, offered: dict[str, NDArray[np.int8]]) -> dict[str, NDArray[np.int8]]:
        """`offered` as an observation shows it."""
        return {name: mask[:, 0] for name, mask in offered.items()} if self.plain else offered

    def actors(self, obs: VecObs, padding: Padding) -> dict[str, NDArray[np.int64]]:
        """Action -> (n, A) the rows of those who act, -1 where nobody does; without global actions."""
        tree = {}
        counts = padding.counts(obs)
        for name, size in self._sizes.items():
            if self._specs[name].kind != "global categorical":
                buffer = obs.action_masks[name].actors
                frame = np.repeat(np.arange(len(obs)), buffer.size1())
                tree[name] = padded(
                    padding.to_rows(counts[frame], buffer.values[:, 0]), buffer.offsets, size.actors, fill=-1
                )
        return tree

    def actor_fields(self, padding: Padding) -> dict[str, Field]:
        """What `actors` returns."""
        return {
            name: Field((size.actors,), np.dtype(np.int64), -1, padding.num_rows - 1)
            for name, size in self._sizes.items()
            if self._specs[name].kind != "global categorical"
        }

    def remember(self, obs: VecObs, offered: dict[str, NDArray[np.int8]] | None) -> None:
        """The next actions of these environments answer `obs`; `offered` is what it offers, needed if `closable`."""
        for name, most in self._sizes.items():
            actors = obs.action_masks[name].actors
            if offered is None:
                self._check_fits(name, most.actors, actors, obs)
            self._num_actors[name][obs.env_id] = actors.size1()
        if offered is not None:
            for name, open_ in self._open.items():
                open_[obs.env_id] = offered[name]
        if self._padding is not None:
            self._counts[obs.env_id] = self._padding.counts(obs)

    def ragged(self, actions: Any, ids: EnvIds) -> dict[str, VecAction]:
        """Actions for the environments `ids` as a pool takes them.

        One that is not open is refused if `invalid_actions` says so; else it becomes the next open one, counting on from it
        and beginning again at 0, and counts in `num_replaced`.

        Args:
            actions: (n,) if `plain`, else action -> (n, A) whole numbers; (n, F) or (n, A, F) numbers for continuous actions.
            ids: (n,) the environments, in the same order.

        Raises:
            ValueError: for actions that are missing, of another shape or type, or out of bounds.
        """
        given = self._given(actions)
        self.num_replaced[ids] = 0
        result: dict[str, VecAction] = {}
        for name, size in self._sizes.items():
            shape = (len(ids),) if self.plain else (len(ids), size.actors)
            num_actors = self._num_actors[name][ids]
            here = np.arange(size.actors) < num_actors[:, None]  # (n, A)
            owner = np.repeat(ids, num_actors)  # (K,)
            offsets = np.zeros(len(ids) + 1, np.int64)
            np.cumsum(num_actors, out=offsets[1:])
            if size.numbers:
                numbers = real_numbers(given[name], name, (*shape, size.numbers))
                picked = numbers.reshape(*here.shape, size.numbers)[here]  # (K, F)
                self._check_numbers(name, picked, owner)
                result[name] = RaggedBufferF32.from_offsets(picked, offsets)
                continue
            values = whole_numbers(given[name], name, shape)
            chosen = values.reshape(here.shape)[here]  # (K,)
            self._check_bounds(name, chosen, owner)
            if name in self._open:
                chosen = self._open_only(name, chosen, owner, self._open[name][ids][here])
            if self._specs[name].kind == "select entity":
                chosen = self._entity_indices(chosen, owner)
            result[name] = RaggedBufferI64.from_offsets(chosen[:, None], offsets)
        return result

    def _given(self, actions: Any) -> Mapping[str, Any]:
        if self.plain:
            return {next(iter(self._sizes)): actions}
        return named_actions(actions, {name: f"each of {size.actors} actors" for name, size in self._sizes.items()})

    def _check_bounds(self, name: str, chosen: NDArray[np.int64], owner: EnvIds) -> None:
        high = self._sizes[name].choices - 1
        outside = (chosen < 0) | (chosen > high)
        if outside.any():
            k = int(outside.argmax())
            raise ValueError(
                f"{self._name} (environment {owner[k]}): action {name!r} is {chosen[k]}; it must be from 0 to {high}"
            )

    def _check_numbers(self, name: str, picked: NDArray[np.float32], owner: EnvIds) -> None:
        wrong = first_outside(self._spaces[name], picked)
        if wrong is not None:
            actor = wrong.row - int((owner == owner[wrong.row]).argmax())
            raise ValueError(
                f"{self._name} (environment {owner[wrong.row]}): action {name!r} of actor {actor}: {wrong.says}"
            )

    def _open_only(
        self, name: str, chosen: NDArray[np.int64], owner: EnvIds, open_: NDArray[np.int8]
    ) -> NDArray[np.int64]:
        """(K,) choices that are open, -1 where nothing is; `open_` is (K, C)."""
        closed = np.flatnonzero(open_[np.arange(len(chosen)), chosen] == 0)
        if not len(closed):
            return chosen
        some = open_[closed].any(axis=1)
        refused = closed[some]
        if len(refused) and self._raises:
            k = int(refused[0])
            raise ValueError(
                f"{self._name} (environment {owner[k]}): action {name!r} is {chosen[k]}, which is not open now; open are "
                f"{np.flatnonzero(open_[k]).tolist()}"
            )
        replacing = next_open(chosen[refused], open_[refused])
        chosen[closed] = -1
        chosen[refused] = replacing
        np.add.at(self.num_replaced, owner[refused], 1)
        return chosen

    def _entity_indices(self, rows: NDArray[np.int64], owner: EnvIds) -> NDArray[np.int64]:
        assert self._padding is not None
        index: NDArray[np.int64] = np.full(len(rows), -1, np.int64)
        some = (rows >= 0) & (rows < self._padding.num_rows)  # the number after the last row is nobody
        index[some] = self._padding.to_index(self._counts[owner[some]], rows[some])
        return index

    def _open_entities(self, offered: VecActionMask, obs: VecObs, num_rows: int) -> NDArray[np.int8]:
        """(K, C) 1 where the actor may select the entity in that row."""
        assert self._padding is not None and offered.actees is not None
        num_actors, num_actees = offered.actors.size1(), offered.actees.size1()
        frame = np.repeat(np.arange(len(obs)), num_actees)
        rows = self._padding.to_rows(self._padding.counts(obs)[frame], offered.actees.values[:, 0])
        per_actor = np.repeat(num_actees, num_actors)  # (K,) how many actees
        actor = np.repeat(np.arange(len(per_actor)), per_actor)  # (pairs,)
        within = np.arange(len(actor)) - np.repeat(np.cumsum(per_actor) - per_actor, per_actor)
        first = np.repeat(offered.actees.offsets[:-1], num_actors)
        open_ = np.zeros((len(per_actor), num_rows), np.int8)
        open_[actor, rows[first[actor] + within]] = True if offered.mask is None else offered.mask.values[:, 0]
        return open_

    def _check_fits(self, name: str, most: int, actors: RaggedBufferI64, obs: VecObs) -> None:
        lengths = actors.size1()
        if len(lengths) and int(lengths.max()) > most:
            frame = int(lengths.argmax())
            raise ValueError(
                f"{self._name} (environment {obs.env_id[frame]}) has {lengths[frame]} actors of {name!r}; there is room for "
                f"{most}: see max_actors"
            )


def _sizes(spec: EnvSpec, name: str, action: ActionSpec) -> _Sizes:
    if action.high is None:
        Padding(spec)  # says what is missing
    if action.max_actors is None:
        raise ValueError(
            f"{spec.config.name} does not say how many actors {name!r} can have, which this form needs; say it, for example "
            f"max_actors={{{name!r}: 1}}"
        )
    if isinstance(action.high, tuple):
        return _Sizes(action.max_actors, 1, len(action.high))
    assert action.high is not None
    return _Sizes(action.max_actors, action.high + 1)


class Outside(NamedTuple):
    """A number that a continuous action may not be."""

    row: int
    says: str  # which number it is, and what is allowed


def named_actions(actions: Any, wanted: Mapping[str, str]) -> Mapping[str, Any]:
    """`actions`, a dictionary with exactly the names `wanted`, which also says for whom numbers are wanted.

    Raises:
        ValueError: if it is none.
    """
    if not isinstance(actions, Mapping):
        shown = (
            actions.squeeze().tolist() if isinstance(actions, np.ndarray) else actions
        )  # as one environment's was given
        raise ValueError(f"actions are {shown!r:.200}; expected a dictionary with {list(wanted)}")
    for name in actions:
        if name not in wanted:
            raise ValueError(f"unknown action {name!r}; {nearest(name, wanted)}")
    for name, whom in wanted.items():
        if name not in actions:
            raise ValueError(f"action {name!r} is missing; give one number for {whom}")
    return actions


def next_open(chosen: NDArray[np.int64], open_: NDArray[Any]) -> NDArray[np.int64]:
    """(K,) for each choice the next open one, counting on from it and beginning again at 0.

    Args:
        chosen: (K,), not below 0; beyond C, counting has begun again at 0.
        open_: (K, C), 1 where open; each row has a 1.
    """
    order = (chosen[:, None] + np.arange(open_.shape[1])) % open_.shape[1]  # (K, C), counting on
    first = np.take_along_axis(open_, order, axis=1).argmax(axis=1)
    found: NDArray[np.int64] = order[np.arange(len(chosen)), first]
    return found


def first_outside(space: ContinuousActionSpace, picked: NDArray[np.float32]) -> Outside | None:
    """The first of the numbers `picked` (K, F) that is not finite or not within the bounds of `space`; None: all are."""
    low, high = space.bounds()
    wrong = ~((picked >= low) & (picked <= high) & np.isfinite(picked))
    if not wrong.any():
        return None
    row, column = (int(place) for place in np.argwhere(wrong)[0])
    limits = f"it must be a finite number from {low[column]} to {high[column]}"
    return Outside(row, f"{space.label(column)} is {picked[row, column]}; {limits}")


def whole_numbers(values: Any, name: str, shape: tuple[int, ...]) -> NDArray[np.int64]:
    """`values` as an array; a ValueError says if they are not whole numbers of this shape."""
    given = np.asarray(values)
    if given.dtype.kind not in "iu" or given.shape != shape:
        raise ValueError(
            f"action {name!r} has shape {given.shape} and dtype {given.dtype}; expected whole numbers of shape {shape}"
        )
    return given.astype(np.int64)


def real_numbers(values: Any, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """`values` as an array; a ValueError says if they are not numbers of this shape."""
    given = np.asarray(values)
    if given.dtype.kind not in "fiu" or given.shape != shape:
        raise ValueError(
            f"action {name!r} has shape {given.shape} and dtype {given.dtype}; expected numbers of shape {shape}"
        )
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused
        return given.astype(np.float32)
