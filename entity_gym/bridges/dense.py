"""A pool as interfaces see it that know nothing of entities: nested arrays of fixed shapes out, and actions of fixed shapes in.

`dense_obs` says what the observation is and `dense_actions` what actions are. The info of every frame holds

    env_id             () int64
    elapsed_step       () int64, steps of the episode that the frame belongs to
    replaced_actions   () int64, how many of the last actions were not open and became others; if actions can be closed
    action_mask        action -> as in `dense_obs`, where fixed arrays are the observation and actions can be closed or absent
    players            {"env_id": (players,) int64}, the environment of each player, if there are arrays with a row a player

and the `info:...` arrays.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from entity_gym.batch.ragged import RaggedArray
from entity_gym.batch.vec_obs import PLAYER_REWARD, VecAction, VecObs
from entity_gym.bridges.dense_actions import DenseActions
from entity_gym.bridges.dense_obs import Field, Padding, Tree, field_trees, map_tree, merge_trees, tree_of_keys
from entity_gym.pools.spec import EnvSpec

_INT64 = np.dtype(np.int64)


class Dense(NamedTuple):
    """Frames as nested arrays."""

    observation: Tree  # ends: (N, ...) arrays, or `RaggedArray` with a row a player
    info: dict[str, Tree]


class Form(Protocol):
    """One environment's frames as nested arrays, and the way back for actions: `DenseForm`, or another."""

    observation: Tree
    action: Tree

    def show(self, obs: VecObs) -> Dense:
        """What the environment shows; its next action answers it."""

    def ragged(self, actions: Any, ids: NDArray[np.int64]) -> dict[str, VecAction]:
        """The actions of environment 0 as its pool takes them."""

    def forget_replaced(self) -> None:
        """No action has led to the coming frame."""


class DenseForm:
    """Frames of a pool of N environments as nested arrays, and the way back for actions.

    Args:
        spec: of the environment.
        num_envs: N.

    Attributes:
        plain: whether an action is a plain number, instead of action -> numbers.
        observation: the fields of `Dense.observation`.
        info: the fields of `Dense.info`.
        action: the fields of an action, with inclusive bounds.

    Raises:
        ValueError: if the spec does not say how many entities or actors there can be, or arrays have impossible names.
    """

    def __init__(self, spec: EnvSpec, num_envs: int) -> None:
        self._name, self._arrays = spec.config.name, spec.arrays
        observation, info = field_trees(spec)
        self._padding = None if observation != {} else Padding(spec)
        self._actions = DenseActions(spec, num_envs)
        masks = self._actions.mask_fields()
        always_open = self._actions.plain and not self._actions.closable
        if self._padding is not None:
            actors = self._actions.actor_fields(self._padding)
            observation = self._padding.fields() | {"action_mask": masks} | ({"actors": actors} if actors else {})
        self._masks_in_info = self._padding is None and not always_open
        self._needs_offered = self._padding is not None or self._masks_in_info
        self._per_player = next((name for name, array in spec.arrays.items() if array.per_player), None)
        own: dict[str, Tree] = {"env_id": Field((), _INT64, 0, num_envs - 1), "elapsed_step": Field((), _INT64, 0)}
        if self._actions.closable:
            own["replaced_actions"] = Field((), _INT64, 0)
        if self._masks_in_info:
            own["action_mask"] = masks
        if self._per_player is not None:
            own["players"] = {"env_id": Field((), _INT64, 0, num_envs - 1, per_player=True)}
        self.plain = self._actions.plain
        self.observation: Tree = observation
        self.info = merge_trees(own, info)
        self.action: Tree = self._actions.fields()

    def show(self, obs: VecObs) -> Dense:
        """What the environments of `obs` show; their next actions answer it. No action has led to a first frame."""
        offered = self._actions.offered(obs) if self._needs_offered else None
        self._actions.remember(obs, offered)
        dense = self._dense(obs, offered)
        if self._actions.closable:
            dense.info["replaced_actions"][obs.elapsed_step == 0] = 0
        return dense

    def show_last(self, obs: VecObs) -> Dense:
        """The last observations of episodes, which no action answers."""
        return self._dense(obs, self._actions.offered(obs) if self._needs_offered else None)

    def ragged(self, actions: Any, ids: NDArray[np.int64]) -> dict[str, VecAction]:
        """`DenseActions.ragged`."""
        return self._actions.ragged(actions, ids)

    def forget_replaced(self) -> None:
        """No action has led to the coming frames."""
        self._actions.num_replaced[:] = 0

    def _dense(self, obs: VecObs, offered: dict[str, NDArray[np.int8]] | None) -> Dense:
        missing = sorted((self._arrays.keys() ^ obs.arrays.keys()) - {PLAYER_REWARD})
        if missing:
            raise ValueError(f"{self._name}: the pool does not show the declared arrays as they are: {missing}")
        own: dict[str, Tree] = {"env_id": obs.env_id, "elapsed_step": obs.elapsed_step}
        if self._actions.closable:
            own["replaced_actions"] = self._actions.num_replaced[obs.env_id]
        if self._masks_in_info and offered is not None:
            own["action_mask"] = self._actions.masks(offered)
        if self._per_player is not None:
            rows = obs.arrays[self._per_player]
            assert isinstance(rows, RaggedArray)
            own["players"] = {"env_id": RaggedArray(np.repeat(obs.env_id, np.diff(rows.offsets)), rows.offsets)}
        info = merge_trees(own, tree_of_keys(obs.arrays, "info"))
        if self._padding is None:
            return Dense(tree_of_keys(obs.arrays, "obs"), info)
        assert offered is not None
        actors = self._actions.actors(obs, self._padding)
        observation = self._padding.pad(obs) | {"action_mask": self._actions.masks(offered)}
        return Dense(observation | ({"actors": actors} if actors else {}), info)


