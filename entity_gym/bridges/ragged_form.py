"""One environment's frames as nested arrays with as many rows as there are things, and actions with a number for each actor.

The observation, in which n, A and the number of pairs are different in every frame:

    entities      type -> (n, F) float32, those of hidden entities 0; types with features only; categories and flags have bounds
    counts        type -> () int64, n
    visible       type -> (n,) int8, 1 where the entity may be seen; types that can hide only
    global        (G,) float32, the global features, if any
    actors        action -> (A,) int64, which entity acts; without global actions
    action_mask   action -> (A, C) int8, 1 where the actor may take the choice; (C,) for a global action; to select entities
                  (pairs, 2) int64: the place of an actor in `actors`, and an entity that it may select. Without continuous
                  actions, whose actors may pick any numbers within the bounds.

An action is action -> (A,) whole numbers, one for each actor of the last observation in its order; (A, F) numbers for a
continuous action, () for a global one. To select an entity, it is the entity's place in the frame, or the number of entities
there for nobody, where the space says that nobody is a choice at all times. An actor that may select nobody else selects
nobody, whatever its number.

The environment decides how many act, so numbers may be too many or too few: those beyond the last actor are ignored, and an
actor without a number takes the first open choice, or the numbers nearest to 0. Like one that is not open, that is counted in
`replaced_actions` of the info, or refused with `invalid_actions="raise"`.

An entity is named by its place in the frame: type after type in the order of the space, those of a type in their order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import ContinuousActionSpace
from entity_gym.batch.ragged import RaggedArray, RaggedBufferF32, RaggedBufferI64
from entity_gym.batch.vec_obs import VecAction, VecObs
from entity_gym.bridges.dense import Dense
from entity_gym.bridges.dense_actions import first_outside, named_actions, next_open, real_numbers, whole_numbers
from entity_gym.bridges.dense_obs import Field, Tree, flags, merge_trees, tree_of_keys
from entity_gym.pools.spec import ActionSpec, EnvSpec
from entity_gym.spaces import GLOBAL_ENTITY, bounds

#: Places of entities are below this; nobody knows how many entities there can be, and spaces want to.
MAX_PLACES = 2**31

_INT64 = np.dtype(np.int64)


class RaggedForm:
    """Frames of one environment as nested arrays, and the way back for actions.

    Args:
        spec: of the environment.

    Attributes:
        observation: the fields of the observation; those `per_player` have a row for each entity, actor or pair.
        action: the fields of an action, with inclusive bounds; those `per_player` have a row for each actor.

    Raises:
        ValueError: if arrays of the environment have impossible names.
    """

    def __init__(self, spec: EnvSpec) -> None:
        self._name, self._entities, self._specs = spec.config.name, spec.entities, spec.actions
        self._raises = spec.config.invalid_actions == "raise"
        self._global_features = spec.obs_space.global_features
        self._continuous = {n: s for n, s in spec.action_space.items() if isinstance(s, ContinuousActionSpace)}
        self._open: dict[str, NDArray[np.bool_]] = {}  # action -> (A, C), of the last frame; one column if continuous
        self._num_replaced = 0
        self.observation: Tree = _observation_fields(spec)
        self.action: Tree = {name: self._action_field(name, action) for name, action in spec.actions.items()}

    def show(self, obs: VecObs) -> Dense:
        """What the environment shows; its next action answers it."""
        assert len(obs) == 1, "this form is of one environment"
        self._open = {name: self._offered(name, obs) for name in self._specs}
        own: dict[str, Tree] = {
            "env_id": obs.env_id,
            "elapsed_step": obs.elapsed_step,
            "replaced_actions": np.array([self._num_replaced], np.int64),
        }
        return Dense(self._observation(obs), merge_trees(own, tree_of_keys(obs.arrays, "info")))

    def ragged(self, actions: Any, ids: NDArray[np.int64]) -> dict[str, VecAction]:
        """The actions as a pool of this one environment takes them.

        Args:
            actions: action -> what the module says, under a dimension of 1 for the environment.
            ids: [0].

        Raises:
            ValueError: for actions that are missing, of another shape or type, or out of bounds; with
                `invalid_actions="raise"` also for those that are not open, or not as many as actors.
        """
        whom = {name: f"each of {len(open_)} actors" for name, open_ in self._open.items()}
        given = named_actions(actions, whom)
        self._num_replaced = 0
        result: dict[str, VecAction] = {}
        for name, open_ in self._open.items():
            values, offsets = np.asarray(given[name])[0], np.array([0, len(open_)], np.int64)
            if name in self._continuous:
                result[name] = RaggedBufferF32.from_offsets(self._numbers(name, values, len(open_)), offsets)
            else:
                result[name] = RaggedBufferI64.from_offsets(self._choices(name, values, open_)[:, None], offsets)
        return result

    def forget_replaced(self) -> None:
        """No action has led to the coming frame."""
        self._num_replaced = 0

    def _action_field(self, name: str, action: ActionSpec) -> Field:
        if name in self._continuous:
            low, high = self._continuous[name].bounds()
            return Field((len(low),), np.dtype(np.float32), low, high, per_player=True)
        most = MAX_PLACES if action.kind == "select entity" else len(action.choices) - 1
        return Field((), _INT64, 0, most, per_player=action.kind != "global categorical")

    def _observation(self, obs: VecObs) -> dict[str, Tree]:
        tree: dict[str, Tree] = {"entities": {}, "counts": {}, "visible": {}, "actors": {}, "action_mask": {}}
        for name, entity in self._entities.items():
            rows, shown = obs.features[name], obs.visible.get(name)
            tree["counts"][name] = rows.size1().copy()
            if entity.features:
                values = rows.values.copy() if shown is None else np.where(shown.values, rows.values, np.float32(0))
                tree["entities"][name] = RaggedArray(values, rows.offsets)
            if entity.hideable:
                seen = np.ones(rows.items(), np.int8) if shown is None else shown.values[:, 0].astype(np.int8)
                tree["visible"][name] = RaggedArray(seen, rows.offsets)
        if self._global_features:
            tree["global"] = obs.features[GLOBAL_ENTITY].values.copy()
        for name, action in self._specs.items():
            mask, open_ = obs.action_masks[name], self._open[name]
            if action.kind == "global categorical":
                # The last frame of an episode offers nothing.
                tree["action_mask"][name] = open_.any(axis=0, keepdims=True).astype(np.int8)
                continue
            tree["actors"][name] = RaggedArray(mask.actors.values[:, 0].copy(), mask.actors.offsets)
            if action.kind == "select entity":
                pairs = np.argwhere(open_[:, : open_.shape[1] - action.nobody]).astype(np.int64)
                tree["action_mask"][name] = _rows(pairs)
            elif action.kind == "categorical":
                tree["action_mask"][name] = _rows(open_.astype(np.int8))
        return _without_empty(tree)

    def _offered(self, name: str, obs: VecObs) -> NDArray[np.bool_]:
        """(A, C) which choices are open to each actor; C is 1 for continuous actions."""
        offered, action = obs.action_masks[name], self._specs[name]
        num_actors = offered.actors.items()
        if name in self._continuous:
            return np.ones((num_actors, 1), np.bool_)
        if offered.actees is None:
            if offered.mask is not None:
                return offered.mask.values.copy()
            return np.ones((num_actors, len(action.choices)), np.bool_)
        num_entities = sum(obs.features[entity].items() for entity in self._entities)
        open_ = np.zeros((num_actors, num_entities + action.nobody), np.bool_)
        actees = offered.actees.values[:, 0]
        pairs = True if offered.mask is None else offered.mask.values.reshape(num_actors, len(actees))
        open_[:, actees] = pairs
        open_[:, num_entities:] = True  # nobody, where that is a choice at all times
        return open_

    def _choices(self, name: str, values: NDArray[Any], open_: NDArray[np.bool_]) -> NDArray[np.int64]:
        """(A,) choices that are open, or entities, -1 for nobody."""
        action, num_actors = self._specs[name], len(open_)
        if action.kind == "global categorical":
            values = whole_numbers(values, name, ())[None]
        shape = values.shape[:1] or (num_actors,)
        values = whole_numbers(
            values if values.size else values.astype(np.int64), name, shape
        )  # an empty list has no type
        self._check_number(name, len(values), num_actors)
        high = MAX_PLACES if action.kind == "select entity" else open_.shape[1] - 1
        if ((values < 0) | (values > high)).any():
            wrong = values[(values < 0) | (values > high)][0]
            raise ValueError(f"{self._name}: action {name!r} is {wrong}; it must be from 0 to {high}")
        asked: NDArray[np.int64] = np.full(num_actors, -1, np.int64)  # -1: no number was given
        asked[: len(values)] = values[:num_actors]
        some = open_.any(axis=1)
        chosen: NDArray[np.int64] = np.full(num_actors, -1, np.int64)
        chosen[some] = next_open(np.maximum(asked[some], 0), open_[some])
        replaced = np.flatnonzero((chosen != asked) & some)
        if len(replaced) and self._raises:
            k = int(replaced[0])
            raise ValueError(
                f"{self._name}: action {name!r} of actor {k} is {asked[k]}, which is not open now; open are "
                f"{np.flatnonzero(open_[k]).tolist()}"
            )
        self._num_replaced += len(replaced)
        if action.kind == "select entity" and action.nobody:
            chosen[chosen == open_.shape[1] - 1] = -1
        return chosen

    def _numbers(self, name: str, values: NDArray[Any], num_actors: int) -> NDArray[np.float32]:
        """(A, F) numbers within the bounds."""
        space = self._continuous[name]
        if not values.size:
            values = np.zeros((0, space.size), np.float32)
        picked = real_numbers(values, name, (*values.shape[:1], space.size))
        self._check_number(name, len(picked), num_actors)
        wrong = first_outside(space, picked)
        if wrong is not None:
            raise ValueError(f"{self._name}: action {name!r} of actor {wrong.row}: {wrong.says}")
        missing = max(0, num_actors - len(picked))
        self._num_replaced += missing
        rest = np.tile(np.clip(np.float32(0), *space.bounds()), (missing, 1))
        return np.concatenate([picked[:num_actors], rest])

    def _check_number(self, name: str, given: int, num_actors: int) -> None:
        if self._raises and given != num_actors:
            raise ValueError(
                f"{self._name}: action {name!r} has {given} rows, and {num_actors} actors: give one for each, as many "
                f"as the observation has in ['actors'][{name!r}]"
            )


def _observation_fields(spec: EnvSpec) -> dict[str, Tree]:
    """What `RaggedForm.observation` is."""
    f32 = np.dtype(np.float32)
    tree: dict[str, Tree] = {"entities": {}, "counts": {}, "visible": {}, "actors": {}, "action_mask": {}}
    for name, entity in spec.entities.items():
        tree["counts"][name] = Field((), _INT64, 0)
        if entity.features:
            limits = bounds(entity.features, entity.kinds)
            tree["entities"][name] = Field((len(entity.features),), f32, *limits, per_player=True)
        if entity.hideable:
            tree["visible"][name] = Field((), np.dtype(np.int8), 0, 1, per_player=True)
    names = spec.obs_space.global_features
    if names:
        tree["global"] = Field((len(names),), f32, *bounds(names, spec.obs_space.global_kinds))
    for name, action in spec.actions.items():
        choices = flags(len(action.choices))
        if action.kind == "global categorical":
            tree["action_mask"][name] = choices
            continue
        tree["actors"][name] = Field((), _INT64, 0, MAX_PLACES, per_player=True)
        if action.kind == "select entity":
            tree["action_mask"][name] = Field((2,), _INT64, 0, per_player=True)
        elif action.kind == "categorical":
            tree["action_mask"][name] = Field(choices.shape, choices.dtype, 0, 1, per_player=True)
    return _without_empty(tree)


def _without_empty(tree: dict[str, Tree]) -> dict[str, Tree]:
    return {name: branch for name, branch in tree.items() if not isinstance(branch, dict) or branch}


def _rows(values: NDArray[Any]) -> RaggedArray:
    """All of the one frame."""
    return RaggedArray(values, np.array([0, len(values)], np.int64))
