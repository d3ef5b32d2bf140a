"""Commands in processes of their own: training, evaluation, jobs, Ctrl-C, help."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from pathlib import Path

import imageio.v3 as imageio
import pytest

from enn_ppo import train
from enn_ppo.checkpoints import load_checkpoint
from enn_ppo.settings.command_line.cli import run_train
from tests import processes
from tests.enn_ppo.rows import rows_without_times
from tests.enn_ppo.settings.command_line.test_command_line import MINES, TINY, WORLDS

RUN = (*MINES, *TINY, "total_timesteps=320", "seed=1")


def start(program: str, *arguments: str, cwd: Path) -> subprocess.Popen[str]:
    return processes.start("-m", f"enn_ppo.{program}", *arguments, cwd=cwd)


def run(program: str, *arguments: str, cwd: Path, **changes: str) -> subprocess.CompletedProcess[str]:
    return processes.run("-m", f"enn_ppo.{program}", *arguments, cwd=cwd, **changes)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working directory of all processes here."""
    return tmp_path_factory.mktemp("place")


@pytest.fixture(scope="module")
def trained(place: Path) -> subprocess.CompletedProcess[str]:
    return run("train", *RUN, "run_dir=out/a", cwd=place)


@pytest.fixture(scope="module")
def evaluated(place: Path, trained: object) -> subprocess.CompletedProcess[str]:
    files = ("output=out/a/eval.json", "render=out/a/episode.gif")
    settings = ("episodes=50", *files, "seed=7", "greedy=false", "device=cpu")
    return run("eval", "checkpoint=out/a/checkpoints/latest", *settings, cwd=place)


def test_training_says_where_it_is_and_how_far_and_leaves_everything_in_the_run_directory(
    trained: subprocess.CompletedProcess[str], place: Path
) -> None:
    assert trained.returncode == 0
    assert all(line.startswith(("compiling ", "compiled ")) for line in trained.stderr.splitlines()), trained.stderr
    lines = trained.stdout.splitlines()
    assert lines[0] == "starting MineSweeper: importing torch"
    assert "training MineSweeper on cpu into out/a" in lines[1:4]
    assert re.match(
        r"320/320 steps \(100%\)  0:00:00 left  steps_per_second \S+  episodic_reward \S+  episode_length ", lines[-2]
    )
    assert lines[-1] == "done: out/a"
    names = {"config.yaml", "metrics.jsonl", "learning_curve.png", "checkpoints"}
    assert names <= {path.name for path in (place / "out/a").iterdir()} <= names | {"eval.json", "episode.gif"}
    assert {path.name for path in place.iterdir()} == {"out"}
    assert load_checkpoint(place / "out/a/checkpoints/latest").step == 320


def test_the_same_command_in_another_process_and_folder_gives_the_same_metrics(
    trained: object, place: Path, tmp_path: Path
) -> None:
    assert run_train(train, [*RUN, f"run_dir={tmp_path / 'b'}"]) == 0
    assert rows_without_times(place / "out/a") == rows_without_times(tmp_path / "b")


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
    assert frames.shape[1:] == (320 + 64, 320, 3)  # the board, and a row for the cannon


def test_multirun_is_hydras_and_a_job_that_fails_is_told_and_ends_it_with_2_after_the_others(tmp_path: Path) -> None:
    (tmp_path / "mine/hydra/launcher").mkdir(parents=True)
    (tmp_path / "mine/hydra/launcher/mine.yaml").write_text("defaults: [basic]\n")
    settings = (*TINY, "env=custom", f"env.id={WORLDS}:Broken", "run_dir=all/a b", "hydra/launcher=mine")
    process = run("train", "-m", "-cd", "mine", *settings, "env.kwargs.mistake=feature,none", cwd=tmp_path)
    assert process.returncode == 2 and "Traceback" not in process.stderr
    last = process.stderr.splitlines()[-1]
    assert re.search(r"^error: .*Broken \(environment 0\).*'Lamp'.*nan.*\(job .*env\.kwargs\.mistake=feature", last), (
        last
    )
    assert "Launching 2 jobs locally" in process.stdout
    assert [row["step"] for row in rows_without_times(tmp_path / "all/a b/1")] == [32, 64]
    assert (tmp_path / "all/a b/multirun.yaml").exists() and not (tmp_path / "all/a b/0/metrics.jsonl").exists()


def start_slow_run(place: Path, run_dir: str) -> subprocess.Popen[str]:
    """A run that has just begun its second update, and is in no hurry."""
    slow = ("env=custom", f"env.id={WORLDS}:Slow", *TINY, "total_timesteps=3200", f"run_dir={run_dir}")
    process = start("train", *slow, cwd=place)
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
    saved = f"out/a/checkpoints/step_{step:012d}.safetensors"
    assert errors == f"interrupted after {step:,} steps; saved {saved}; go on with resume=out/a\n"
    assert rows_without_times(tmp_path / "out/a")[-1]["step"] == step

    monkeypatch.chdir(tmp_path)
    assert run_train(train, ["resume=out/a", f"total_timesteps={step + 32}"]) == 0
    assert rows_without_times(tmp_path / "out/a")[-1]["step"] == step + 32


def test_a_page_of_help_whose_reader_ends_early_ends_without_a_word(place: Path) -> None:
    with start("train", "--help", cwd=place) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert (process.wait(60), process.stderr.read()) == (141, "")
