"""The commands from end to end: with the real trainer, and where it matters in a process of their own.

What the command line does before a trainer is involved is in test_cli.py.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import imageio.v3 as imageio
import pytest
import torch

from enn_ppo import evaluate, train
from enn_ppo.checkpoints import load_checkpoint
from enn_ppo.eval.video import CAPTION_HEIGHT
from enn_ppo.settings.command_line.cli import run_eval, run_train

REPOSITORY = Path(__file__).parents[2]
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


def rows_of(run_dir: Path) -> list[dict[str, Any]]:
    """Without what differs from run to run."""
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    timings = ("seconds", "share_")
    return [
        {k: v for k, v in row.items() if not k.startswith(timings) and not k.endswith("_per_second")} for row in rows
    ]


# --- Processes: train, train the same again, evaluate ---


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working directory of all processes here."""
    return tmp_path_factory.mktemp("place")


@pytest.fixture(scope="module")
def trained(place: Path) -> subprocess.CompletedProcess[str]:
    return run("train", *MINES, *TINY, "total_timesteps=320", "seed=1", "run_dir=out/a", cwd=place)


@pytest.fixture(scope="module")
def evaluated(place: Path, trained: object) -> subprocess.CompletedProcess[str]:
    settings = (
        "episodes=50",
        "output=out/a/eval.json",
        "render=out/a/episode.gif",
        "seed=7",
        "greedy=false",
        "device=cpu",
    )
    return run("eval", "checkpoint=out/a/checkpoints/latest", *settings, cwd=place)


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


def test_the_same_command_into_another_folder_gives_the_same_metrics(trained: object, place: Path) -> None:
    again = run("train", *MINES, *TINY, "total_timesteps=320", "seed=1", "run_dir=out/b", cwd=place)
    assert again.returncode == 0, again.stderr
    assert rows_of(place / "out/a") == rows_of(place / "out/b")


def test_evaluating_prints_and_writes_estimates_and_a_picture(
    evaluated: subprocess.CompletedProcess[str], place: Path
) -> None:
    assert (evaluated.returncode, evaluated.stderr) == (0, "")
    report = json.loads((place / "out/a/eval.json").read_text())
    assert report["episodic_reward"].keys() == {"mean", "ci95", "n"}
    assert {report[name]["n"] for name in ("episodic_reward", "episode_length", "mines_left", "robots_left")} == {50}
    printed = (
        f"episodic_reward: {report['episodic_reward']['mean']:.4f} ± {report['episodic_reward']['ci95']:.4f}  (n = 50)"
    )
    assert printed in evaluated.stdout
    frames = imageio.imread(place / "out/a/episode.gif", index=None)
    height, width = 3 * (4 * 32 + 17), 3 * (4 * 32 + 1)  # enlarged, over a caption, with even numbers of pixels
    assert frames.shape[1:] == (height + CAPTION_HEIGHT + 1, width + 1, 3)


# --- Processes: mistakes ---


def assert_one_paragraph(process: subprocess.CompletedProcess[str], message: str) -> None:
    assert process.returncode == 2, process.stderr
    assert "Traceback" not in process.stderr
    last = process.stderr.splitlines()[-1]
    assert last.startswith("error: ") and re.search(message, last), last


def test_an_error_inside_an_environment_ends_a_sweep_with_2_after_the_table_of_what_was_done(tmp_path: Path) -> None:
    settings = (*TINY, "env=custom", f"env.id={WORLDS}:Broken", "run_dir=sweep")
    process = run("train", "--multirun", *settings, "env.kwargs.mistake=none,feature", cwd=tmp_path)
    assert_one_paragraph(process, r"Broken \(environment 0\).*'Lamp'.*nan")
    header, *runs, _ = process.stdout.splitlines()[-3:]
    assert header.split() == ["run", "episodic_reward", "steps", "seconds", "run_dir"]
    assert [run.split()[-1] for run in runs] == ["sweep/0"]


# --- Processes: Ctrl-C, kill, wandb ---


