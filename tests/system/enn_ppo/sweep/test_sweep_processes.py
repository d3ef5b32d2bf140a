"""A sweep from end to end: real training in real processes, killed and begun again."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

REPOSITORY = Path(__file__).parents[4]
SPACE = """\
train: [env=Xor, rollout.num_envs=4, rollout.steps=8, optim.batch_size=16, optim.epochs=1, net.d_model=16, net.n_layer=1,
  device=cpu, num_threads=1, checkpoint_interval=4]
space:
  optim.lr: {scale: log, low: 1e-3, high: 1e-2}
"""

pytest.importorskip("optuna", minversion="4")


def command(program: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", f"enn_ppo.{program}", *arguments]


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(REPOSITORY), "OMP_WAIT_POLICY": "PASSIVE"}


def run(program: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(program, *arguments), cwd=cwd, env=environment(), capture_output=True, text=True, timeout=240
    )


def steps(run_dir: Path) -> int:
    file = run_dir / "metrics.jsonl"
    return file.read_text().count("\n") if file.exists() else 0


@pytest.mark.slow
def test_a_sweep_that_is_killed_goes_on_and_its_best_settings_train(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(SPACE)
    arguments = ("sweep=mine.yaml", "total_timesteps=2048", "sweep.trials=2", "sweep.jobs=2", "run_dir=s")
    first = tmp_path / "s/trials/0000/seed_1"
    killed = subprocess.Popen(command("sweep", *arguments), cwd=tmp_path, env=environment())
    deadline = time.monotonic() + 120
    while steps(first) < 8:  # 64 are the whole run
        assert killed.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    killed.kill()
    killed.wait()

    done = run("sweep", *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "going on: 0 trials are done, 2 were left unfinished" in done.stdout
    assert "2 of 2 done" in done.stdout
    assert steps(first) == 64  # every update once: it went on where it was

    best, trained = re.search(r"train with it:\n  python -m enn_ppo\.train (.*)\n", done.stdout), "again"
    assert best is not None
    again = run("train", *best[1].split(), f"run_dir={trained}", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    number = re.search(r"best: trial (\d)", done.stdout)
    assert number is not None
    paths = (tmp_path / f"s/trials/000{number[1]}/seed_1", tmp_path / trained)
    tried, now = (yaml.safe_load((path / "config.yaml").read_text()) for path in paths)
    assert now == {**tried, "run_dir": trained, "resume": None}


@pytest.mark.slow
def test_a_world_that_breaks_fails_its_trials_and_not_the_sweep(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(SPACE.split("space:")[0] + "space:\n  env.kwargs.mistake: [none, feature]\n")
    arguments = ("sweep=mine.yaml", "env=custom", "env.id=tests.enn_ppo.worlds:Broken", "total_timesteps=64")
    done = run("sweep", *arguments, "sweep.trials=4", "sweep.sampler=random", "sweep.jobs=2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if " done; " in line]
    broken = [line for line in lines if "env.kwargs.mistake=feature" in line]
    assert len(lines) == 4 and 0 < len(broken) < 4
    for line in broken:
        assert re.search(r"failed: .*Broken \(environment 0\).*'Lamp'.*nan", line), line
