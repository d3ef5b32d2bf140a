"""The distribution `enn-runtime`: a wheel of `rogue_net.numpy`, in an environment that has NumPy and nothing else."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from importlib.metadata import distribution, version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rogue_net.numpy
from enn_ppo import load_policy, preset, train
from enn_ppo.checkpoints import save_policy
from entity_gym.bridges.remote.messages import actions_to_json
from entity_gym.registry import bind
from tests.processes import ROOT, output_of
from tests.runtime_policies import observation_to_json, with_texts
from tests.system.test_package import project_files

FILES = ROOT / "rogue_net" / "numpy"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of what git knows, as from a fresh clone."""
    folder = tmp_path_factory.mktemp("runtime")
    for file in project_files():
        if {ROOT / "runtime", FILES} & {*file.parents}:
            target = folder / "source" / file.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read_bytes())
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [*build, "-w", str(folder), str(folder / "source" / "runtime")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (found,) = folder.glob("enn_runtime-*.whl")
    return found


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of an environment with NumPy, which is copied, and the wheel."""
    folder = tmp_path_factory.mktemp("empty")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    of_folder = {"base": str(folder), "platbase": str(folder)}
    site = Path(sysconfig.get_path("purelib", "venv", of_folder))
    found = distribution("numpy")
    for name in {Path(str(each)).parts[0] for each in found.files or ()} - {".."}:
        shutil.copytree(
            str(found.locate_file(name)), site / name, ignore=shutil.ignore_patterns("tests", "__pycache__")
        )
    executable = Path(sysconfig.get_path("scripts", "venv", of_folder)) / Path(sys.executable).name
    install = [sys.executable, "-m", "pip", "--python", str(executable), "install", "--quiet", "--no-index", str(wheel)]
    done = subprocess.run(install, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return executable


def test_the_wheel_holds_the_files_as_they_are_and_needs_numpy_alone(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        shipped = {name: archive.read(name) for name in archive.namelist()}
    info = f"enn_runtime-{rogue_net.numpy.__version__}.dist-info"
    files = {f"enn_runtime/{file.name}": file.read_bytes() for file in FILES.iterdir() if file.is_file()}
    assert {name: data for name, data in shipped.items() if ".dist-info/" not in name} == files
    assert f"\nVersion: {version('enn-ppo')}\n".encode() in shipped[f"{info}/METADATA"]
    needs = [line for line in shipped[f"{info}/METADATA"].decode().splitlines() if line.startswith("Requires-Dist")]
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert needs == [f"Requires-Dist: {need}" for need in settings["project"]["dependencies"] if "numpy" in need]
    assert shipped[f"{info}/licenses/LICENSE"] == (ROOT / "LICENSE").read_bytes()


def test_importing_it_loads_numpy_and_no_other_part_of_this_project() -> None:
    program = "import sys, rogue_net.numpy; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    assert not {"entity_gym", "numba", "safetensors", "torch", "yaml"} & {*output_of(program).split()}


PLAY = """
import importlib.util, json, sys
from enn_runtime import Policy

assert not [name for name in ("torch", "rogue_net", "entity_gym", "numba") if importlib.util.find_spec(name)]
policy = Policy.load(sys.argv[1])
difference, changed, episodes, score = 0.0, 0, 0, 0.0
for line in open(sys.argv[2]):
    told = json.loads(line)
    decision = policy.act(told["observation"], greedy=True)
    numbers = [decision.value, *(float(x) for name in told["logProbs"] for x in decision.log_probs[name])]
    expected = [told["value"], *(x for each in told["logProbs"].values() for x in each)]
    difference = max(difference, *(abs(one - other) for one, other in zip(numbers, expected, strict=True)))
    for name, rows in decision.probabilities.items():
        best = [sorted(row)[-2:] for row in rows]
        is_clear = all(first < (1 - 1e-4) * second for first, second in best)
        changed += is_clear and decision.actions[name] != told["actions"][name]
    episodes += told["done"]
    score += told["reward"]
print(json.dumps([difference, changed, episodes, score]))
"""


def test_it_plays_a_hundred_recorded_episodes_of_minesweeper(python: Path, tmp_path: Path) -> None:
    config = preset("MineSweeper", total_timesteps=100_000, run_dir=str(tmp_path / "run"), seed=1)
    train(config)
    file, recorded = save_policy(tmp_path / "run", tmp_path / "policy.safetensors"), tmp_path / "episodes.jsonl"
    trained = load_policy(tmp_path / "run", seed=2)
    world: Any = bind("MineSweeper", {}).as_environment()
    lines, scores = [], []
    for seed in range(100):
        world.reseed(seed, 0)
        shown, score = world.reset(), 0.0
        while not shown.done:
            named = with_texts(shown)
            (obs, frame), (_, named_frame) = trained.read(shown), trained.read(named)
            shown = world.act(trained.decide([obs], greedy=False).actions(0, frame))
            acted = trained.decide([obs], greedy=True)  # greedy play alone walks in circles after so little training
            log_probs = {
                name: each.values.tolist() for name, each in acted.result.log_probs.items() if name in named.actions
            }
            line = {
                "observation": observation_to_json(named),
                "actions": actions_to_json(acted.actions(0, named_frame)),
                "logProbs": log_probs,
                "value": float(acted.values[0]),
                "reward": shown.reward,
                "done": shown.done,
            }
            lines.append(json.dumps(line, default=float))
            score += shown.reward
        scores.append(score)
    recorded.write_text("\n".join(lines), encoding="utf-8")
    done = subprocess.run(
        [str(python), "-I", "-c", PLAY, str(file), str(recorded)], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    difference, changed, episodes, score = json.loads(done.stdout)
    assert difference <= 1e-5 and changed == 0
    assert episodes == 100 and score == pytest.approx(np.sum(scores))
    assert np.mean(scores) > 0.8  # it has learned something
