"""Comparing runs and the learning curve of one: what is one curve, what is a band, and what stands where."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
import yaml
from matplotlib import pyplot

from enn_ppo.plot import PlotConfig, main, parse
from enn_ppo.training.tracking import curves
from enn_ppo.training.tracking.curves import Run, curve, draw, group_runs, mean_and_band, plot_learning_curve, read_run
from enn_ppo.training.tracking.logger import Row
from tests.enn_ppo.rows import log_all, size_of_png

# three updates, of which the second ended no episode; an evaluation of the second, and one that ended after the last
ROWS: list[Row] = [
    {"step": 100, "seconds": 2.0, "episodic_reward": 0.25},
    {"step": 200, "seconds": 3.0, "episodic_reward": None},
    {"step": 300, "seconds": 7.0, "episodic_reward": 0.75, "eval/step": 150.0, "eval/episodic_reward": 0.5},
    {"step": 300, "eval/step": 300.0, "eval/episodic_reward": 1.0, "eval/episodic_reward_ci95": 0.125},
]


def make_run(path: Path, rows: list[Row] = ROWS, **settings: Any) -> Path:
    path.mkdir(parents=True)
    log_all(path / "metrics.jsonl", rows)
    if settings:
        (path / "config.yaml").write_text(yaml.safe_dump(settings))
    return path / "metrics.jsonl"


@pytest.mark.parametrize(
    ("y", "points"),
    [
        ("episodic_reward", [[100, 300], [0.25, 0.75]]),  # updates without a value are left out
        # evaluations stand at the policy that was evaluated; of one that was evaluated twice, the last counts
        ("eval/episodic_reward", [[150, 300], [0.75, 1.0]]),
    ],
)
def test_a_curve_has_the_values_of_a_metric_where_they_were_measured(
    y: str, points: list[list[float]], tmp_path: Path
) -> None:
    again: Row = {"step": 300, "eval/step": 150.0, "eval/episodic_reward": 0.75}
    assert curve(read_run(make_run(tmp_path / "a", [*ROWS, again])), y).tolist() == points


def test_seeds_measured_at_other_places_are_compared_where_both_are() -> None:
    found = mean_and_band([np.array([[0.0, 4], [0, 4]]), np.array([[2.0, 6], [6, 10]])])
    # the mean is between x and x + 4
    assert found.tolist() == [[2, 4], [4, 6], [2, 4], [6, 8]]


XOR = {"env.id": "Xor", "optim.lr": 0.1}


@pytest.mark.parametrize(
    ("settings", "groups"),
    [
        ([XOR, {**XOR, "optim.lr": 0.2}, XOR], {"optim.lr=0.1": [0, 2], "optim.lr=0.2": [1]}),
        ([XOR, XOR], {"Xor": [0, 1]}),
        # a run of another program is called by its path, and differs in no setting
        ([{**XOR, "a": 1}, {"library": "sb3"}, {**XOR, "a": 2}], {"a=1": [0], "run_1": [1], "a=2": [2]}),
        ([{**XOR, **dict.fromkeys("abcd", i)} for i in range(2)], {"run_0": [0], "run_1": [1]}),  # too much differs
        ([{}, {}], {"run_0": [0], "run_1": [1]}),
    ],
)
def test_runs_of_the_same_settings_are_one_group_and_labels_say_what_differs(
    settings: list[dict[str, Any]], groups: dict[str, list[int]]
) -> None:
    runs = [Run(Path(f"run_{i}"), [], flat) for i, flat in enumerate(settings)]
    found = {label: [int(run.path.name[-1]) for run in group] for label, group in group_runs(runs).items()}
    assert found == groups


def test_seeds_are_one_line_with_a_band_and_every_metric_has_a_panel(tmp_path: Path) -> None:
    higher: list[Row] = [{**row, "episodic_reward": 1.0} for row in ROWS[:3]]
    world: dict[str, Any] = {"env": {"id": "Xor"}}
    runs = [make_run(tmp_path / "1", seed=1, a=1, **world), make_run(tmp_path / "2", higher, seed=2, a=1, **world)]
    runs.append(make_run(tmp_path / "3", seed=1, a=5, logger={"wandb": "offline"}, run_dir="3", **world))
    reward, seconds = draw([read_run(run) for run in runs], ("episodic_reward", "seconds")).axes
    assert [line.get_label() for line in reward.lines] == ["a=1 (n = 2)", "a=5"]
    assert reward.lines[1].get_xydata().tolist() == [[100.0, 0.25], [300.0, 0.75]]
    band = reward.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == (0.25, 1.0)
    assert reward.lines[0].get_ydata()[[0, -1]].tolist() == [0.625, 0.875]
    labels = [reward.get_ylabel(), seconds.get_ylabel(), seconds.get_xlabel()]
    assert labels == ["episodic_reward", "seconds", "environment steps"]
    late = make_run(tmp_path / "4", [{"step": 9e9, "episodic_reward": 1}], seed=4, a=5, **world)
    with pytest.raises(ValueError, match="the seeds have no common range of steps: .*/3, .*/4"):
        draw([read_run(runs[2]), read_run(late)], ("episodic_reward",))


# --- The learning curve of a run ---


def test_the_learning_curve_shows_training_and_evaluations_with_their_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures: list[Any] = []
    monkeypatch.setattr(curves, "save_figure", lambda figure, path: figures.append(figure))
    plot_learning_curve(make_run(tmp_path / "a"), tmp_path / "curve.png")
    plot_learning_curve(make_run(tmp_path / "new", []), tmp_path / "curve.png")
    assert len(figures) == 1  # none without a value
    training, evaluation = figures[0].axes
    assert training.lines[0].get_xydata().tolist() == [[100.0, 0.25], [300.0, 0.75]]
    assert evaluation.lines[0].get_xydata().tolist() == [[150.0, 0.5], [300.0, 1.0]]
    corners = {(x, y) for x, y in evaluation.collections[-1].get_paths()[0].vertices.tolist()}
    assert {(300.0, 0.875), (300.0, 1.125)} <= corners
    assert [axes.get_ylabel() for axes in figures[0].axes] == ["episodic_reward", "eval/episodic_reward"]


def test_drawing_leaves_matplotlibs_state_and_a_failure_leaves_the_old_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = (matplotlib.get_backend(), dict(matplotlib.rcParams), pyplot.get_fignums())
    run, picture = make_run(tmp_path / "a"), tmp_path / "a" / "curve.png"
    plot_learning_curve(run, picture)
    assert size_of_png(picture) == (960, 840)
    assert state == (matplotlib.get_backend(), dict(matplotlib.rcParams), pyplot.get_fignums())

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        plot_learning_curve(run, picture)
    assert size_of_png(picture) == (960, 840)
    assert sorted(os.listdir(tmp_path / "a")) == ["curve.png", "metrics.jsonl"]


# --- The command ---


@pytest.mark.parametrize(("name", "begin"), [("p.png", b"\x89PNG"), ("p.SVG", b"<?xml"), ("p.pdf", b"%PDF")])
def test_the_command_writes_a_picture_in_the_format_of_its_name(
    name: str, begin: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(Path("lr=0.1"))  # the folder of a sweep may look like a setting
    file = str(make_run(Path("b")))
    arguments = ["lr=0.1", file, "y=episodic_reward,eval/episodic_reward"]
    assert main([*arguments, f"output=pictures/{name}"]) == 0
    assert capsys.readouterr().out == f"wrote pictures/{name}\n"
    assert Path("pictures", name).read_bytes().startswith(begin) and os.listdir("pictures") == [name]
    assert parse(["lr=0.1", "output=a.svg"]) == PlotConfig(runs=("lr=0.1",), output="a.svg")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give at least one run directory"),
        (["nowhere"], "nowhere cannot be read: No such file"),
        (["text.txt"], "text.txt has no value of episodic_reward yet"),
        (["empty"], "empty has no value of episodic_reward yet"),
        (["a", "colour=red"], "colour is not a setting"),
        (["a", "--speed"], "--speed cannot be read: No such file"),
        (["a", "y=episodic_rewards"], "episodic_rewards is no metric of a; the nearest of its 7 are episodic_reward, "),
        (["a", "y=nothing_yet"], "a has no value of nothing_yet yet"),
        (["a", "output=p.html"], "Format 'html' is not supported .*png"),
        (["a", "output=a/metrics.jsonl/p.png"], "output a/metrics.jsonl/p.png cannot be written"),
        (["a", "broken"], "broken/config.yaml cannot be read"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_is_allowed(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(Path("a"), [{**row, "nothing_yet": None} for row in ROWS])
    make_run(Path("empty"), [])
    Path("text.txt").write_text("a line of text\n")
    make_run(Path("broken")).with_name("config.yaml").write_text("a: [")
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert re.match(f"error: .*{message}.*\n$", said), said
    assert not list(tmp_path.glob("*.p*"))
