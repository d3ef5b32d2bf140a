"""Scripts do once, as small as can be, what its first lines say."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from enn_ppo import EnvConfig, OptimConfig, RogueNetConfig, RolloutConfig, TrainConfig, train
from entity_gym.registry import list_envs
from tests.processes import ROOT, run

pytestmark = pytest.mark.timeout(1800)  # on a busy machine, compiling alone takes minutes
SMALL = ["--rounds", "1", "--seconds", "0.01"]


def script(name: str, *arguments: object, cwd: Path = ROOT, fails: bool = False) -> str:
    """Run a script, which may fail only if it is expected to, and return what it said."""
    done = run(ROOT / "scripts" / name, *arguments, cwd=cwd, timeout=1200)
    assert bool(done.returncode) == fails, done.stdout + done.stderr
    return done.stdout + done.stderr


def measured(tmp_path: Path, name: str, *arguments: object) -> list[dict[str, Any]]:
    """Run a benchmark, and return its measurements."""
    script("bench.py", name, *arguments, "--json", tmp_path / "out.json")
    found: list[dict[str, Any]] = json.loads((tmp_path / "out.json").read_text())
    # compiled programs multiply matrices without torch, on one core
    assert all(row["value"] > 0 for row in found if row["name"] not in ("second_core", "share_gemm"))
    return found


def test_bench_train_tells_speed_shares_and_fixed_costs(tmp_path: Path) -> None:
    sizes = ["--env", "Xor", "--num-envs", 4, "--steps", 8, "--updates", 2, "--threads", 1, "--batch-size", 16]
    names = {row["name"] for row in measured(tmp_path, "train", *sizes, "--epochs", 1, "--gemm")}
    assert names >= {"steps_per_second", "share_act", "share_gemm", "second_core", "fixed_act", "fixed_step"}


def test_bench_env_tells_steps_and_decisions(tmp_path: Path) -> None:
    (row,) = measured(tmp_path, "env", "--envs", "MultiSnake", "--num-envs", 4, "--threads", 1)
    assert row["name"] == "entity_gym MultiSnake" and "decisions/s" in row["settings"]


def test_bench_policy_compares_compiled_programs_with_modules(tmp_path: Path) -> None:
    sizes = ["--act-frames", "3", "--update-frames", "5", "--threads", "1", *SMALL]
    found = measured(tmp_path, "policy", "--sections", "default", *sizes)
    rows = {(row["name"], row["settings"]["side"]) for row in found if "side" in row["settings"]}
    assert rows == {
        *((f"default_{kind}", side) for kind in ("act", "update") for side in ("compiled", "modules")),
        *((f"default_{kind}_gain", "compiled") for kind in ("act", "update")),
    }


def test_bench_ship_plays_a_policy_in_every_program(tmp_path: Path) -> None:
    found = measured(tmp_path, "ship", "--world", "Xor", "--widths", 32, "--frames", 2, "--rounds", 1)
    missing = {name for name, command in (("JavaScript", "node"), ("C", "cc")) if shutil.which(command) is None}
    missing |= {"ONNX"} - ({"ONNX"} if importlib.util.find_spec("onnxruntime") else set())
    assert {row["name"] for row in found} == {"modules", "compiled", "NumPy", "ONNX", "JavaScript", "C"} - missing


def test_gpu_checks_compare_and_train_on_the_cpu_and_say_that_there_is_no_gpu() -> None:
    said = script("gpu_checks.py", "--device", "cpu", "--timesteps", 512, "--num-envs", 8)
    assert said.count("ok  ") == 3 and "steps/s, median" in said
    if not torch.cuda.is_available():
        assert "there is no GPU" in script("gpu_checks.py", fails=True)


def test_bench_distributed_measures_the_sides_that_are_asked_for(tmp_path: Path) -> None:
    typed = ["--worlds", "waiting", "--sides", "local", "--rounds", 1, "--updates", 2, "--num-envs", 4, "--steps", 8]
    found = measured(tmp_path, "distributed", *typed, "--more", "optim.batch_size=16")
    values = {row["name"]: row["value"] for row in found}
    assert values.keys() == {"waiting local steps", "waiting local sampling"}
    assert values["waiting local sampling"] < 1 / 200e-6, "a step waits for 200 microseconds"


def test_bench_worlds_trains_and_measures_each_method_once(tmp_path: Path) -> None:
    results = tmp_path / "all.jsonl"
    what = ["worlds", "--rows", "Taxi-v4", "--seeds", 1, "--steps-share", 0.01, "--results", results, "--methods"]
    said = script("bench.py", *what, "flat", "script", "random")
    scores = [json.loads(line)["scores"]["return"] for line in results.read_text().splitlines()]
    assert scores[0].keys() == {"greedy", "sampled"} and scores[1]["played"] > 6 > -600 > scores[2]["played"]
    assert "| Taxi-v4 | " in said
    assert "seed 1:" not in script("bench.py", *what, "script", "random"), "they are measured already"
    assert "takes the time of sb3, which is not measured" in script("bench.py", *what, "timed")


def test_bench_worlds_trains_for_the_time_of_the_peer(tmp_path: Path) -> None:
    pytest.importorskip("stable_baselines3")
    results = tmp_path / "all.jsonl"
    what = ["worlds", "--rows", "Acrobot-v1", "--seeds", 1, "--steps-share", 0.03, "--results", results]
    said = script("bench.py", *what, "--methods", "sb3", "timed")
    peer, timed = map(json.loads, results.read_text().splitlines())
    assert (peer["trained"], timed["method"]) == (None, "timed")
    assert timed["trained"] % 2048 == 0 and timed["trained"] > peer["settings"]["steps"] == 3072
    assert f"{timed['trained']:,} steps; " in said


def test_learn_zoo_makes_the_table(tmp_path: Path) -> None:
    said = script("learn_zoo.py", "--envs", "Xor", "--seeds", 1, "--folder", tmp_path)
    assert "| Xor | ≥ 0.99 | " in said


@pytest.mark.learning
@pytest.mark.parametrize(
    "env", ["Count", "Corridor", "Shells", "Pairs", "MineSweeper", "CherryPick", "PickMatchingBalls", "TreasureHunt"]
)
def test_presets_learn_other_sizes_and_counts(env: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variants that take minutes at most; `learn_zoo.py --variants` has all."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    from learn_zoo import VARIANTS

    asked = {world.name: world.score for world in VARIANTS if world.name.startswith(f"{env}, ")}
    assert len(asked) == 2
    script("learn_zoo.py", "--envs", *asked, "--seeds", 1, "--folder", tmp_path)
    scores = {each["world"]: each["score"] for each in json.loads((tmp_path / "results.json").read_text())}
    assert not {name: score for name, score in scores.items() if score < asked[name]}


@pytest.mark.parametrize("world", ["Knapsack", "Route"])
def test_optima_are_better_than_simple_rules(world: str) -> None:
    said = script("optima.py", world, "--instances", 20)
    best, *rules = (float(line.split()[0]) for line in said.splitlines())
    assert rules and best > max(rules)


@pytest.mark.parametrize(("cities", "instances", "most"), [(20, 40, 1.0005), (50, 15, 1.003)])
def test_the_shortest_tours_found_are_hardly_longer_than_the_shortest(
    cities: int, instances: int, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`pip install scipy`. Cycles that do not visit all cities are forbidden until there is none (Dantzig et al. 1954)."""
    optimize, graphs = (pytest.importorskip(f"scipy.{name}") for name in ("optimize", "sparse.csgraph"))
    monkeypatch.syspath_prepend(ROOT / "scripts")
    from optima import tours

    i, j = np.triu_indices(cities, 1)
    ends = (np.arange(cities)[:, None] == i) | (np.arange(cities)[:, None] == j)

    def shortest(distance: NDArray[np.float64]) -> float:
        """Solve which pairs of cities the tour links: a linear program, and a binary one once it has no short cycles."""
        constraints, binary = [optimize.LinearConstraint(ends, 2, 2)], False
        while True:
            how = {"integrality": np.full(len(i), binary), "bounds": optimize.Bounds(0, 1)}
            solved = optimize.milp(distance[i, j], constraints=constraints, **how)
            is_linked = np.zeros((cities, cities))
            is_linked[i, j] = solved.x > 1e-6
            count, cycle_of = graphs.connected_components(is_linked, directed=False)
            if count == 1 and (binary or abs(solved.x - solved.x.round()).max() < 1e-6):
                return float(solved.fun)
            binary = binary or count == 1
            for cycle in range(count if count > 1 else 0):
                inside = (cycle_of[i] == cycle) & (cycle_of[j] == cycle)
                most = (cycle_of == cycle).sum() - 1
                constraints.append(optimize.LinearConstraint(inside[None].astype(float), 0, most))

    places = np.random.default_rng(0).random((instances, cities, 2))
    distances = [np.linalg.norm(each[:, None] - each, axis=-1) for each in places]
    found, exact = ([function(each) for each in distances] for function in (lambda each: tours(each)[0], shortest))
    assert all(np.array(found) > np.array(exact) - 1e-6) and sum(found) < most * sum(exact)


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    """The run directory of a policy that has hardly learned."""
    folder = tmp_path / "run"
    sizes = {
        "rollout": RolloutConfig(num_envs=2, steps=8),
        "net": RogueNetConfig(d_model=16, n_layer=1),
        "optim": OptimConfig(batch_size=16),
    }
    train(TrainConfig(env=EnvConfig(id="Xor"), total_timesteps=16, run_dir=str(folder), num_threads=1, **sizes))
    return folder


