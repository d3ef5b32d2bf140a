"""One row of metrics per update. docs/metrics.md explains every name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from enn_ppo.rollout import Rollout
from enn_ppo.tracking.counts import count
from enn_ppo.update import UpdateStats
from entity_gym.episodes import Episode
from entity_gym.spaces import ActionSpace
from entity_gym.vec_obs import Metric

Row = dict[str, float | int | None]
_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Timing:
    """Seconds of one update, and of the whole run up to its end."""

    run: float
    total: float
    env: float
    act: float


def metrics_row(
    step: int,
    rollout: Rollout,
    stats: UpdateStats,
    *,
    learning_rate: float,
    ent_coef: float,
    timing: Timing,
    action_space: Mapping[str, ActionSpace] = _NOTHING,
    extra: Mapping[str, float | int | None] = _NOTHING,
) -> Row:
    """Everything that is known about an update. Synchronises with the rollout's device once.

    Args:
        step: environment steps trained so far.
        rollout: what was learned from.
        stats: how the update went.
        learning_rate: of this update.
        ent_coef: of this update.
        timing: of this update.
        action_space: the actions whose choices are counted.
        extra: metrics of others, such as `eval/...`; none may have a name of the row.

    Returns:
        Flat name -> number; None where there is nothing to tell, such as the episodic reward when no episode ended.
    """
    row: Row = {
        "step": step,
        "seconds": timing.run,
        "frames": rollout.rewards.numel(),
        "steps_per_second": rollout.rewards.numel() / timing.total,
        "entities_per_second": rollout.obs.num_tokens / timing.total,
        **_episodes(rollout.episodes),
        **stats._asdict(),
        "learning_rate": learning_rate,
        "entropy_coefficient": ent_coef,
        "share_env": timing.env / timing.total,
        "share_act": timing.act / timing.total,
        "share_update": 1 - (timing.env + timing.act) / timing.total,
        **count(rollout, action_space),
        **_spread("elapsed_steps", _metric_of(rollout.elapsed_steps)),
        **_reported(rollout),
    }
    assert not row.keys() & extra.keys(), sorted(row.keys() & extra.keys())
    return row | dict(extra)


def env_info_row(info: Mapping[str, Sequence[Any]]) -> Row:
    """What the environments' drawn parameters are: name -> one value for each environment.

    Numbers have a mean, minimum and maximum; of anything else, each value has its share of the environments.
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


def _reported(rollout: Rollout) -> Row:
    """What the environments said at the end of episodes, and with their steps."""
    infos: dict[str, Metric] = {}
    for episode in rollout.episodes:
        for name, value in episode.info.items():
            if isinstance(value, Real):
                infos.setdefault(f"episode/{name}", Metric()).push(float(value))
    reported = infos | {f"env/{name}": metric for name, metric in rollout.metrics.items()}
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


def _metric_of(values: NDArray[np.int64]) -> Metric:
    return Metric(values.size, float(values.sum()), float(values.min()), float(values.max()))


def _spread(name: str, metric: Metric) -> Row:
    """Mean, minimum and maximum; None of nothing."""
    low, high = (metric.min, metric.max) if metric.count else (None, None)
    return {name: metric.mean, f"{name}_min": low, f"{name}_max": high}
