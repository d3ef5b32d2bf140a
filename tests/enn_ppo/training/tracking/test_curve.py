"""The learning curve of a run, and that drawing it leaves a notebook's matplotlib alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from matplotlib import pyplot

from enn_ppo.training.tracking.curve import _figure, plot_learning_curve
from enn_ppo.training.tracking.logger import Row
from tests.enn_ppo.rows import log_all, size_of_png

ROWS: list[Row] = [{"step": step, "reward": step / 3, "kl": None} for step in (100, 200, 300)]


def test_the_curve_is_drawn_without_touching_matplotlibs_state(tmp_path: Path) -> None:
    backend, settings, open_figures = matplotlib.get_backend(), dict(matplotlib.rcParams), pyplot.get_fignums()
    rows: list[Row] = [{"step": s, "episodic_reward": r, "episode_length": 5} for s, r in ((1, 0.5), (2, None), (3, 1))]
    log_all(tmp_path / "m", rows)
    plot_learning_curve(tmp_path / "m", tmp_path / "curve.png")
    assert size_of_png(tmp_path / "curve.png") == (840, 660)
    assert sorted(os.listdir(tmp_path)) == ["curve.png", "m"]
    assert (matplotlib.get_backend(), dict(matplotlib.rcParams), pyplot.get_fignums()) == (
        backend,
        settings,
        open_figures,
    )


def test_updates_without_a_finished_episode_are_left_out_of_the_curve() -> None:
    rows: list[dict[str, Any]] = [
        {"step": 1, "episodic_reward": None, "episode_length": None},
        {"step": 2, "episodic_reward": 0.5, "episode_length": 7.0},
        {"step": 3},
    ]
    reward, length = _figure(rows).axes
    assert reward.lines[0].get_xydata().tolist() == [[2.0, 0.5]]
    assert length.lines[0].get_xydata().tolist() == [[2.0, 7.0]]


@pytest.mark.parametrize("rows", [[], [{"step": 1, "episodic_reward": None}]])
def test_without_any_episode_the_curve_says_so(tmp_path: Path, rows: list[Row]) -> None:
    log_all(tmp_path / "m", rows)
    plot_learning_curve(tmp_path / "m", tmp_path / "curve.png")
    assert size_of_png(tmp_path / "curve.png") == (840, 660)
    figure = _figure([dict(row) for row in rows])
    assert [axes.texts[0].get_text() for axes in figure.axes] == ["no episode has ended yet"] * 2


def test_a_failing_curve_leaves_the_old_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log_all(tmp_path / "m", ROWS)
    (tmp_path / "curve.png").write_bytes(b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        plot_learning_curve(tmp_path / "m", tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes() == b"old"
    assert sorted(os.listdir(tmp_path)) == ["curve.png", "m"]


def test_evaluations_stand_at_the_step_of_their_policy_with_their_interval() -> None:
    rows: list[dict[str, Any]] = [
        {"step": 100, "seconds": 1.0, "episodic_reward": 0.25, "episode_length": 3.0},
        {
            "step": 300,
            "seconds": 3.0,
            "episodic_reward": None,
            "eval/step": 200.0,
            "eval/episodic_reward": 0.5,
            "eval/episodic_reward_ci95": 0.125,
        },
        {"step": 300, "eval/step": 300.0, "eval/episodic_reward": 0.75},
    ]
    reward, length = _figure(rows).axes
    (_, points, *_), (_, bars) = reward.lines, (None, reward.collections[-1])
    assert reward.lines[0].get_xydata().tolist() == [[100.0, 0.25]]
    assert points.get_xydata().tolist() == [[200.0, 0.5], [300.0, 0.75]]
    assert [segment.tolist() for segment in bars.get_segments()] == [
        [[200.0, 0.375], [200.0, 0.625]],
        [[300.0, 0.75], [300.0, 0.75]],
    ]
    assert [text.get_text() for text in reward.get_legend().get_texts()] == ["training", "evaluation, 95 %"]
    assert length.get_legend() is None


def test_missing_metrics_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="metrics.jsonl cannot be read: No such file"):
        plot_learning_curve(tmp_path / "metrics.jsonl", tmp_path / "curve.png")
