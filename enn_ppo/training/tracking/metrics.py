"""One row of metrics per update. docs/metrics.md explains every name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import Any

from enn_ppo.training.tracking.counts import Played
from enn_ppo.training.tracking.logger import Row
from entity_gym.batch.vec_obs import Metric

__all__ = ["env_info_row", "metrics_row"]


def metrics_row(
    step: int,
    played: Played,
    stats: Mapping[str, float],
    *,
    learning_rate: float,
    ent_coef: float,
    run_seconds: float,
    update_seconds: float,
    extra: Mapping[str, float | int | None],
) -> Row:
    """The row of metrics of an update.

    Args:
        step: environment steps trained so far.
        played: statistics of the update's rollout.
        stats: losses and other statistics of the update.
        learning_rate: of this update.
        ent_coef: of this update.
        run_seconds: training time from the beginning of the run to the end of this update.
        update_seconds: time of this update, including its rollout.
        extra: other metrics, such as `eval/...`, whose names must be new.

    Returns:
        Name -> number; None if there is no value, such as the episodic reward if no episode ended.
    """
    env, act = played.env_seconds, played.act_seconds
    row: Row = {
        "step": step,
        "seconds": run_seconds,
        "frames": played.num_frames,
        "steps_per_second": played.num_frames / update_seconds,
        "entities_per_second": played.num_entities / update_seconds,
        **_spread("episodic_reward", _metric(episode.reward for episode in played.episodes)),
        **_spread("episode_length", _metric(episode.length for episode in played.episodes)),
        "episodes": len(played.episodes),
        "episodes_truncated": sum(episode.truncated for episode in played.episodes),
        **stats,
        "learning_rate": learning_rate,
        "entropy_coefficient": ent_coef,
        "share_env": env / update_seconds,
        "share_act": act / update_seconds,
        "share_update": max(
            0.0, 1 - (env + act) / update_seconds
        ),  # negative where Ray's runners play during the update
        **{f"actors/{name}": number for name, number in played.actors.items()},
        **{name: share.mean for name, share in played.shares.items()},
    }
    for name, metric in played.spreads.items():
        row |= _spread(name, metric)
    row |= _reported(played)
    assert not row.keys() & extra.keys(), sorted(row.keys() & extra.keys())
    return row | dict(extra)


def env_info_row(info: Mapping[str, Sequence[Any]]) -> Row:
    """Metrics of environment parameters: mean, minimum and maximum of numbers; of other values, the share of environments.

    Args:
        info: name -> one value per environment.
    """
    row: Row = {}
    for name, values in info.items():
        if all(isinstance(value, Real) for value in values):
            row |= _spread(f"env_info/{name}", _metric(values))
        else:
            texts = [str(value) for value in values]
            row |= {f"env_info/{name}/{text}": texts.count(text) / len(texts) for text in sorted(set(texts))}
    return row


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
