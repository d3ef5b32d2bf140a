"""Frames of many environments become one packed batch.

Frames may leave out parts. A missing entity type or action becomes an empty sequence, a missing mask is open everywhere, and
without a visibility list all entities are visible.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import (
    ActionSpace,
)
from entity_gym.actions.reading import NO_INDICES, Offer, pack_offers
from entity_gym.batch.frame import Frame, FrameReader
from entity_gym.batch.ragged import RaggedBuffer, offsets_of
from entity_gym.batch.vec_obs import PLAYER_REWARD, TARGET, Metric, VecActionMask, VecObs
from entity_gym.environment import Observation
from entity_gym.spaces import GLOBAL_ENTITY, LARGEST_FLOAT32, ObsSpace, refusal, wrong_values

NO_OFFER = Offer(NO_INDICES)


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
    for name, width in reader.widths.items():
        features[name] = _features([frame.features[name] for frame in frames], width)
    if reader.has_global:
        width = len(reader.obs_space.global_features)
        features[GLOBAL_ENTITY] = _features([frame.features[GLOBAL_ENTITY] for frame in frames], width)
    for name, buffer in features.items():
        check_features(name, buffer, env_id, reader)
    reward = _scalars(
        "reward", "a finite number that float32 can hold", np.dtype(np.float32), observations, env_id, reader
    )
    done = _scalars("done", "a bool", np.dtype(np.bool_), observations, env_id, reader)
    truncated = _scalars("truncated", "a bool", np.dtype(np.bool_), observations, env_id, reader)

    return VecObs(
        features=features,
        action_masks=batch_masks(frames, reader),
        reward=reward,
        done=done,
        truncated=truncated,
        env_id=env_id,
        elapsed_step=elapsed_step,
        visible=_visible(frames, features),
        ids=_ids(frames, features),
        end_of_episode_info=_end_of_episode_info(observations, env_id),
        metrics=_metrics(observations, env_id, reader),
        arrays=_player_rewards(observations, env_id, reader) | _targets(observations, env_id, reader),
    )


def batch_masks(frames: Sequence[Frame], reader: FrameReader) -> dict[str, VecActionMask]:
    """Pack the offers of `frames`, action by action."""
    return {
        name: pack_offers(
            [frame.actions.get(name, NO_OFFER) for frame in frames], space.num_choices or 0, selects=space.selects
        )
        for name, space in reader.action_space.items()
    }


def _features(arrays: list[NDArray[np.float32]], width: int) -> RaggedBuffer[np.float32]:
    values = np.concatenate(arrays) if arrays else np.zeros((0, width), dtype=np.float32)
    return RaggedBuffer(values, offsets_of(np.array([len(array) for array in arrays], np.int64)))


def check_features(name: str, buffer: RaggedBuffer[np.float32], env_id: NDArray[np.int64], reader: FrameReader) -> None:
    """Raise a ValueError that names the first invalid feature of type `name`, if there is one."""
    values, whole, space = buffer.values, reader.whole_columns.get(name), reader.obs_space
    if np.isfinite(values).all() and (whole is None or not whole.wrong(values).any()):
        return
    is_global = name == GLOBAL_ENTITY
    names = space.global_features if is_global else space.entities[name].features
    kinds = space.global_kinds if is_global else space.entities[name].kinds
    item, column = (int(k) for k in np.argwhere(wrong_values(values, names, kinds))[0])
    i = int(np.searchsorted(buffer.offsets, item, side="right")) - 1
    feature, entity = names[column], item - int(buffer.offsets[i])
    what = f"global feature {feature!r}" if is_global else f"feature {feature!r} of entity {entity} of type {name!r}"
    wrong = refusal(values[item, column], kinds.get(feature))
    raise ValueError(f"{reader.where(int(env_id[i]))}: {what} is {wrong}")


def _scalars(
    field: str,
    expected: str,
    dtype: np.dtype[Any],
    observations: Sequence[Observation],
    env_id: NDArray[np.int64],
    reader: FrameReader,
) -> NDArray[Any]:
    """(N,) the field of every observation."""
    given = [getattr(obs, field) for obs in observations]
    kinds = "b" if dtype == np.bool_ else "biuf"
    try:
        values = np.array(given)
        if values.shape == (len(given),) and (values.dtype.kind in kinds or not given):
            values = values.astype(dtype, copy=False)
            if dtype == np.bool_ or np.isfinite(values).all():
                return values
    except (TypeError, ValueError):
        pass
    for i, value in zip(env_id.tolist(), given, strict=True):
        alone = np.asarray(value)
        if alone.ndim or alone.dtype.kind not in kinds or not np.isfinite(alone.astype(dtype)):
            raise ValueError(f"{reader.where(i)}: {field} is {value!r}; it must be {expected}")
    return np.array(given).astype(dtype)


def _visible(
    frames: Sequence[Frame], features: dict[str, RaggedBuffer[np.float32]]
) -> dict[str, RaggedBuffer[np.bool_]]:
    visible = {}
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
    for name in {name: None for frame in frames for name in frame.numbers}:
        numbers: list[int] = []
        for frame in frames:
            numbers += frame.numbers.get(name) or [-1] * len(frame.features[name])
        packed[name] = RaggedBuffer(np.array(numbers, np.int64)[:, None], features[name].offsets)
    return packed


def _end_of_episode_info(
    observations: Sequence[Observation], env_id: NDArray[np.int64]
) -> dict[int, Mapping[str, Any]]:
    return {
        int(i): obs.end_of_episode_info
        for i, obs in zip(env_id, observations, strict=True)
        if obs.done and obs.end_of_episode_info is not None
    }


def _metrics(observations: Sequence[Observation], env_id: NDArray[np.int64], reader: FrameReader) -> dict[str, Metric]:
    metrics: dict[str, Metric] = {}
    for i, obs in zip(env_id, observations, strict=True):
        given: Mapping[str, Any] = obs.metrics
        for name, value in given.items():
            try:
                number = math.nan if isinstance(value, str | bytes) else float(value)
            except (TypeError, ValueError, OverflowError):
                number = math.nan
            if not math.isfinite(number):
                raise ValueError(
                    f"{reader.where(int(i))}: metrics[{name!r}] is {value!r:.200}; it must be a finite number"
                )
            metrics.setdefault(name, Metric()).push(number)
    return metrics


def _targets(
    observations: Sequence[Observation], env_id: NDArray[np.int64], reader: FrameReader
) -> dict[str, NDArray[Any] | RaggedBuffer[Any]]:
    """Pack the targets for `VecObs.arrays`."""
    declared = reader.obs_space.targets
    if not declared and not any(obs.targets for obs in observations):
        return {}
    packed = {name: np.zeros((len(observations), size), np.float32) for name, size in declared.items()}
    for row, (i, obs) in enumerate(zip(env_id.tolist(), observations, strict=True)):
        if obs.targets.keys() != declared.keys():
            raise ValueError(
                f"{reader.where(i)}: targets has {list(obs.targets)}; it must have all of the space's, {list(declared)}"
            )
        for name, size in declared.items():
            given = np.asarray(obs.targets[name])
            if given.shape != (size,) or given.dtype.kind not in "biuf" or not (np.abs(given) <= LARGEST_FLOAT32).all():
                raise ValueError(
                    f"{reader.where(i)}: targets[{name!r}] is {obs.targets[name]!r}; it must be {size} finite numbers"
                )
            packed[name][row] = given
    return {f"{TARGET}{name}": values for name, values in packed.items()}


def _player_rewards(
    observations: Sequence[Observation], env_id: NDArray[np.int64], reader: FrameReader
) -> dict[str, NDArray[Any] | RaggedBuffer[Any]]:
    """Pack the player rewards for `VecObs.arrays`; {} if no observation has any."""
    num_players = next((len(obs.player_rewards) for obs in observations if len(obs.player_rewards)), None)
    if num_players is None:
        return {}
    rows = []
    for i, obs in zip(env_id.tolist(), observations, strict=True):
        given = np.asarray(obs.player_rewards, dtype=np.float64 if len(obs.player_rewards) == 0 else None)
        if given.ndim != 1 or given.dtype.kind not in "biuf" or not (np.abs(given) <= LARGEST_FLOAT32).all():
            raise ValueError(
                f"{reader.where(i)}: player_rewards is {obs.player_rewards!r}; it must be a finite number for each player"
            )
        if len(given) not in (0, num_players):
            raise ValueError(
                f"{reader.where(i)}: player_rewards has {len(given)} numbers, and that of another environment {num_players}; "
                "give one for each player, or none where all share the reward"
            )
        rows.append(given.astype(np.float32))
    return {
        PLAYER_REWARD: RaggedBuffer(np.concatenate(rows), offsets_of(np.array([len(row) for row in rows], np.int64)))
    }
