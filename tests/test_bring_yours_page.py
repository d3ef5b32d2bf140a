"""docs/bring_yours.md: its commands run one after the other, and what it shows of files and output is what they are."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "bring_yours.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


def commands() -> list[list[str]]:
    """Modules and their arguments."""
    typed = [shlex.split(line) for line in "".join(blocks("sh")).replace("\\\n", " ").splitlines()]
    assert all(words[:2] == ["python", "-m"] for words in typed)
    return [words[2:] for words in typed]


def run(folder: Path, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a module in a folder that has the examples, as a checkout does."""
    environment = os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"{arguments}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    pytest.importorskip("gymnasium")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    return tmp_path


def test_the_page_shows_the_view_and_the_observation_space_of_the_example() -> None:
    (view,), (space,) = blocks("yaml"), blocks("python")
    assert view == (ROOT / "examples" / "harvest.yaml").read_text("utf-8")
    assert all(line in (ROOT / "examples" / "harvest.py").read_text("utf-8") for line in space.splitlines())


def test_the_check_prints_what_the_page_shows(checkout: Path) -> None:
    (check,) = [arguments for arguments in commands() if arguments[0] == "entity_gym.check"]
    (shown,) = blocks("text")
    assert run(checkout, check).stdout == shown


@pytest.mark.slow
def test_the_commands_of_the_page_run_one_after_the_other(checkout: Path) -> None:
    pytest.importorskip("pandas")
    small = ["total_timesteps=2048", "rollout.num_envs=8", "optim.batch_size=64", "device=cpu"]
    peer = importlib.util.find_spec("stable_baselines3") is not None
    runs = checkout / "out" / "harvest"
    ran = set()
    for module, *arguments in commands():
        ran.add(module)
        if module == "enn_ppo.train":
            arguments += small
        elif module == "examples.harvest_sb3":
            if not peer:
                continue
            arguments = ["2048" if argument == "200000" else argument for argument in arguments]
        elif module == "enn_ppo.plot":
            assert arguments == ["out/harvest/*"]
            arguments = sorted(str(path.relative_to(checkout)) for path in runs.iterdir())
        elif module == "enn_ppo.eval":
            arguments.append("episodes=4")
        elif module == "enn_ppo.watch":
            arguments += ["episodes=1", "open=false"]
        done = run(checkout, [module, *arguments])
        if module == "enn_ppo.eval":  # only the view has room for more entities
            assert ("ignored: features" in done.stdout + done.stderr) == ("flat" in arguments[0])
    assert ran == {
        "entity_gym.check",
        "enn_ppo.train",
        "examples.harvest_sb3",
        "enn_ppo.plot",
        "enn_ppo.eval",
        "enn_ppo.watch",
    }
    names = {"view-1", "flat-1"} | ({"sb3-1"} if peer else set())
    assert {path.name for path in runs.iterdir()} == names
    page = (checkout / "plot.html").read_text("utf-8")
    assert all(f"out/harvest/{name}" in page for name in names)
    assert (checkout / "plot.png").exists()


@pytest.mark.slow
@pytest.mark.learning
def test_a_quarter_of_the_steps_shows_what_the_view_is_worth(checkout: Path) -> None:
    pytest.importorskip("pandas")
    from enn_ppo.training.tracking.logger import read_metrics

    rewards = {}
    for arguments in commands():
        if arguments[0] == "enn_ppo.train":
            run(checkout, [*arguments, "total_timesteps=65536", "device=cpu"])
            (folder,) = [argument.split("=")[1] for argument in arguments if argument.startswith("run_dir=")]
            last = read_metrics(checkout / folder / "metrics.jsonl")[-5:]
            rewards[folder] = sum(row["episodic_reward"] for row in last) / len(last)
    assert rewards["out/harvest/view-1"] > 0.8
    assert rewards["out/harvest/flat-1"] < 0.5