def frame_of(tree: Tree, row: int) -> Tree:
    """What one frame of a tree of arrays holds: (...) arrays, or (players, ...)."""

    def one(array: NDArray[Any] | RaggedArray) -> NDArray[Any]:
        if isinstance(array, RaggedArray):
            return array.values[array.offsets[row] : array.offsets[row + 1]]
        return np.asarray(array[row])

    return map_tree(one, tree)


def frames_of(tree: Tree) -> list[Tree]:
    """`frame_of` every frame; fast."""
    if isinstance(tree, dict):
        branches = [frames_of(branch) for branch in tree.values()]
        return [dict(zip(tree, values, strict=True)) for values in zip(*branches, strict=True)]
    if isinstance(tree, RaggedArray):
        return [tree.values[lo:hi] for lo, hi in itertools.pairwise(tree.offsets.tolist())]
    return list(tree) if tree.ndim > 1 else [np.asarray(value) for value in tree]


def rows_of(tree: Tree, rows: NDArray[np.int64]) -> Tree:
    """The frames `rows`, in that order, as copies."""

    def some(array: NDArray[Any] | RaggedArray) -> NDArray[Any] | RaggedArray:
        if not isinstance(array, RaggedArray):
            return np.asarray(array[rows])
        lengths = np.diff(array.offsets)[rows]
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
        return RaggedArray(array.values[np.repeat(array.offsets[rows], lengths) + within], offsets)

    return map_tree(some, tree)


def join(trees: Sequence[Tree]) -> Tree:
    """The frames of all trees, one or more, one after another."""
    first = trees[0]
    if len(trees) == 1:
        return first
    if isinstance(first, dict):
        return {name: join([tree[name] for tree in trees]) for name in first}
    if not isinstance(first, RaggedArray):
        return np.concatenate(trees)
    lengths = np.concatenate([np.diff(tree.offsets) for tree in trees])
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    return RaggedArray(np.concatenate([tree.values for tree in trees]), offsets)


def rows_only(tree: Tree) -> Tree:
    """The tree with the rows of all players, one environment after another, in place of every `RaggedArray`."""
    return map_tree(lambda array: array.values if isinstance(array, RaggedArray) else array, tree)
