"""scripts/bench_distributed.py: what it types, what it makes of a run's metrics, and the world that waits."""

from __future__ import annotations

import importlib
import json
import sys
import time
from argparse import Namespace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from entity_gym.actions.choices import random_actions
from entity_gym.pools.pool import ListEnv

ROOT = Path(__file__).parents[1]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    return importlib.import_module("bench_distributed")


@pytest.fixture
def world(bench: ModuleType) -> Any:
    return importlib.import_module("waiting_world").Elsewhere


def given(bench: ModuleType, *arguments: str) -> Namespace:
    parsed: Namespace = bench.arguments().parse_args(arguments)
    return parsed


# --- What is typed ---


def test_all_sides_have_the_same_settings_but_for_how_they_are_distributed(bench: ModuleType) -> None:
    assert list(bench.SIDES) == ["local", "ray-1", "ray-2", "ray-1-async", "ray-2-async", "torchrun-2"]
    typed = {side: bench.command("cheap", side, given(bench), "out") for side in bench.SIDES}
    settings = {side: {word for word in words if "=" in word} for side, words in typed.items()}
    for each in settings.values():
        assert {word for word in each if not word.startswith(("distributed", "--"))} == settings["local"]
    assert {"env=MultiSnake", "rollout.num_envs=64", "num_threads=1", "total_timesteps=47104"} <= settings["local"]
    assert {"distributed=ray", "distributed.num_env_runners=2"} <= settings["ray-2"]
    assert "distributed.sync=false" in settings["ray-2-async"] - settings["ray-2"]
    assert "torch.distributed.run" in typed["torchrun-2"] and "--nproc_per_node=2" in typed["torchrun-2"]


def test_the_waiting_world_is_the_one_beside_the_script(bench: ModuleType) -> None:
    words = bench.command("waiting", "local", given(bench, "--more", "net.d_model=16"), "out")
    assert {"env=custom", "env.id=waiting_world:Elsewhere"} <= set(words)
    assert words[-1] == "net.d_model=16"


# --- What comes of it ---


def row(**changes: float) -> dict[str, float]:
    """An update of 1,000 frames in 2 seconds, half of them for gathering."""
    return {"frames": 1000, "steps_per_second": 500.0, "share_env": 0.4, "share_act": 0.1} | changes


def on_ray(**changes: float) -> dict[str, float]:
    told = {"rollout_bytes": 4e5, "play_seconds": 0.5, "handover_seconds": 0.01} | changes
    return row() | {f"distributed/{name}": value for name, value in told.items()}


def test_sampling_counts_the_time_in_which_rollouts_are_gathered(bench: ModuleType) -> None:
    assert bench.figures([row()]) == {"steps": 500.0, "sampling": 1000.0}


def test_a_rollout_that_is_handed_over_is_compared_with_the_time_to_play_it(bench: ModuleType) -> None:
    found = bench.figures([on_ray()])
    assert found == {"steps": 500, "sampling": 1000, "rollout_bytes": 4e5, "handover": 0.01, "handover_share": 0.02}


def test_of_several_updates_the_median_counts(bench: ModuleType) -> None:
    rows = [row(steps_per_second=speed) for speed in (100.0, 500.0, 600.0)]
    assert bench.figures(rows)["steps"] == 500.0


def test_sides_are_compared_within_a_world_and_where_both_were_measured(bench: ModuleType) -> None:
    medians = {
        ("cheap", "local"): {"steps": 100.0, "sampling": 1000.0},
        ("waiting", "ray-1"): {"steps": 10.0, "sampling": 20.0},
        ("waiting", "ray-2"): {"steps": 15.0, "sampling": 38.0},
    }
    found = {each.name: each.value for each in bench.ratios(medians)}
    assert found == {
        "waiting ray-2 / ray-1 steps": pytest.approx(1.5),
        "waiting ray-2 / ray-1 sampling": pytest.approx(1.9),
    }


def test_a_run_that_fails_ends_the_benchmark_and_shows_why(bench: ModuleType) -> None:
    with pytest.raises(SystemExit, match=r"(?s)failed:.*d_mode"):
        bench.run("cheap", "local", given(bench, "--more", "net.d_mode=3"))


@pytest.mark.slow
def test_the_sides_that_are_asked_for_are_measured_and_written(
    bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = ["bench", "--worlds", "waiting", "--sides", "local", "--rounds", "1", "--updates", "2", "--num-envs", "4"]
    more = ["--steps", "8", "--json", str(tmp_path / "out.json"), "--more", "optim.batch_size=16"]
    monkeypatch.setattr(sys, "argv", [*typed, *more])
    bench.main()
    written = {each["name"]: each["value"] for each in json.loads((tmp_path / "out.json").read_text())}
    assert written.keys() == {"waiting local steps", "waiting local sampling"}
    assert 0 < written["waiting local steps"] < written["waiting local sampling"] < 1 / 200e-6
    assert "waiting local sampling" in capsys.readouterr().out


# --- The world that waits ---


def test_a_step_waits_at_least_as_long_as_it_is_told_to(world: Any) -> None:
    pool, rng = ListEnv(lambda: world(microseconds=2000), 4), np.random.default_rng(0)
    obs = pool.reset(0)
    started = time.perf_counter()
    for _ in range(5):
        obs = pool.act(random_actions(obs, rng, pool.action_space()))
    assert time.perf_counter() - started >= 5 * 4 * 0.002
    pool.close()
