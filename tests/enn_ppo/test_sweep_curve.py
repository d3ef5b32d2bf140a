"""The learning curve of a run, followed while it is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from enn_ppo.config import OptimConfig, RolloutConfig, TrainConfig
from enn_ppo.tuning.curve import Curve

CONFIG = TrainConfig(total_timesteps=1000, rollout=RolloutConfig(num_envs=8, steps=8), optim=OptimConfig(batch_size=64))


def lines(*rows: tuple[int, float | None]) -> str:
    return "".join(json.dumps({"step": step, "episodic_reward": reward}) + "\n" for step, reward in rows)


def curve_of(path: Path, text: str, *, metric: str = "episodic_reward", config: TrainConfig = CONFIG) -> Curve:
    path.write_text(text)
    curve = Curve(path, metric, config, last_fraction=0.2)
    curve.follow()
    return curve


def test_the_score_is_the_mean_over_the_last_fraction(tmp_path: Path) -> None:
    # of 1,000 steps the last fifth is what comes after 800: (4 + 6) / 2
    curve = curve_of(tmp_path / "m", lines((400, 1.0), (800, 2.0), (900, 4.0), (950, None), (1000, 6.0)))
    assert curve.progress == 1.0
    assert curve.mean() == 5.0


def test_a_point_in_the_middle_knows_only_what_came_before(tmp_path: Path) -> None:
    curve = curve_of(tmp_path / "m", lines((300, 1.0), (400, 3.0), (500, 8.0), (1000, 100.0)))
    assert curve.mean(0.5) == 5.5  # after 300 and up to 500
    assert curve.mean(0.9) == 8.0  # nothing after 700: the last before
    assert curve.mean(0.1) is None


def test_a_file_that_grows_is_read_on_and_half_a_line_waits(tmp_path: Path) -> None:
    path = tmp_path / "m"
    curve = Curve(path, "episodic_reward", CONFIG, last_fraction=1.0)
    curve.follow()  # not there yet
    whole = lines((500, 1.0), (1000, 3.0))
    for end in (10, len(whole) - 5, len(whole)):
        path.write_text(whole[:end])
        curve.follow()
        assert curve.mean() == {10: None, len(whole) - 5: 1.0, len(whole): 2.0}[end]


def test_a_resumed_run_that_dropped_rows_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "m"
    curve = curve_of(path, lines((500, 1.0), (900, 9.0)))
    path.write_text(lines((500, 1.0)))
    curve.follow()
    assert (curve.progress, curve.mean()) == (0.5, 1.0)


def test_progress_is_by_the_clock_where_that_is_nearer_to_its_end(tmp_path: Path) -> None:
    config = TrainConfig(max_train_seconds=10.0)
    curve = curve_of(tmp_path / "m", '{"step": 5000, "seconds": 4, "episodic_reward": 1}\n', config=config)
    assert curve.progress == 0.4


def test_an_evaluation_counts_at_the_step_of_the_policy_that_was_evaluated(tmp_path: Path) -> None:
    text = '{"step": 900, "eval/episodic_reward": 7, "eval/step": 300}\n'
    curve = curve_of(tmp_path / "m", text, metric="eval/episodic_reward")
    assert (curve.mean(0.3), curve.mean(0.2)) == (7.0, None)


@pytest.mark.parametrize("text", ["no json\n", "[1]\n", '{"step": 1, "episodic_reward": NaN}\n', '{"step": 1}\n'])
def test_rows_without_a_number_are_passed_over(text: str, tmp_path: Path) -> None:
    assert curve_of(tmp_path / "m", text).mean() is None
