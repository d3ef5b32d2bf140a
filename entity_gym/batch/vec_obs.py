"""Observations of many environments as packed arrays.

Shapes: N frames (one environment each), A actors, C choices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from entity_gym.batch import columns
from entity_gym.batch.columns import Tree
from entity_gym.batch.ragged import RaggedBuffer, offsets_of


@dataclass
class Metric:
    """Count, sum, minimum and maximum of a number that is reported many times."""

    count: int = 0
    sum: float = 0.0
    min: float = float("inf")
    max: float = float("-inf")

    def push(self, value: float) -> None:
        """Add one value."""
        self.merge(Metric(1, value, value, value))

    def merge(self, other: Metric) -> None:
        """Add all values that `other` has seen."""
        self.count += other.count
        self.sum += other.sum
        self.min = min(self.min, other.min)
        self.max = max(self.max, other.max)

    @property
    def mean(self) -> float | None:
        """The mean, or None before the first value."""
        return self.sum / self.count if self.count else None


@dataclass
class VecActionMask:
    """The actors of one action in each frame, and the choices open to them. What the choices are, the action space says.

    Attributes:
        actors: N sequences of (A, 1) int64, entity indices inside the frame.
        actees: for actions that select entities, N sequences of (number of actees, 1) int64, entity indices inside the frame.
            None for all other actions.
        mask: true where a choice is open. N sequences of (A, C) bool; for actions that select entities N sequences of
            (A * number of actees, 1), actor by actor. None where everything is open in every frame.
        mask_after: for actions after a select-entity one, N sequences of (A * number of that action's actees, C) bool, actor by
            actor: true where a choice is open to an actor that has selected the actee. An empty sequence closes nothing.
    """

    actors: RaggedBuffer[np.int64]
    actees: RaggedBuffer[np.int64] | None = None
    mask: RaggedBuffer[np.bool_] | None = None
    mask_after: RaggedBuffer[np.bool_] | None = None

    @property
    def pair_offsets(self) -> NDArray[np.int64]:
        """(N + 1,) int64: where the frames begin among the pairs of an actor and an actee."""
        assert self.actees is not None
        return offsets_of(self.actors.size1() * self.actees.size1()) if self.mask is None else self.mask.offsets

    @property
    def pair_actors(self) -> NDArray[np.int64]:
        """(pairs,) int64: the place of each pair's actor among all."""
        assert self.actees is not None
        of_each = np.repeat(self.actees.size1(), self.actors.size1())  # (A,) pairs of each actor
        return np.repeat(np.arange(len(of_each)), of_each)

    def spelled_out(self, width: int) -> RaggedBuffer[np.bool_]:
        """The mask with `width` columns, all true where it is None."""
        if self.mask is not None:
            return self.mask
        offsets = self.actors.offsets if self.actees is None else self.pair_offsets
        return RaggedBuffer.unchecked(np.ones((int(offsets[-1]), width), np.bool_), offsets)

    def columns(self) -> Tree:
        """The columns that are not None, by name."""
        return {name: column for name, column in vars(self).items() if column is not None}


#: Name of the rewards of players in `VecObs.arrays`.
PLAYER_REWARD = "player_reward"

#: Name of the numbers of instances in `VecObs.arrays`.
INSTANCE = "instance"

#: What names in `VecObs.arrays` of the space's targets begin with.
TARGET = "target:"

#: One action of N frames, a sequence each: (A, 1) choices, or entity indices and -1 for nobody, or (A, n) numbers; of sets
#: (A * number of actees, 1) places, actor by actor, 0 for an actee that is not selected.
VecAction: TypeAlias = RaggedBuffer[Any]


@dataclass
class VecObs:
    """One step of N environments: columns with something for each frame, and three fields about the step as a whole.

    Attributes:
        features: entity type -> N sequences of (number of entities, F), for every type of the space; with global features or
            a global action also `__global__`, one row a frame.
        action_masks: action -> its actors and open choices, for every action of the space.
        reward: (N,) float32, for the actions that led here.
        done: (N,) bool, an episode ended with this step. The observation is then the first of the next episode.
        truncated: (N,) bool, a limit ended the episode; implies `done`.
        env_id: (N,) int64, the environments that these frames belong to.
        elapsed_step: (N,) int64, steps of the episode that the frame belongs to; 0 for a first observation, so also where
            `done` is set and the next episode has begun.
        visible: entity type -> N sequences of (number of entities, 1); types that hide nothing in any frame are left out.
        ids: entity type -> N sequences of (number of entities, 1) int64, numbers that stay with an entity for the whole
            episode; -1 for entities without an id. Types in which no entity has one are left out.
        arrays: under `PLAYER_REWARD` a `RaggedBuffer` with the (players,) float32 rewards of the players for the step that led
            here, without rows in frames that do not tell them; and under `TARGET` and its name the (N, size) float32 numbers
            of each target. From pools with `group_size`, under `INSTANCE` (N,) int64 numbers of the running episodes: members of
            a group that play the same episode have the same. Empty for most.
        end_of_episode_info: environment -> its report on the episode that just ended.
        metrics: name -> numbers that the environments reported with this step.
        final: last observations of episodes that were truncated with this step, of the environments `final.env_id`; those that
            terminated only from pools that keep them. None if there are none. Nobody acts in them.
    """

    features: dict[str, RaggedBuffer[np.float32]]
    action_masks: dict[str, VecActionMask]
    reward: NDArray[np.float32]
    done: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    env_id: NDArray[np.int64]
    elapsed_step: NDArray[np.int64]
    visible: dict[str, RaggedBuffer[np.bool_]] = field(default_factory=dict)
    ids: dict[str, RaggedBuffer[np.int64]] = field(default_factory=dict)
    arrays: dict[str, NDArray[Any] | RaggedBuffer[Any]] = field(default_factory=dict)
    end_of_episode_info: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    metrics: dict[str, Metric] = field(default_factory=dict)
    final: VecObs | None = None

    def __len__(self) -> int:
        return len(self.reward)

    @property
    def num_entities(self) -> int:
        """Entities in all frames together, `__global__` ones included."""
        return sum(len(buffer.values) for buffer in self.features.values())

    def columns(self) -> Tree:
        """Return all columns of the batch as a tree; see `entity_gym.batch.columns`."""
        return {
            "features": dict(self.features),
            "action_masks": {name: mask.columns() for name, mask in self.action_masks.items()},
            "reward": self.reward,
            "done": self.done,
            "truncated": self.truncated,
            "env_id": self.env_id,
            "elapsed_step": self.elapsed_step,
            "visible": dict(self.visible),
            "ids": dict(self.ids),
            "arrays": dict(self.arrays),
        }

    @staticmethod
    def from_columns(
        tree: Mapping[str, Any],
        end_of_episode_info: Mapping[int, Mapping[str, Any]] | None = None,
        metrics: dict[str, Metric] | None = None,
        final: VecObs | None = None,
    ) -> VecObs:
        """Make a batch of the tree that `columns` returned; branches without columns may be left out."""
        masks = {name: VecActionMask(**mask) for name, mask in tree.get("action_masks", {}).items()}
        given = {"features": {}, **tree, "action_masks": masks}
        return VecObs(**given, end_of_episode_info=end_of_episode_info or {}, metrics=metrics or {}, final=final)

    def gather(self, frames: NDArray[np.int64]) -> VecObs:
        """Copy the frames numbered `frames`, in that order, with their infos and last observations.

        Metrics are sums over all frames, so they are kept only if all frames are.
        """
        tree: Any = columns.gather(self.columns(), frames)
        tree["visible"] = {name: buffer for name, buffer in tree["visible"].items() if not buffer.values.all()}
        chosen = set(tree["env_id"].tolist())
        final = None
        if self.final is not None:
            row_of = {i: row for row, i in enumerate(self.final.env_id.tolist())}
            rows = [row_of[i] for i in tree["env_id"].tolist() if i in row_of]
            final = self.final.gather(np.array(rows, np.int64)) if rows else None
        return VecObs.from_columns(
            tree,
            {i: info for i, info in self.end_of_episode_info.items() if i in chosen},
            dict(self.metrics) if len(frames) == len(self) else {},
            final,
        )

    @staticmethod
    def cat(parts: Sequence[VecObs]) -> VecObs:
        """Join the frames of all `parts`, one part after another; they must come from the same spaces. `env_id` stays as it is.

        Raises:
            ValueError: there are no parts.
        """
        if not parts:
            raise ValueError("VecObs.cat was given no parts; it needs at least one")
        if len(parts) == 1:
            return parts[0]
        metrics: dict[str, Metric] = {}
        infos: dict[int, Mapping[str, Any]] = {}
        for part in parts:
            infos.update(part.end_of_episode_info)
            for name, metric in part.metrics.items():
                metrics.setdefault(name, Metric()).merge(metric)
        finals = [part.final for part in parts if part.final is not None]
        return VecObs.from_columns(
            columns.cat(_with_all_columns(parts)), infos, metrics, VecObs.cat(finals) if finals else None
        )


def _with_all_columns(parts: Sequence[VecObs]) -> list[Tree]:
    """The columns of all parts; a column that only some have is spelled out in the others."""
    trees: list[Any] = [part.columns() for part in parts]
    for name in parts[0].action_masks:
        masks = [part.action_masks[name].mask for part in parts]
        width = next((mask.values.shape[1] for mask in masks if mask is not None), None)
        for part, tree in zip(parts, trees, strict=True):
            if width is not None and "mask" not in tree["action_masks"][name]:
                tree["action_masks"][name]["mask"] = part.action_masks[name].spelled_out(width)
        known = [mask for part in parts if (mask := part.action_masks[name].mask_after) is not None]
        for part, tree in zip(parts, trees, strict=True) if known else ():
            empty = RaggedBuffer(known[0].values[:0], np.zeros(len(part) + 1, np.int64))
            tree["action_masks"][name].setdefault("mask_after", empty)
    for branch, missing in (("visible", True), ("ids", np.int64(-1))):
        for name in {name: None for tree in trees for name in tree[branch]}:
            for part, tree in zip(parts, trees, strict=True):
                if name not in tree[branch]:
                    features = part.features[name]
                    tree[branch][name] = RaggedBuffer(np.full((features.items(), 1), missing), features.offsets)
    if any(PLAYER_REWARD in part.arrays for part in parts):
        for part, tree in zip(parts, trees, strict=True):
            if PLAYER_REWARD not in part.arrays:
                nothing, offsets = np.zeros(0, np.float32), np.zeros(len(part) + 1, np.int64)
                tree["arrays"][PLAYER_REWARD] = RaggedBuffer(nothing, offsets)
    return trees
