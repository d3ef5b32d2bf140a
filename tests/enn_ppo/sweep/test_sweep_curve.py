"""The learning curve of a run, row by row."""

from __future__ import annotations

import pytest

from enn_ppo.settings.config import OptimConfig, RolloutConfig, TrainConfig
from enn_ppo.sweep.curve import Curve

CONFIG = TrainConfig(total_timesteps=1000, rollout=RolloutConfig(num_envs=8, steps=8), optim=OptimConfig(batch_size=64))


def curve_of(*rows: dict[str, object], metric: str = "episodic_reward", config: TrainConfig = CONFIG) -> Curve:
    return Curve(metric, config, last_fraction=0.2, rows=rows)


def rewards(*points: tuple[int, float | None]) -> list[dict[str, object]]:
    return [{"step": step, "episodic_reward": reward} for step, reward in points]


def test_the_score_is_the_mean_over_the_last_fraction() -> None:
    # of 1,000 steps the last fifth is what comes after 800: (4 + 6) / 2
    curve = curve_of(*rewards((400, 1.0), (800, 2.0), (900, 4.0), (950, None), (1000, 6.0)))
    assert (curve.progress, curve.score()) == (1.0, 5.0)


def test_the_mean_of_a_run_that_goes_on_is_that_of_its_last_fifth_so_far_or_the_last_value() -> None:
    assert curve_of().mean() is None
    assert curve_of(*rewards((300, 1.0), (400, 3.0), (500, 8.0))).mean() == 5.5  # after 300
    assert curve_of(*rewards((300, 1.0), (400, 3.0), (900, None))).mean() == 3.0  # nothing after 700: the last before


def test_progress_is_by_the_clock_where_that_is_nearer_to_its_end() -> None:
    row = {"step": 5000, "seconds": 4, "episodic_reward": 1}
    assert curve_of(row, config=TrainConfig(max_train_seconds=10.0)).progress == 0.4


def test_an_evaluation_counts_at_the_step_of_the_policy_that_was_evaluated() -> None:
    late = {"step": 900, "eval/episodic_reward": 7, "eval/step": 300}
    last = {"step": 1000, "eval/episodic_reward": 3, "eval/step": 1000}
    assert curve_of(late, last, metric="eval/episodic_reward").mean() == 3.0


@pytest.mark.parametrize(
    "row", [{"step": 1, "episodic_reward": float("nan")}, {"step": 1}, {"step": 1, "episodic_reward": "x"}]
)
def test_rows_without_a_number_are_passed_over(row: dict[str, object]) -> None:
    assert curve_of(row).mean() is None


def test_a_metric_that_is_not_there_is_told_from_one_without_a_value() -> None:
    with pytest.raises(ValueError, match=r"no column episodic_rewrad; .*did you mean 'episodic_reward'"):
        curve_of(*rewards((1, 1.0)), metric="episodic_rewrad").score()
    with pytest.raises(ValueError, match="episodic_reward has no value: no episode ended"):
        curve_of(*rewards((1, None))).score()
