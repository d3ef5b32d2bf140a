"""Statistics of a rollout: rewards, entities of each type, and the choices of each action.

They are computed on the rollout's device and copied to the CPU together, with one synchronisation.

Shapes: B frames, E entity types, A actors of an action, C choices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from enn_ppo.frames import Frames
from enn_ppo.rollout import Rollout
from entity_gym.actions import ActionSpace
from entity_gym.batch.vec_obs import Metric
from entity_gym.pools.episodes import Episode
from entity_gym.spaces import GLOBAL_ENTITY
from rogue_net import ObsBatch, RaggedTensor

How = Literal["mean", "min", "max", "sum"]

#: Stands among the types of entity that an action may select, for those who selected nobody.
NOBODY = "__nobody__"


class Kind(NamedTuple):
    """The way in which a statistic of several rollouts is combined."""

    how: How
    of: str | None  # of a mean: the metric with the number of values; None: one for each frame


class Played(NamedTuple):
    """Statistics of a rollout, on the CPU."""

    num_frames: int
    num_entities: int
    episodes: Sequence[Episode]  # that ended
    elapsed_steps: Metric  # of the frames' episodes
    counts: Mapping[str, float | None]  # see `count`
    kinds: Mapping[str, Kind]  # of the counts
    metrics: Mapping[str, Metric]  # that the environments reported
    env_seconds: float
    act_seconds: float


def summarize(rollout: Rollout, action_space: Mapping[str, ActionSpace]) -> Played:
    """Statistics of a rollout. Synchronises with its device once."""
    elapsed = rollout.frames.step.cpu()
    counted = _count(rollout.frames, action_space)
    return Played(
        num_frames=len(rollout.frames),
        num_entities=rollout.frames.obs.num_tokens,
        episodes=rollout.stats.episodes,
        elapsed_steps=Metric(len(elapsed), float(elapsed.sum()), float(elapsed.min()), float(elapsed.max())),
        counts=_row(counted),
        kinds={name: kind for part in counted for name, kind in zip(part.names, part.kinds, strict=True)},
        metrics=rollout.stats.metrics,
        env_seconds=rollout.stats.env_seconds,
        act_seconds=rollout.stats.act_seconds,
    )


def count(rollout: Rollout, action_space: Mapping[str, ActionSpace]) -> dict[str, float | None]:
    """Compute the statistics of frames and actions.

    Args:
        rollout: T steps of N environments.
        action_space: names of the choices of each action; actions that the rollout does not have are left out.

    Returns:
        Name of the metric -> number; None if there is no value, such as shares of choices without any actor.
    """
    return _row(_count(rollout.frames, action_space))


class _Counted(NamedTuple):
    names: list[str]
    values: Tensor | int  # as many float64, of any shape; NaN: no value
    kinds: list[Kind]


@torch.no_grad()
def _count(frames: Frames, action_space: Mapping[str, ActionSpace]) -> list[_Counted]:
    lengths = _entities_by_frame(frames.obs)
    counted = list(_rewards_and_entities(frames, lengths))
    present = {name: space for name, space in action_space.items() if name in frames.actions}
    for name, space in present.items():
        counted += _choices(name, space, frames, lengths)
    numbers = {name: len(frames.actions[name].values) for name in present}
    return counted + [_Counted([_actors(name)], number, [Kind("sum", None)]) for name, number in numbers.items()]


def _row(counted: Sequence[_Counted]) -> dict[str, float | None]:
    names = [name for part in counted if isinstance(part.values, Tensor) for name in part.names]
    measured = [part.values.flatten() for part in counted if isinstance(part.values, Tensor)]
    values = torch.cat(measured).tolist()  # the one synchronisation
    row = {name: None if math.isnan(value) else value for name, value in zip(names, values, strict=True)}
    return row | {part.names[0]: part.values for part in counted if isinstance(part.values, int)}


def _actors(action: str) -> str:
    return f"actors/{action}"


def _spread_of(name: str, values: Tensor, of: str | None = None) -> _Counted:
    kinds = [Kind("mean", of), Kind("min", None), Kind("max", None)]
    return _Counted([name, f"{name}_min", f"{name}_max"], _mean_min_max(values), kinds)


def _shares_of(labels: list[str], choices: Tensor, of: str) -> _Counted:
    return _Counted(labels, _shares(choices, len(labels)), [Kind("mean", of)] * len(labels))


def _rewards_and_entities(frames: Frames, lengths: Tensor) -> Iterator[_Counted]:
    yield _spread_of("reward", frames.rewards)
    yield _spread_of("entities", lengths.sum(0))
    for entity_type, counts in zip(frames.obs.features, lengths, strict=True):
        yield _spread_of(f"entities/{entity_type}", counts)


def _choices(name: str, space: ActionSpace, frames: Frames, lengths: Tensor) -> Iterator[_Counted]:
    """Share of each choice of an action, or mean and range of a continuous one."""
    chosen = frames.actions[name]
    if not space.discrete:
        for k, label in enumerate(space.labels):
            yield _spread_of(f"actions/{name}/{label}", chosen.values[:, k], _actors(name))
    elif space.selects:
        types = [entity_type for entity_type in frames.obs.features if entity_type != GLOBAL_ENTITY]
        labels = [f"actions/{name}/{label}" for label in (*types, NOBODY)]
        yield _shares_of(labels, _selected_types(chosen, lengths[: len(types)]), _actors(name))
    else:
        labels = [f"actions/{name}/{label}" for label in space.labels]
        yield _shares_of(labels, chosen.values[:, 0], _actors(name))


def _mean_min_max(values: Tensor) -> Tensor:
    """(3,) float64 of (n,) `values`; NaN if n is 0."""
    values = values.double()
    if len(values) == 0:
        return values.new_full((3,), math.nan)
    return torch.stack([values.mean(), *values.aminmax()])


def _entities_by_frame(obs: ObsBatch) -> Tensor:
    """(E, B) int64, entities of each type in each frame."""
    if not obs.features:
        return torch.zeros(1, obs.num_frames, dtype=torch.int64, device=obs.device)[:0]
    return torch.stack([ragged.offsets for ragged in obs.features.values()]).diff(dim=1)


def _selected_types(selected: RaggedTensor, lengths: Tensor) -> Tensor:
    """(A,) int64, number of the type of each selected entity; E if no entity was selected.

    Args:
        selected: B sequences of (A, 1) entity indices inside the frame, -1 for none.
        lengths: (E, B), entities by type and frame. A type's indices follow those of the types before it.
    """
    num_types, num_frames = lengths.shape
    indices = selected.values[:, 0]
    frames = torch.repeat_interleave(
        torch.arange(num_frames, device=indices.device), selected.lengths, output_size=len(indices)
    )
    ends = lengths.cumsum(0)[:, frames]  # (E, A)
    return torch.where(indices < 0, num_types, (indices >= ends).sum(0))


def _shares(choices: Tensor, num_choices: int) -> Tensor:
    """(C,) float64, share of each of `num_choices` among `choices`, 0 to 1; NaN if `choices` is empty."""
    counts = torch.zeros(num_choices, dtype=torch.float64, device=choices.device)
    counts.index_add_(0, choices, torch.ones(len(choices), dtype=torch.float64, device=choices.device))
    return counts / len(choices) if len(choices) else counts.fill_(math.nan)