def start_slow_run(place: Path, run_dir: str) -> subprocess.Popen[str]:
    """A run that has just begun its second update, and is in no hurry."""
    settings = ("env=custom", f"env.id={WORLDS}:Slow", *TINY, "total_timesteps=3200", f"run_dir={run_dir}")
    process = subprocess.Popen(
        command("train", *settings),
        cwd=place,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    metrics, deadline = place / run_dir / "metrics.jsonl", time.monotonic() + 60
    while not metrics.exists() or metrics.stat().st_size == 0:
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise AssertionError(process.communicate())
        time.sleep(0.01)
    return process


def test_ctrl_c_finishes_the_update_saves_says_where_and_exits_with_130_and_the_run_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = start_slow_run(tmp_path, "out/a")
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    step = load_checkpoint(tmp_path / "out/a").step
    assert process.returncode == 130
    assert "Ctrl-C: finishing this update and writing a checkpoint; press again to abort at once" in output
    saved = f"out/a/checkpoints/step_{step:012d}"
    assert errors == f"interrupted after {step:,} steps; saved {saved}; go on with resume=out/a\n"
    assert rows_of(tmp_path / "out/a")[-1]["step"] == step

    monkeypatch.chdir(tmp_path)
    assert run_train(train, ["resume=out/a", f"total_timesteps={step + 32}"]) == 0
    assert rows_of(tmp_path / "out/a")[-1]["step"] == step + 32


def test_a_second_ctrl_c_aborts_at_once_and_leaves_a_checkpoint_that_loads(tmp_path: Path) -> None:
    process = start_slow_run(tmp_path, "out/a")
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert time.monotonic() - started < 10
    assert process.returncode == 130
    assert errors == "interrupted\n"
    # of the start, or of the first Ctrl-C, if its update was done before the second
    assert load_checkpoint(tmp_path / "out/a/checkpoints/latest").step in (0, 32)


def test_wandb_offline_needs_no_account_and_writes_into_the_run_directory(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    (tmp_path / "home").mkdir()
    process = run(
        "train",
        *MINES,
        *TINY,
        "total_timesteps=64",
        "run_dir=out/w",
        "logger.wandb=offline",
        cwd=tmp_path,
        HOME=str(tmp_path / "home"),
        WANDB_ERROR_REPORTING="false",
    )
    assert process.returncode == 0, process.stderr
    assert len(list((tmp_path / "out/w").glob("wandb/offline-run-*/*.wandb"))) == 1
    assert len(rows_of(tmp_path / "out/w")) == 2
    assert {path.name for path in tmp_path.iterdir()} == {"home", "out"}


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


@pytest.fixture
def run_here(here: Path, trained: object, place: Path) -> Path:
    """A copy of the finished run of MineSweeper as out/a."""
    shutil.copytree(place / "out/a", here / "out/a", symlinks=True)
    return here / "out/a"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["env=Sweeper"], r"env=Sweeper is not a choice; allowed: .*'MineSweeper', .*'custom', .*; did you mean 'MineSweeper'\?"),
        (["optim.lrate=1"], r"optim\.lrate is not a setting; allowed: .*did you mean 'optim\.lr'\?"),
        (["optim.batch_size=33"], r"optim\.batch_size must be at most the 32 frames of a rollout .*got 33"),
        (["rollout.num_envs=-1"], r"rollout\.num_envs must be an integer of at least 1, got -1"),
        (["rollout.steps=0"], r"rollout\.steps must be an integer of at least 1, got 0"),
        (["optim.epochs=0"], r"optim\.epochs must be an integer of at least 1, got 0"),
        (["net.d_model=17"], r"net\.d_model must be divisible by net\.n_head=2, got 17; the nearest .*: 16"),
        (["env.kwargs.width=-6"], r"MineSweeper: width=-6; it must be a whole number from 1 to 256"),
        (["env.kwargs.num_mines=40"], r"num_mines=40 and num_robots=2 need 42 cells; .* has 16"),
        (["env=custom", f"env.id={WORLDS}:Copycatt"], r"no class or function 'Copycatt'.*did you mean 'Copycat'\?"),
        (["env=custom", "env.id=no_such_module:World"], r"env\.id is 'no_such_module:World', but there is no module"),
        (["env=custom", f"env.id={WORLDS}:Clock", "env.kwargs.shrt=1"], r"env\.kwargs .*'shrt': 1.* do not fit .*Clock.*short"),
        (["resume=out/nowhere"], r"no checkpoint out/nowhere: there is no out"),
        (["logger.wandb=ofline"], r"logger\.wandb is 'ofline'; allowed: 'disabled', 'offline', 'online'; .*'offline'\?"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("multirun", [False, True])
def test_a_mistake_in_the_settings_is_one_paragraph_and_leaves_nothing_behind(
    multirun: bool, arguments: list[str], message: str, mistake: Mistake, here: Path
) -> None:
    world = () if arguments[0].startswith("env=") else MINES
    sweep = ("--multirun",) if multirun else ()
    assert re.search(message, mistake(*sweep, *world, *TINY, "run_dir=out", *arguments))
    assert list(here.iterdir()) == []


def test_cuda_where_there_is_none_says_what_is_allowed(mistake: Mistake, here: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is CUDA")
    assert re.search(r"device is 'cuda', but .*; allowed here: 'auto', 'cpu'", mistake(*MINES, *TINY, "device=cuda"))
    assert list(here.iterdir()) == []


def test_a_run_directory_that_cannot_be_written_is_named(mistake: Mistake, here: Path) -> None:
    (here / "file").write_text("")
    message = mistake(*MINES, *TINY, "run_dir=file/a")
    assert re.search(r"run_dir file/a cannot be written: Not a directory", message)


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        ("feature", ["'Lamp'", "nan"]),
        ("width", ["'Lamp'", r"\(\d, 2\)", r"expected \(number of entities, 3\)"]),
        ("mask shape", ["'Switch'", r"mask has shape \(\d, 2\); expected \(\d, 3\)"]),
        ("unknown type", ["'Lump'", "did you mean 'Lamp'"]),
        ("duplicate id", ["'a'"]),
        ("all masked", ["'Switch'", "actor 0 is masked"]),
        ("own error", ["the fuse is blown"]),
    ],
)
@pytest.mark.parametrize("multirun", [False, True])
def test_an_error_inside_an_environment_names_the_class_the_index_and_the_object(
    multirun: bool, kind: str, parts: list[str], mistake: Mistake
) -> None:
    sweep = ("--multirun",) if multirun else ()
    settings = ("env=custom", f"env.id={WORLDS}:Broken", f"env.kwargs.mistake={kind}", "run_dir=out/a")
    message = mistake(*sweep, *TINY, *settings)
    for part in (r"Broken \(environment 0\)", *parts):
        assert re.search(part, message), message


def test_debug_shows_the_traceback_of_an_error_inside_an_environment(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ("env=custom", f"env.id={WORLDS}:Broken", "env.kwargs.mistake=own error", "run_dir=out/a", "debug=true")
    assert run_train(train, [*TINY, *settings]) == 2
    errors = capsys.readouterr().err
    assert "Traceback" in errors and "worlds.py" in errors
    assert errors.splitlines()[-1].startswith("error: the fuse is blown")


# --- Existing runs and checkpoints ---


def test_an_existing_run_is_refused_and_overwritten_if_asked(mistake: Mistake, run_here: Path) -> None:
    again = (*MINES, *TINY, "total_timesteps=32", "run_dir=out/a")
    before = (run_here / "metrics.jsonl").read_bytes()
    message = mistake(*again)
    assert re.search(r"run_dir out/a already holds a run .*resume=out/a.*overwrite=true", message)
    assert (run_here / "metrics.jsonl").read_bytes() == before
    assert run_train(train, [*again, "overwrite=true"]) == 0
    assert [row["step"] for row in rows_of(run_here)] == [32]


def test_a_run_resumes_with_its_own_settings_from_the_command_line(run_here: Path) -> None:
    assert run_train(train, ["resume=out/a", "total_timesteps=384"]) == 0
    assert [row["step"] for row in rows_of(run_here)][-3:] == [320, 352, 384]
    assert load_checkpoint(run_here).config["net"]["d_model"] == 16


def commands(checkpoint: str) -> list[tuple[str, list[str]]]:
    return [("train", [f"resume={checkpoint}"]), ("eval", [f"checkpoint={checkpoint}"])]


def test_a_missing_checkpoint_says_what_there_is(mistake: Mistake, run_here: Path) -> None:
    for program, arguments in commands("out/a/checkpoints/step_000000000321"):
        message = mistake(*arguments, program=program)
        assert re.search(r"there is no step_0{9}321 in .*checkpoints; the newest .* is step_0{9}320", message)


@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_a_half_written_checkpoint_names_the_file_and_the_newest_whole_one(
    damage: str, mistake: Mistake, run_here: Path
) -> None:
    file = run_here / "checkpoints/step_000000000320/trainer.pt"
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:1000])
    for program, arguments in commands("out/a"):
        message = mistake(*arguments, program=program)
        assert re.search(r"checkpoint out/a/checkpoints/step_0{9}320 is (half-written|damaged).*trainer\.pt", message)
        assert re.search(r"newest complete checkpoint beside it is .*step_0{12}", message)


