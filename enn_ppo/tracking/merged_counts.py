"""Merging the statistics of rollouts that several processes have played at the same time."""

from __future__ import annotations

from collections.abc import Sequence

from enn_ppo.tracking.counts import Kind, Played
from entity_gym.batch.vec_obs import Metric


def merge_played(parts: Sequence[Played]) -> Played:
    """Statistics of all parts together.

    Args:
        parts: at least one, of the same environment, in the order of their environments. Seconds are averaged, as the parts
            were played at the same time.
    """
    if len(parts) == 1:
        return parts[0]
    metrics: dict[str, Metric] = {}
    elapsed_steps = Metric()
    for part in parts:
        elapsed_steps.merge(part.elapsed_steps)
        for name, metric in part.metrics.items():
            metrics.setdefault(name, Metric()).merge(metric)
    return Played(
        num_frames=sum(part.num_frames for part in parts),
        num_entities=sum(part.num_entities for part in parts),
        episodes=[episode for part in parts for episode in part.episodes],
        elapsed_steps=elapsed_steps,
        counts={name: _together(name, kind, parts) for name, kind in parts[0].kinds.items()},
        kinds=parts[0].kinds,
        metrics=metrics,
        env_seconds=sum(part.env_seconds for part in parts) / len(parts),
        act_seconds=sum(part.act_seconds for part in parts) / len(parts),
    )


def _together(name: str, kind: Kind, parts: Sequence[Played]) -> float | None:
    """One statistic of all parts; None if no part has a value."""
    known = [(value, part) for part in parts if (value := part.counts[name]) is not None]
    values = [value for value, _ in known]
    if not values:
        return None
    if kind.how == "mean":
        sizes = [part.num_frames if kind.of is None else part.counts[kind.of] or 0 for _, part in known]
        return sum(value * size for value, size in zip(values, sizes, strict=True)) / sum(sizes)
    if kind.how == "sum":
        return sum(values)
    return min(values) if kind.how == "min" else max(values)
