"""Frames of many environments become one packed batch.

Frames may leave out parts. A missing entity type or action becomes an empty sequence, a missing mask is open everywhere, and
without a visibility list all entities are visible.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import accumulate, chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import ActionSpace
from entity_gym.actions.chains import check_open_after
from entity_gym.actions.reading import NO_INDICES, Offer
from entity_gym.batch.frame import Frame, FrameReader
from entity_gym.batch.ragged import RaggedBuffer, Scalar
from entity_gym.batch.vec_obs import PLAYER_REWARD, TARGET, Metric, VecActionMask, VecObs
from entity_gym.environment import Observation
from entity_gym.spaces import GLOBAL_ENTITY, LARGEST_FLOAT32, ObsSpace, refusal, wrong_values

_NO_OFFER = Offer(NO_INDICES)


def batch_observations(
    observations: Sequence[Observation],
    obs_space: ObsSpace,
    action_space: Mapping[str, ActionSpace],
    environment: str = "Environment",
) -> VecObs:
    """Batch observations of environments 0, 1, ... that share their spaces.

    Args:
        observations: one per environment.
        obs_space: their observation space.
        action_space: their actions by name.
        environment: their class, for messages.

    Raises:
        ValueError: for an observation that does not fit the spaces, naming the environment.
    """
    reader = FrameReader(obs_space, action_space, environment)
    env_id = np.arange(len(observations))
    frames = [reader.read(obs, i) for i, obs in enumerate(observations)]
    return batch_frames(frames, observations, env_id, np.zeros(len(frames), np.int64), reader)


def batch_frames(
    frames: Sequence[Frame],
    observations: Sequence[Observation],
    env_id: NDArray[np.int64],
    elapsed_step: NDArray[np.int64],
    reader: FrameReader,
) -> VecObs:
    """Batch what `reader` has read from `observations`, which belong to the environments `env_id`.

    All arrays of the result are new but `env_id` and `elapsed_step`.
    """
    features = {}
    for name, entity in reader.types.items():
        nothing = np.zeros((0, len(entity.features)), np.float32)
        features[name] = _joined([frame.features[name] for frame in frames], nothing)
        check_features(name, features[name], env_id, reader)
    masks = batch_masks(frames, reader)
    check_open_after(masks, reader.action_space, lambda k: reader.where(int(env_id[k])))
    return VecObs(
        features=features,
        action_masks=masks,
        reward=_scalars("reward", np.float32, observations, env_id, reader),
        done=_scalars("done", np.bool_, observations, env_id, reader),
        truncated=_scalars("truncated", np.bool_, observations, env_id, reader),
        env_id=env_id,
        elapsed_step=elapsed_step,
        visible=_visible(frames, features),
        ids=_ids(frames, features),
        end_of_episode_info={
            i: obs.end_of_episode_info
            for i, obs in zip(env_id.tolist(), observations, strict=True)
            if obs.done and obs.end_of_episode_info is not None
        },
        metrics=_metrics(observations, env_id, reader),
        arrays=_arrays(observations, env_id, reader),
    )


def batch_masks(frames: Sequence[Frame], reader: FrameReader) -> dict[str, VecActionMask]:
    """Pack the offers of `frames`, action by action."""
    masks = {}
    for name, space in reader.action_space.items():
        offers = [frame.actions.get(name, _NO_OFFER) for frame in frames]
        actors = _indices([offer.actors for offer in offers])
        actees = _indices([offer.actees for offer in offers]) if space.selects else None
        mask = None
        if any(offer.mask is not None for offer in offers):
            rows = []
            for offer in offers:
                shape = len(offer.actors), len(offer.actees) if space.selects else len(space.labels)
                is_open = np.ones(shape, np.bool_) if offer.mask is None else offer.mask
                rows.append(is_open.reshape(-1, 1) if space.selects else is_open)
            mask = _joined(rows, rows[0])
        masks[name] = VecActionMask(actors, actees, mask)
        if any(offer.mask_after is not None for offer in offers):
            nothing = np.ones((0, len(space.labels)), np.bool_)
            after = [
                nothing if offer.mask_after is None else offer.mask_after.reshape(-1, nothing.shape[1])
                for offer in offers
            ]
            masks[name].mask_after = _joined(after, nothing)
    return masks


def _indices(arrays: list[NDArray[np.int64]]) -> RaggedBuffer[np.int64]:
    """Pack entity indices, a sequence of (A, 1) for each of the (A,) `arrays`."""
    flat = _joined(arrays, NO_INDICES)
    return RaggedBuffer.unchecked(flat.values[:, None], flat.offsets)


def _joined(arrays: list[NDArray[Scalar]], nothing: NDArray[Scalar]) -> RaggedBuffer[Scalar]:
    """Pack a sequence for each of the `arrays`; `nothing` is what there is without any."""
    values = np.concatenate(arrays) if arrays else nothing
    offsets = np.fromiter(accumulate(map(len, arrays), initial=0), np.int64, len(arrays) + 1)
    return RaggedBuffer.unchecked(values, offsets)


def check_features(name: str, buffer: RaggedBuffer[np.float32], env_id: NDArray[np.int64], reader: FrameReader) -> None:
    """Raise a ValueError that names the first invalid feature of type `name`, if there is one."""
    entity = reader.types[name]
    wrong = wrong_values(buffer.values, entity)
    if not wrong.any():
        return
    item, column = (int(k) for k in np.argwhere(wrong)[0])
    i = int(np.searchsorted(buffer.offsets, item, side="right")) - 1
    feature, row = entity.features[column], item - int(buffer.offsets[i])
    what = (
        f"global feature {feature!r}"
        if name == GLOBAL_ENTITY
        else f"feature {feature!r} of entity {row} of type {name!r}"
    )
    raise ValueError(
        f"{reader.where(int(env_id[i]))}: {what} is {refusal(buffer.values[item, column], entity.kinds.get(feature))}"
    )


def _scalars(
    field: str,
    dtype: type[np.generic],
    observations: Sequence[Observation],
    env_id: NDArray[np.int64],
    reader: FrameReader,
) -> NDArray[Any]:
    """(N,) the field of every observation: a bool, or a finite number."""
    kinds = "b" if dtype is np.bool_ else "biuf"
    given = [getattr(obs, field) for obs in observations]
    with suppress(TypeError, ValueError):
        values = np.array(given)
        if values.shape == (len(given),) and (values.dtype.kind in kinds or not given):
            values = values.astype(dtype, copy=False)
            if np.isfinite(values).all():
                return values
    expected = "a bool" if dtype is np.bool_ else "a finite number that float32 can hold"
    rows = zip(env_id.tolist(), given, strict=True)
    checked = [_numbers(value, (), expected, f"{reader.where(i)}: {field}", kinds) for i, value in rows]
    return np.array(checked).astype(dtype)


def _numbers(given: Any, shape: tuple[int, ...] | None, expected: str, what: str, kinds: str = "biuf") -> NDArray[Any]:
    """Return numbers that float32 can hold, or raise a ValueError that begins with `what`; `shape` None is one dimension."""
    try:
        array = np.asarray(given)
    except ValueError:  # rows of different lengths
        array = np.asarray(None)
    fits = array.shape == shape if shape is not None else array.ndim == 1
    if not fits or (array.size and (array.dtype.kind not in kinds or not (np.abs(array) <= LARGEST_FLOAT32).all())):
        raise ValueError(f"{what} is {given!r:.200}; it must be {expected}")
    return array.astype(np.float32)


def _visible(
    frames: Sequence[Frame], features: dict[str, RaggedBuffer[np.float32]]
) -> dict[str, RaggedBuffer[np.bool_]]:
    visible: dict[str, RaggedBuffer[np.bool_]] = {}
    if not any([frame.visible for frame in frames]):
        return visible
    for name in features:
        if any(name in frame.visible and not frame.visible[name].all() for frame in frames):
            flags = [frame.visible.get(name, np.ones(len(frame.features[name]), dtype=np.bool_)) for frame in frames]
            visible[name] = RaggedBuffer(np.concatenate(flags)[:, None], features[name].offsets)
    return visible


def _ids(
    frames: Sequence[Frame], features: Mapping[str, RaggedBuffer[np.float32]]
) -> dict[str, RaggedBuffer[np.int64]]:
    """Pack the numbers of entities with ids by type."""
    packed = {}
    for name in dict.fromkeys(chain.from_iterable([frame.numbers for frame in frames])):
        numbers = [
            np.full(len(frame.features[name]), -1) if (own := frame.numbers.get(name)) is None else own
            for frame in frames
        ]
        packed[name] = RaggedBuffer.unchecked(np.concatenate(numbers)[:, None], features[name].offsets)
    return packed


def _metrics(observations: Sequence[Observation], env_id: NDArray[np.int64], reader: FrameReader) -> dict[str, Metric]:
    metrics: dict[str, Metric] = {}
    if not any([obs.metrics for obs in observations]):
        return metrics
    for i, obs in zip(env_id.tolist(), observations, strict=True):
        given: Mapping[str, Any] = obs.metrics
        for name, value in given.items():
            try:
                number = math.nan if isinstance(value, str | bytes) else float(value)
            except (TypeError, ValueError, OverflowError):
                number = math.nan
            if not math.isfinite(number):
                raise ValueError(f"{reader.where(i)}: metrics[{name!r}] is {value!r:.200}; it must be a finite number")
            metrics.setdefault(name, Metric()).push(number)
    return metrics


def _arrays(
    observations: Sequence[Observation], env_id: NDArray[np.int64], reader: FrameReader
) -> dict[str, NDArray[Any] | RaggedBuffer[Any]]:
    """Pack the targets, and the rewards of players where an observation has any, for `VecObs.arrays`."""
    packed: dict[str, NDArray[Any] | RaggedBuffer[Any]] = {}
    for name, size in reader.obs_space.targets.items():
        values = np.zeros((len(observations), size), np.float32)
        for row, obs in enumerate(observations):
            values[row] = _numbers(
                obs.targets[name],
                (size,),
                f"{size} finite numbers",
                f"{reader.where(int(env_id[row]))}: targets[{name!r}]",
            )
        packed[f"{TARGET}{name}"] = values
    if any([len(obs.player_rewards) for obs in observations]):
        rewards = [
            _numbers(obs.player_rewards, None, "a finite number for each player", f"{reader.where(i)}: player_rewards")
            for i, obs in zip(env_id.tolist(), observations, strict=True)
        ]
        packed[PLAYER_REWARD] = _joined(rewards, rewards[0])
    return packed
