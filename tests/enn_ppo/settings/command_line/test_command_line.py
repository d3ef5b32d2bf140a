"""The commands from end to end: with the real trainer, and where it matters in a process of their own.

What the command line does before a trainer is involved is in test_cli.py.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from enn_ppo import evaluate, train
from enn_ppo.checkpoints import load_checkpoint
from enn_ppo.settings.command_line.cli import run_eval, run_train

REPOSITORY = Path(__file__).parents[4]
WORLDS = "tests.enn_ppo.worlds"
TINY = (
    "rollout.num_envs=4",
    "rollout.steps=8",
    "net.d_model=16",
    "net.n_layer=1",
    "optim.batch_size=16",
    "optim.epochs=1",
    "device=cpu",
    "num_threads=1",
    "total_timesteps=64",
)
MINES = (
    "env=MineSweeper",
    "env.kwargs.width=4",
    "env.kwargs.height=4",
    "env.kwargs.num_mines=2",
    "env.kwargs.max_steps=10",
)

Mistake = Callable[..., str]


def environment(**changes: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    return kept | {"PYTHONPATH": str(REPOSITORY), "OMP_WAIT_POLICY": "PASSIVE"} | changes


def command(program: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", f"enn_ppo.{program}", *arguments]


def run(program: str, *arguments: str, cwd: Path, **changes: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(program, *arguments),
        cwd=cwd,
        env=environment(**changes),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )


# --- Processes: train, train the same again, evaluate ---


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working directory of all processes here."""
    return tmp_path_factory.mktemp("place")


@pytest.fixture(scope="module")
def trained(place: Path) -> subprocess.CompletedProcess[str]:
    return run("train", *MINES, *TINY, "total_timesteps=320", "seed=1", "run_dir=out/a", cwd=place)


def test_training_says_where_it_is_and_how_far_and_ends_with_0(trained: subprocess.CompletedProcess[str]) -> None:
    assert trained.returncode == 0
    assert all(line.startswith(("compiling ", "compiled ")) for line in trained.stderr.splitlines()), trained.stderr
    lines = trained.stdout.splitlines()
    assert lines[0] == "starting MineSweeper: importing torch"
    assert "training MineSweeper on cpu into out/a" in lines[1:4]
    assert re.match(r"320/320 steps \(100%\)  [\d,]+ steps/s  00:00 left  reward \S+  length \S+  entropy ", lines[-2])
    assert lines[-1] == "done: out/a"


def test_training_leaves_everything_in_the_run_directory_and_nothing_elsewhere(trained: object, place: Path) -> None:
    names = {"config.yaml", "metrics.jsonl", "learning_curve.png", "checkpoints"}
    assert names <= {path.name for path in (place / "out/a").iterdir()} <= names | {"eval.json", "episode.gif"}
    assert {path.name for path in place.iterdir()} == {"out"}
    assert load_checkpoint(place / "out/a/checkpoints/latest").step == 320


# --- Every mistake, with the real trainer in this process ---


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def mistake(here: Path, capsys: pytest.CaptureFixture[str]) -> Mistake:
    """Run a command with a mistake, and return the paragraph that it ends with."""

    def run_it(*arguments: str, program: str = "train") -> str:
        capsys.readouterr()
        code = run_train(train, arguments) if program == "train" else run_eval(evaluate, arguments)
        errors = capsys.readouterr().err
        assert code == 2, errors
        assert "Traceback" not in errors
        paragraphs = [line for line in errors.splitlines() if line.startswith("error: ")]
        assert len(paragraphs) == 1 and errors.splitlines()[-1] == paragraphs[0], errors
        return paragraphs[0]

    return run_it


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["env.kwargs.width=-6"], r"MineSweeper: width=-6; it must be a whole number from 1 to 256"),
        (["env.kwargs.num_mines=40"], r"num_mines=40 and num_robots=2 need 42 cells; .* has 16"),
        (["env=custom", f"env.id={WORLDS}:Copycatt"], r"no class or function 'Copycatt'.*did you mean 'Copycat'\?"),
        (["env=custom", "env.id=no_such_module:World"], r"env\.id is 'no_such_module:World', but there is no module"),
        (["env=custom", f"env.id={WORLDS}:Clock", "env.kwargs.shrt=1"], r"env\.kwargs .*'shrt': 1.* do not fit .*Clock.*short"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_settings_is_one_paragraph_and_leaves_nothing_behind(
    arguments: list[str], message: str, mistake: Mistake, here: Path
) -> None:
    world = () if arguments[0].startswith("env=") else MINES
    assert re.search(message, mistake(*world, *TINY, "run_dir=out", *arguments))
    assert list(here.iterdir()) == []


def test_cuda_where_there_is_none_says_what_is_allowed(mistake: Mistake, here: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is CUDA")
    assert re.search(r"device is 'cuda', but .*; allowed here: 'auto', 'cpu'", mistake(*MINES, *TINY, "device=cuda"))
    assert list(here.iterdir()) == []


def test_an_error_inside_an_environment_names_the_class_the_index_and_the_object(mistake: Mistake) -> None:
    settings = ("env=custom", f"env.id={WORLDS}:Broken", "env.kwargs.mistake=width", "run_dir=out/a")
    message = mistake(*TINY, *settings)
    for part in (r"Broken \(environment 0\)", "'Lamp'", r"\(\d, 2\)", r"expected \(number of entities, 3\)"):
        assert re.search(part, message), message
