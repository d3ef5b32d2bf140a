"""One row of metrics per update: sums of its rollout, then their means. docs/metrics.md explains every name.

The sums are computed on the rollout's device and copied to the CPU with one synchronisation.

Shapes: B frames, E entity types, A actors of an action, C choices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import Any, NamedTuple

import torch
from torch import Tensor

from enn_ppo.rollout import Rollout, RolloutStats
from enn_ppo.training.tracking.logger import Row
from entity_gym.actions import ActionSpace
from entity_gym.batch.vec_obs import Metric
from rogue_net import ObsBatch


class Played(NamedTuple):
    """Statistics of a rollout, on the CPU."""

    num_frames: int
    stats: RolloutStats  # episodes, metrics of environments, timings
    spreads: Mapping[str, Metric]  # values per frame, such as rewards, and the numbers of continuous actions
    #: Choice -> count: actors of the action, sum: actors that took the choice, or of sets what all of them selected.
    shares: Mapping[str, Metric]
    actors: Mapping[str, int]  # action -> A


@torch.no_grad()
def summarize(rollout: Rollout, action_space: Mapping[str, ActionSpace]) -> Played:
    """Statistics of a rollout, without the actions that it does not have. Synchronises with its device once."""
    frames = rollout.frames
    lengths = _entities_by_frame(frames.obs)
    spreads = {"reward": frames.rewards, "entities": lengths.sum(0), "elapsed_steps": frames.step}
    spreads |= {f"entities/{name}": counts for name, counts in zip(frames.obs.features, lengths, strict=True)}
    actors = {name: len(frames.log_probs[name].values) for name in action_space if name in frames.log_probs}
    tallies: dict[str, Tensor] = {}  # action -> (C,) float64, actors that chose it, or (1,) entities in their sets
    labels = {name: space.labels if space.counted is None else [space.counted] for name, space in action_space.items()}
    for name in actors:
        space, values = action_space[name], frames.actions[name].values
        if not space.discrete:
            spreads |= {f"actions/{name}/{label}": values[:, k] for k, label in enumerate(labels[name])}
        elif space.num_choices:
            tallies[name] = _tally(values[:, 0], space.num_choices)
        elif space.counted is not None:
            tallies[name] = (values > 0).sum(dim=0, dtype=torch.float64)
    computed = [*map(_sum_min_max, spreads.values()), *tallies.values()]
    numbers = iter(torch.cat(computed).tolist())  # the one synchronisation
    return Played(
        num_frames=len(frames),
        stats=rollout.stats,
        spreads={
            name: Metric(len(values), next(numbers), next(numbers), next(numbers)) for name, values in spreads.items()
        },
        shares={
            f"actions/{name}/{label}": Metric(actors[name], next(numbers)) for name in tallies for label in labels[name]
        },
        actors=actors,
    )


def merge_played(parts: Sequence[Played]) -> Played:
    """Merge statistics of rollouts that several processes collected at the same time: seconds are averaged."""
    stats = RolloutStats()
    for part in parts:
        stats.add(part.stats.episodes, part.stats.metrics)
        stats.env_seconds += part.stats.env_seconds / len(parts)
        stats.act_seconds += part.stats.act_seconds / len(parts)
    return Played(
        num_frames=sum(part.num_frames for part in parts),
        stats=stats,
        spreads=_merged(part.spreads for part in parts),
        shares=_merged(part.shares for part in parts),
        actors={name: sum(part.actors[name] for part in parts) for name in parts[0].actors},
    )


def metrics_row(
    step: int,
    played: Played,
    learned: Mapping[str, float],
    *,
    run_seconds: float,
    update_seconds: float,
    extra: Mapping[str, float | int | None],
) -> Row:
    """The row of metrics of an update: name -> number; None without a value, such as the episodic reward if no episode ended.

    `run_seconds` are those of training up to the end of this update, `update_seconds` those of this update with its rollout.
    `extra` are other metrics, such as `eval/...`, whose names must be new.
    """
    stats, episodes = played.stats, played.stats.episodes
    env, act = stats.env_seconds / update_seconds, stats.act_seconds / update_seconds
    row: Row = {
        "step": step,
        "seconds": run_seconds,
        "frames": played.num_frames,
        "steps_per_second": played.num_frames / update_seconds,
        "entities_per_second": played.spreads["entities"].sum / update_seconds,
        **_spread("episodic_reward", _metric(episode.reward for episode in episodes)),
        **_spread("episode_length", _metric(episode.length for episode in episodes)),
        "episodes": len(episodes),
        "episodes_truncated": sum(episode.truncated for episode in episodes),
        **learned,
        "share_env": env,
        "share_act": act,
        "share_update": max(0.0, 1 - env - act),  # negative where Ray's runners play during the update
        **{f"actors/{name}": number for name, number in played.actors.items()},
        **{name: share.mean for name, share in played.shares.items()},
    }
    for name, metric in played.spreads.items():
        row |= _spread(name, metric)
    row |= _reported(stats)
    assert not row.keys() & extra.keys(), sorted(row.keys() & extra.keys())
    return row | dict(extra)


def env_info_row(info: Mapping[str, Sequence[Any]]) -> Row:
    """Metrics of environment parameters: mean, minimum and maximum of numbers; of other values, the share of environments."""
    row: Row = {}
    for name, values in info.items():
        if all(isinstance(value, Real) for value in values):
            row |= _spread(f"env_info/{name}", _metric(values))
        else:
            texts = [str(value) for value in values]
            row |= {f"env_info/{name}/{text}": texts.count(text) / len(texts) for text in sorted(set(texts))}
    return row


def _reported(stats: RolloutStats) -> Row:
    """Metrics that environments report at the end of episodes, and with their steps."""
    infos: dict[str, Metric] = {}
    for episode in stats.episodes:
        for name, value in episode.info.items():
            if isinstance(value, Real):
                infos.setdefault(f"episode/{name}", Metric()).push(float(value))
    reported = infos | {f"env/{name}": metric for name, metric in stats.metrics.items()}
    row: Row = {}
    for name, metric in reported.items():
        row |= _spread(name, metric) | {f"{name}_count": metric.count}
    # added last, so that an environment's own metric `x_max` is not overwritten by the maximum of `x`
    return row | {name: metric.mean for name, metric in reported.items()}


def _metric(values: Iterable[float]) -> Metric:
    metric = Metric()
    for value in values:
        metric.push(float(value))
    return metric


def _spread(name: str, metric: Metric) -> Row:
    """Mean, minimum and maximum; None if there are no values."""
    low, high = (metric.min, metric.max) if metric.count else (None, None)
    return {name: metric.mean, f"{name}_min": low, f"{name}_max": high}


def _merged(parts: Iterable[Mapping[str, Metric]]) -> dict[str, Metric]:
    merged: dict[str, Metric] = {}
    for part in parts:
        for name, metric in part.items():
            merged.setdefault(name, Metric()).merge(metric)
    return merged


def _sum_min_max(values: Tensor) -> Tensor:
    """(3,) float64: sum, minimum and maximum of (n,) `values`."""
    values = values.double()
    if len(values) == 0:
        return values.new_tensor([0.0, torch.inf, -torch.inf])
    return torch.stack([values.sum(), *values.aminmax()])


def _tally(choices: Tensor, num_choices: int) -> Tensor:
    """(C,) float64: number of occurrences of each choice in `choices`."""
    counts = torch.zeros(num_choices, dtype=torch.float64, device=choices.device)
    return counts.index_add_(0, choices, torch.ones_like(choices, dtype=torch.float64))


def _entities_by_frame(obs: ObsBatch) -> Tensor:
    """(E, B) int64: number of entities of each type in each frame."""
    if not obs.features:
        return torch.zeros(0, obs.num_frames, dtype=torch.int64, device=obs.device)
    return torch.stack([ragged.offsets for ragged in obs.features.values()]).diff(dim=1)
