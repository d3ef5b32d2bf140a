"""One row of metrics per update."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Real

from enn_ppo.rollout import Rollout
from enn_ppo.update import UpdateStats

Row = dict[str, float | int | None]


@dataclass(frozen=True)
class Timing:
    """Seconds of one update, and of the whole run up to its end."""

    run: float
    total: float
    env: float
    act: float


def metrics_row(
    step: int, rollout: Rollout, stats: UpdateStats, *, learning_rate: float, ent_coef: float, timing: Timing
) -> Row:
    """Everything that is known about an update.

    Args:
        step: environment steps trained so far.
        rollout: what was learned from.
        stats: how the update went.
        learning_rate: of this update.
        ent_coef: of this update.
        timing: of this update.

    Returns:
        Flat name -> number; None where there is nothing to tell, such as the episodic reward when no episode ended.
    """
    episodes = rollout.episodes
    row: Row = {
        "step": step,
        "seconds": timing.run,
        "steps_per_second": rollout.rewards.numel() / timing.total,
        "entities_per_second": rollout.obs.num_tokens / timing.total,
        "episodic_reward": mean(episode.reward for episode in episodes),
        "episode_length": mean(episode.length for episode in episodes),
        "episodes": len(episodes),
        "policy_loss": stats.policy_loss,
        "value_loss": stats.value_loss,
        "entropy": stats.entropy,
        "approx_kl": stats.approx_kl,
        "clip_fraction": stats.clip_fraction,
        "explained_variance": stats.explained_variance,
        "grad_norm": stats.grad_norm,
        "learning_rate": learning_rate,
        "entropy_coefficient": ent_coef,
        "share_env": timing.env / timing.total,
        "share_act": timing.act / timing.total,
        "share_update": 1 - (timing.env + timing.act) / timing.total,
    }
    infos: dict[str, list[float]] = {}
    for episode in episodes:
        for name, value in episode.info.items():
            if isinstance(value, Real):
                infos.setdefault(name, []).append(float(value))
    row |= {f"episode/{name}": mean(values) for name, values in infos.items()}
    for name, metric in rollout.metrics.items():
        row |= {f"env/{name}": metric.mean, f"env/{name}_min": metric.min, f"env/{name}_max": metric.max}
    return row


def mean(values: Iterable[float]) -> float | None:
    """The mean, or None of nothing."""
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else None