def test_pictures_film_a_policy(tmp_path: Path, policy: Path) -> None:
    script("pictures.py", "films", "Xor", "--checkpoint", policy, "--folder", tmp_path, cwd=tmp_path)
    with Image.open(tmp_path / "Xor.gif") as film:
        assert getattr(film, "n_frames", 1) > 1
    assert "belongs to one world" in script("pictures.py", "films", "--checkpoint", policy, fails=True)


@pytest.mark.skipif(
    not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), reason="needs Chromium"
)
def test_pictures_photograph_a_page(tmp_path: Path) -> None:
    script("pictures.py", "pages", "Minefield", "--seconds", 5, "--folder", tmp_path, cwd=tmp_path)
    with Image.open(tmp_path / "Minefield.png") as picture:
        assert picture.width == 1200 and picture.height < 1600


@pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")
def test_pictures_capture_the_dashboard(tmp_path: Path) -> None:
    script("pictures.py", "dashboard", "--output", tmp_path / "dashboard.svg")
    assert "MineSweeper" in (tmp_path / "dashboard.svg").read_text()


def test_pictures_draw_the_curves_of_a_page(tmp_path: Path) -> None:
    said = script("pictures.py", "curves", "value_loss", "--folder", tmp_path, cwd=tmp_path)
    assert said == f"{tmp_path / 'value_loss.png'}\n"
    with Image.open(tmp_path / "value_loss.png") as picture:
        assert picture.mode == "P" and picture.width == 960


def test_every_world_has_a_picture_that_moves_and_is_small() -> None:
    for world in list_envs():
        file = ROOT / "docs" / "images" / "worlds" / f"{world}.gif"
        assert file.stat().st_size < 70_000
        with Image.open(file) as picture:
            assert getattr(picture, "n_frames", 1) > 1
            assert max(picture.size) >= 240
