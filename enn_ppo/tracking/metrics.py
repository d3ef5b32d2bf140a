"""One row of metrics per update. docs/metrics.md explains every name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from types import MappingProxyType
from typing import Any

from enn_ppo.tracking.counts import Played
from entity_gym.batch.vec_obs import Metric
from entity_gym.pools.episodes import Episode

Row = dict[str, float | int | None]
_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Timing:
    """Seconds of one update, and of the whole run up to its end."""

    run: float
    total: float


def metrics_row(
    step: int,
    played: Played,
    stats: Mapping[str, float],
    *,
    learning_rate: float,
    ent_coef: float,
    timing: Timing,
    extra: Mapping[str, float | int | None] = _NOTHING,
) -> Row:
    """All metrics of an update.

    Args:
        step: environment steps trained so far.
        played: statistics of its rollout.
        stats: losses and other statistics of the update.
        learning_rate: of this update.
        ent_coef: of this update.
        timing: of this update.
        extra: other metrics, such as `eval/...`; their names differ from those of the row.

    Returns:
        Name -> number; None if there is no value, such as the episodic reward if no episode ended.
    """
    env, act = played.env_seconds, played.act_seconds
    row: Row = {
        "step": step,
        "seconds": timing.run,
        "frames": played.num_frames,
        "steps_per_second": played.num_frames / timing.total,
        "entities_per_second": played.num_entities / timing.total,
        **_episodes(played.episodes),
        **stats,
        "learning_rate": learning_rate,
        "entropy_coefficient": ent_coef,
        "share_env": env / timing.total,
        "share_act": act / timing.total,
        "share_update": max(0.0, 1 - (env + act) / timing.total),  # runners of Ray play during the update
        **played.counts,
        **_spread("elapsed_steps", played.elapsed_steps),
        **_reported(played),
    }
    assert not row.keys() & extra.keys(), sorted(row.keys() & extra.keys())
    return row | dict(extra)


def env_info_row(info: Mapping[str, Sequence[Any]]) -> Row:
    """Metrics of parameters of the environments: name -> one value for each environment.

    Mean, minimum and maximum of numbers; for other values the share of environments that have each.
    """
    row: Row = {}
    for name, values in info.items():
        if all(isinstance(value, Real) for value in values):
            row |= _spread(f"env_info/{name}", _metric(values))
        else:
            texts = [str(value) for value in values]
            row |= {f"env_info/{name}/{text}": texts.count(text) / len(texts) for text in sorted(set(texts))}
    return row


def _episodes(episodes: Sequence[Episode]) -> Row:
    return {
        **_spread("episodic_reward", _metric(episode.reward for episode in episodes)),
        **_spread("episode_length", _metric(episode.length for episode in episodes)),
        "episodes": len(episodes),
        "episodes_truncated": sum(episode.truncated for episode in episodes),
    }


def _reported(played: Played) -> Row:
    """Metrics that environments report at the end of episodes, and with their steps."""
    infos: dict[str, Metric] = {}
    for episode in played.episodes:
        for name, value in episode.info.items():
            if isinstance(value, Real):
                infos.setdefault(f"episode/{name}", Metric()).push(float(value))
    reported = infos | {f"env/{name}": metric for name, metric in played.metrics.items()}
    row: Row = {}
    for name, metric in reported.items():
        row |= _spread(name, metric) | {f"{name}_count": metric.count}
    # last, so that a metric that an environment itself calls `x_max` is not taken for the largest x
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
