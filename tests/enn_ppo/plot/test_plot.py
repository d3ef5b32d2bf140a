"""Comparing runs: what is one curve, what is a band, and what stands where."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from enn_ppo.plot.config import PlotConfig
from enn_ppo.plot.curves import Curve, curve, draw, mean_and_band, t_quantile
from enn_ppo.plot.plot import main, parse
from enn_ppo.plot.runs import Run, group_runs, read_run
from enn_ppo.training.tracking.logger import Row
from tests.enn_ppo.rows import log_all

# three updates, of which the second ended no episode; an evaluation of the second, and one that ended after the last
ROWS: list[Row] = [
    {"step": 100, "seconds": 2.0, "episodic_reward": 0.25},
    {"step": 200, "seconds": 3.0, "episodic_reward": None},
    {"step": 300, "seconds": 7.0, "episodic_reward": 0.75, "eval/step": 150.0, "eval/wins": 0.5},
    {"step": 300, "eval/step": 300.0, "eval/wins": 1.0, "eval/wins_ci95": 0.125},
]


def make_run(path: Path, rows: list[Row] = ROWS, **settings: Any) -> Path:
    path.mkdir(parents=True)
    log_all(path / "metrics.jsonl", rows)
    if settings:
        (path / "config.yaml").write_text(yaml.safe_dump(settings))
    return path


def series(x: list[float], y: list[float]) -> Curve:
    return Curve(np.array(x, float), np.array(y, float))


# --- One curve ---


@pytest.mark.parametrize(("x", "places"), [("step", [100, 300]), ("seconds", [2, 7]), ("updates", [1, 3])])
def test_updates_without_a_value_are_left_out(x: Any, places: list[float], tmp_path: Path) -> None:
    found = curve(read_run(make_run(tmp_path / "a")), x, "episodic_reward")
    assert found.x.tolist() == places
    assert found.y.tolist() == [0.25, 0.75]


@pytest.mark.parametrize(("x", "places"), [("step", [150, 300]), ("seconds", [2.5, 7]), ("updates", [1.5, 3])])
def test_evaluations_stand_at_the_policy_that_was_evaluated(x: Any, places: list[float], tmp_path: Path) -> None:
    again: Row = {
        "step": 300,
        "eval/step": 150.0,
        "eval/wins": 0.75,
    }  # of a policy that was evaluated twice the last counts
    found = curve(read_run(make_run(tmp_path / "a", [*ROWS, again])), x, "eval/wins")
    assert found.x.tolist() == places
    assert found.y.tolist() == [0.75, 1.0]


# --- Bands ---

THREE = [series([1, 2], [0, 1]), series([1, 2], [1, 1]), series([1, 2], [5, 1])]


def test_a_band_spans_what_was_asked_for() -> None:
    # at x = 1: mean 2, squared deviations 4 + 1 + 9 = 14, standard deviation sqrt(14 / 2)
    deviation = 7**0.5
    spread = {"minmax": (0, 5), "std": (2 - deviation, 2 + deviation)}
    spread["ci95"] = (2 - 4.303 * deviation / 3**0.5, 2 + 4.303 * deviation / 3**0.5)
    for band, (low, high) in spread.items():
        found = [each.tolist() for each in mean_and_band(THREE, band)]  # type: ignore[arg-type]
        assert found[:2] == [[1, 2], [2, 1]]
        assert found[2] == pytest.approx([low, 1], abs=1e-3)
        assert found[3] == pytest.approx([high, 1], abs=1e-3)


def test_the_interval_of_the_mean_is_by_students_t() -> None:
    # of a table, with 1, 4 and 30 degrees of freedom
    assert [t_quantile(n) for n in (1, 4, 30)] == pytest.approx([12.7062, 2.7764, 2.0423], abs=1e-4)


def test_seeds_measured_at_other_places_are_compared_where_both_are() -> None:
    found = mean_and_band([series([0, 4], [0, 4]), series([2, 6], [6, 10])], "minmax")
    # the mean is between x and x + 4
    assert [each.tolist() for each in found] == [[2, 4], [4, 6], [2, 4], [6, 8]]


def test_seeds_without_a_common_range_are_an_error() -> None:
    with pytest.raises(ValueError, match="no common range of x: one begins at 3, and one ends at 2 before it"):
        mean_and_band([series([1, 2], [0, 0]), series([3, 4], [0, 0])], "minmax")


# --- Groups ---


XOR = {"env.id": "Xor", "optim.lr": 0.1}


@pytest.mark.parametrize(
    ("settings", "groups"),
    [
        ([XOR, {**XOR, "optim.lr": 0.2}, XOR], {"optim.lr=0.1": [0, 2], "optim.lr=0.2": [1]}),
        ([XOR, XOR], {"Xor": [0, 1]}),
        # worlds are told apart by name, not by their arguments
        ([{"env.id": "Xor"}, {"env.id": "Mines", "env.kwargs.width": 6}], {"env.id=Xor": [0], "env.id=Mines": [1]}),
        ([{"env.id": "Xor"}, {"env.id": "Xor", "a": 1}], {"a=None": [0], "a=1": [1]}),
        # a run of another program is called by its path, and differs in no setting
        ([{**XOR, "a": 1}, {"library": "sb3"}, {**XOR, "a": 2}], {"a=1": [0], "run_1": [1], "a=2": [2]}),
        ([{n: 1 for n in "abcd"}, {n: 2 for n in "abcd"}], {"run_0": [0], "run_1": [1]}),  # too much differs
        ([{}, {}], {"run_0": [0], "run_1": [1]}),
    ],
)
def test_runs_of_the_same_settings_are_one_group_and_labels_say_what_differs(
    settings: list[dict[str, Any]], groups: dict[str, list[int]]
) -> None:
    runs = [Run(Path(f"run_{i}"), [], flat) for i, flat in enumerate(settings)]
    found = {label: [int(run.path.name[-1]) for run in group] for label, group in group_runs(runs).items()}
    assert found == groups


def test_seed_and_folder_say_nothing_about_what_is_learned(tmp_path: Path) -> None:
    paths = [
        make_run(tmp_path / str(seed), seed=seed, run_dir=str(seed), logger={"wandb": "offline"}, env={"id": "Xor"})
        for seed in (1, 2)
    ]
    assert {label: len(runs) for label, runs in group_runs([read_run(path) for path in paths]).items()} == {"Xor": 2}


# --- The picture ---


def drawn(config: PlotConfig) -> Any:
    """The panels of a figure."""
    return draw(group_runs([read_run(Path(path)) for path in config.runs]), config).axes


def test_seeds_are_one_line_with_a_band_and_every_metric_has_a_panel(tmp_path: Path) -> None:
    higher: list[Row] = [{**row, "episodic_reward": 1.0} for row in ROWS[:3]]
    runs = [make_run(tmp_path / "1", seed=1, a=1), make_run(tmp_path / "2", higher, seed=2, a=1)]
    runs.append(make_run(tmp_path / "3", seed=1, a=5))
    config = PlotConfig(runs=tuple(map(str, runs)), x="seconds", y=("episodic_reward", "seconds"))
    reward, seconds = drawn(config)
    assert [line.get_label() for line in reward.lines] == ["a=1 (n = 2)", "a=5"]
    assert reward.lines[1].get_xydata().tolist() == [[2.0, 0.25], [7.0, 0.75]]
    (band,) = reward.collections  # one run has none
    assert (band.get_paths()[0].vertices[:, 1].min(), band.get_paths()[0].vertices[:, 1].max()) == (0.25, 1.0)
    assert reward.lines[0].get_ydata()[[0, -1]].tolist() == [0.625, 0.875]
    assert (reward.get_ylabel(), seconds.get_ylabel(), seconds.get_xlabel()) == (
        "episodic_reward",
        "seconds",
        "seconds of training",
    )


def test_smoothing_forgets_has_no_bias_at_the_start_and_shows_what_was_measured_too(tmp_path: Path) -> None:
    # weights 1, 1/2, 1/4: 4, then (8 + 4/2) / 1.5, then (0 + 8/2 + 4/4) / 1.75
    rows: list[Row] = [{"step": i, "reward": r} for i, r in enumerate([4.0, 8.0, 0.0])]
    (axes,) = drawn(PlotConfig(runs=(str(make_run(tmp_path / "a", rows)),), y=("reward",), smooth=0.5))
    smooth, measured = axes.lines
    assert smooth.get_ydata() == pytest.approx([4.0, 10 / 1.5, 5 / 1.75])
    assert measured.get_ydata().tolist() == [4.0, 8.0, 0.0]


def test_the_interval_of_an_evaluation_is_shown(tmp_path: Path) -> None:
    rows: list[Row] = [{**row, "eval/wins_ci95": 0.25} if "eval/wins" in row else row for row in ROWS]
    config = PlotConfig(runs=(str(make_run(tmp_path / "a", rows)),), y=("eval/wins",))
    (axes,) = drawn(config)
    (interval,) = axes.collections
    corners = {(x, y) for x, y in interval.get_paths()[0].vertices.tolist()}
    assert {(150.0, 0.25), (150.0, 0.75), (300.0, 0.75), (300.0, 1.25)} <= corners


# --- The command ---


@pytest.mark.parametrize(("name", "begin"), [("p.png", b"\x89PNG"), ("p.SVG", b"<?xml"), ("p.pdf", b"%PDF")])
def test_the_command_writes_a_picture_in_the_format_of_its_name(
    name: str, begin: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [str(make_run(tmp_path / name, seed=i, env={"id": "Xor"})) for i, name in enumerate("ab")]
    output = tmp_path / "pictures" / name
    assert main([*runs, "x=updates", "y=episodic_reward,eval/wins", "smooth=0.3", f"output={output}"]) == 0
    assert capsys.readouterr().out == f"wrote {output}\n"
    assert output.read_bytes().startswith(begin) and os.listdir(output.parent) == [name]


def test_a_file_of_metrics_will_do_for_a_run(tmp_path: Path) -> None:
    found = read_run(make_run(tmp_path / "a") / "metrics.jsonl")
    assert found.rows == ROWS


def test_the_folder_of_a_sweep_may_look_like_a_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(Path("lr=0.1"))
    assert parse(["lr=0.1", "smooth=0.5"]) == PlotConfig(runs=("lr=0.1",), smooth=0.5)


def test_help_lists_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    listed = capsys.readouterr().out
    for name in PlotConfig.__dataclass_fields__.keys() - {"runs"}:
        assert f"\n{name} " in listed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give at least one run directory"),
        (["nowhere"], "there is no nowhere"),
        (["sweep"], r"sweep is no run directory: it holds no metrics.jsonl; the runs inside are sweep/0"),
        (["empty"], "empty/metrics.jsonl has no rows yet"),
        (["a", "x=second"], "x is 'second'; allowed: 'step', 'seconds', 'updates'; did you mean 'seconds'"),
        (["a", "band=max"], "band is 'max'; allowed: 'minmax', 'ci95', 'std'"),
        (["a", "smooth=1"], "smooth must be .* got 1"),
        (["a", "smooth=much"], "smooth must be .* got 'much'"),
        (["a", "colour=red"], "colour is not a setting"),
        (["a", "runs=b"], "runs=b: run directories are given by themselves"),
        (["a", "--smooth"], "--smooth is no option: settings look like x=seconds, and --help lists them"),
        (
            ["a", "y=episodic_rewards"],
            "y=episodic_rewards is no metric of a; the nearest of its 7 are episodic_reward, ",
        ),
        (["a", "y="], "y must name metrics"),
        (["a", "y=nothing_yet"], "a has no value of nothing_yet yet"),
        (["a", "output=p.html"], r"output must name a file that ends with .png, .svg or .pdf, got 'p.html'"),
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
    make_run(Path("sweep/0"))
    make_run(Path("empty"), [])
    (make_run(Path("broken")) / "config.yaml").write_text("a: [")
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert re.match(f"error: .*{message}.*\n$", said), said
    assert not list(tmp_path.glob("*.p*"))
