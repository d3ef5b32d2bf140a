"""What a world that is written over arrays shows: rows of many environments, and who may act."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions.reading import AnyRows, BatchActors, BatchEntities
from entity_gym.batch.batching import check_features
from entity_gym.batch.frame import FrameReader
from entity_gym.batch.ragged import RaggedBufferBool, RaggedBufferF32, RaggedBufferI64, offsets_of
from entity_gym.batch.vec_obs import VecActionMask, VecObs
from entity_gym.errors import nearest
from entity_gym.spaces import GLOBAL_ENTITY


@dataclass(kw_only=True)
class BatchObservation:
    """n environments at one step; the fields of `Observation`, over all of them.

    Attributes:
        features: entity type -> rows of (I, F) numbers. A type may be left out: nobody has any.
        actions: action -> who takes it. An action may be left out: nobody does.
        global_features: (n, number of global features).
        visible: entity type -> rows of (I,) bool; types left out are visible.
    """

    features: Mapping[str, AnyRows] = field(default_factory=dict)
    actions: Mapping[str, BatchActors] = field(default_factory=dict)
    global_features: NDArray[Any] | None = None
    visible: Mapping[str, AnyRows] = field(default_factory=dict)


class Ending(NamedTuple):
    """How the steps ended that n environments took; each (n,)."""

    reward: NDArray[np.float32]
    done: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    elapsed_step: NDArray[np.int64]


def pack_batch(
    observed: BatchObservation,
    ids: NDArray[np.int64],
    ending: Ending,
    reader: FrameReader,
    without_actions: NDArray[np.bool_],
) -> VecObs:
    """One `VecObs` from what the environments `ids` show.

    Args:
        observed: n environments.
        ids: (n,) which.
        ending: what goes with it.
        reader: has their spaces and names.
        without_actions: (n,) where nobody acts, whatever `observed` says: last observations of episodes.

    Raises:
        ValueError: for anything that does not fit the spaces, naming the type or action.
    """
    name, known = reader.environment, reader.widths
    for what, given in (("features", observed.features), ("visible", observed.visible)):
        for entity_type in given:
            if entity_type not in known:
                raise ValueError(
                    f"{name}: {what} of unknown entity type {entity_type!r}; {nearest(entity_type, known)}"
                )
    for action in observed.actions:
        if action not in reader.action_space:
            raise ValueError(f"{name}: unknown action {action!r}; {nearest(action, reader.action_space)}")
    where = lambda position: reader.where(int(ids[position]))  # noqa: E731
    alone = BatchEntities(name, where, {}, ~without_actions)  # to read features, before there are entities
    features, counts = {}, {}
    for entity_type, width in known.items():
        rows = alone.rows(observed.features.get(entity_type), (width,), np.float32, f"features of {entity_type!r}")
        features[entity_type] = RaggedBufferF32.from_offsets(rows.values, offsets_of(rows.counts))
        counts[entity_type] = rows.counts
    if reader.has_global:
        features[GLOBAL_ENTITY] = _global_rows(observed.global_features, len(ids), reader)
    for entity_type, buffer in features.items():
        check_features(entity_type, buffer, ids, reader)
    entities = BatchEntities(name, where, counts, ~without_actions)
    nobody = VecActionMask(RaggedBufferI64.from_offsets(np.zeros((0, 1), np.int64), np.zeros(len(ids) + 1, np.int64)))
    masks = {}
    for action, space in reader.action_space.items():
        given_actors = observed.actions.get(action)
        if given_actors is None:
            masks[action] = replace(nobody, actees=nobody.actors if space.selects else None)
        else:
            masks[action] = space.read_batch(action, given_actors, entities)
    return VecObs(
        features=features,
        action_masks=masks,
        reward=ending.reward,
        done=ending.done,
        truncated=ending.truncated,
        env_id=ids.copy(),
        elapsed_step=ending.elapsed_step,
        visible=_visible(observed.visible, entities),
    )


def _global_rows(given: NDArray[Any] | None, num_envs: int, reader: FrameReader) -> RaggedBufferF32:
    names = list(reader.obs_space.global_features)
    values = np.zeros((num_envs, 0)) if given is None else np.asarray(given)
    if values.shape != (num_envs, len(names)) or values.dtype.kind not in "biuf":
        raise ValueError(
            f"{reader.environment}: global_features have shape {values.shape} and type {values.dtype.name}; expected numbers "
            f"{(num_envs, len(names))}, for {names}"
        )
    return RaggedBufferF32.from_offsets(np.array(values, dtype=np.float32, order="C"), np.arange(num_envs + 1))


def _visible(given: Mapping[str, AnyRows], entities: BatchEntities) -> dict[str, RaggedBufferBool]:
    result = {}
    for name, flags in given.items():
        rows = entities.rows(flags, (), np.bool_, f"visible of {name!r}")
        if not np.array_equal(rows.counts, entities.counts[name]):
            raise ValueError(f"{entities.name}: visible of {name!r} has other counts than its features")
        if not rows.values.all():
            result[name] = RaggedBufferBool.from_offsets(rows.values[:, None], offsets_of(rows.counts))
    return result