def test_a_checkpoint_of_another_environment_is_refused(mistake: Mistake, run_here: Path) -> None:
    message = mistake("resume=out/a", "run_dir=out/b", "env=custom", f"env.id={WORLDS}:Copycat")
    assert re.search(
        r"checkpoint out/a/.*step_0{9}320 belongs to another environment than .*Copycat: .*'Mine'", message
    )
    assert not Path("out/b").exists()


# --- Sweeps ---


def test_a_sweep_trains_every_combination_and_ends_with_a_table(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = (*MINES, *TINY, "total_timesteps=64", "run_dir=s")
    assert run_train(train, ["--multirun", *settings, "optim.lr=1e-3,3e-3"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    table = lines[lines.index(["run", "episodic_reward", "steps", "seconds", "run_dir"]) :]
    rows = [[cell for cell in line if cell != "*"] for line in table[1:3]]
    assert [(row[0], row[2], row[4]) for row in rows] == [
        ("optim.lr=0.001", "64", "s/0"),
        ("optim.lr=0.003", "64", "s/1"),
    ]
    for job, row in enumerate(rows):
        rewards = [r["episodic_reward"] for r in rows_of(here / "s" / str(job)) if r["episodic_reward"] is not None]
        assert float(row[1]) == pytest.approx(sum(rewards) / len(rewards), abs=0.0006)
