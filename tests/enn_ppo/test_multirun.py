"""Sweeps of Hydra: jobs side by side, and sweepers that choose the next job by the results of those before.

Sweeps by the basic sweeper, one job after another, are in test_cli.py.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from hydra.core.plugins import Plugins

from enn_ppo.command_line.cli import run_eval, run_train
from enn_ppo.command_line.plugin_sweep import sweep_of
from enn_ppo.config import Interrupted, TrainConfig

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def empty_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def pretend(config: TrainConfig) -> None:
    """A run whose reward is its seed, but for some seeds that end in other ways."""
    print(f"training with {config.seed}")
    if config.seed == 13:
        raise ValueError("the wall is red")
    if config.seed == 14:
        raise Interrupted("saved to out/a")
    directory = Path(str(config.run_dir))
    directory.mkdir(parents=True, exist_ok=True)
    reward = None if config.seed == 15 else config.seed + config.optim.lr
    row = {"step": 10, "seconds": 2.5, "episodic_reward": reward}
    (directory / "metrics.jsonl").write_text(json.dumps(row) + "\n")


def run_dirs(output: str) -> list[str]:
    """The last column of the table."""
    return re.findall(r"\bs/\d+$", output, re.MULTILINE)


# --- jobs=n ---


def test_jobs_side_by_side_have_logs_of_their_own_and_one_table_in_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_train(pretend, ["-m", "jobs=2", "env=Xor", "seed=1,3,2", "run_dir=s"]) == 0
    output = capsys.readouterr()
    assert run_dirs(output.out) == ["s/0", "s/1", "s/2"]
    assert re.search(r"^\* +seed=3 +3\.", output.out, re.MULTILINE)
    assert [(tmp_path / f"s/{job}.log").read_text() for job in range(3)] == [f"training with {n}\n" for n in (1, 3, 2)]
    assert "job 3 of 3: env=Xor seed=2 run_dir=s (it prints into s/2.log)" in output.err


def test_after_a_job_that_fails_no_other_starts_and_those_that_run_are_in_the_table(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_train(pretend, ["-m", "jobs=2", "env=Xor", "seed=13,1,2,3,4,5", "run_dir=s"]) == 2
    output = capsys.readouterr()
    assert {"s/1"} <= set(run_dirs(output.out)) <= {"s/1", "s/2"}  # the second may have ended first
    assert re.search(r"^error: the wall is red \(job 1 of the sweep: env=Xor seed=13 .*s/0\.log\)$", output.err, re.M)


def test_a_mistake_in_the_last_job_is_found_before_the_first_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_train(pretend, ["-m", "jobs=2", "optim.lr=1e-3,-1", "run_dir=s"]) == 2
    assert "(job 2 of the sweep: optim.lr=-1" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_ends_the_jobs_that_run_in_order_and_starts_no_other(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, time\nfrom pathlib import Path\nfrom enn_ppo.command_line.cli import run_train\n"
        "from enn_ppo.config import Interrupted\n"
        "def work(config):\n"
        "    try:\n        Path(f'ready{config.seed}').touch(); time.sleep(60)\n"
        "    except KeyboardInterrupt:\n        raise Interrupted(f'saved {config.seed}')\n"
        "sys.exit(run_train(work, ['-m', 'jobs=2', 'seed=1,2,3', 'run_dir=s']))\n"
    )
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    process = subprocess.Popen([sys.executable, script], stderr=subprocess.PIPE, text=True, env=environment)
    deadline = time.monotonic() + 60
    while not (Path("ready1").exists() and Path("ready2").exists()):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)  # to this process alone, as a scheduler does
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "job 1: saved 1\n" in errors and "job 2: saved 2\n" in errors
    assert not Path("ready3").exists()


def test_jobs_are_for_sweeps_of_training(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_eval(lambda config: None, ["-m", "jobs=2", "checkpoint=a,b"]) == 2
    assert "are for sweeps of training" in capsys.readouterr().err


# --- Sweepers that learn ---


@pytest.fixture
def climbing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `hydra/sweeper=climbing` known."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "plugins"))
    Plugins.instance().register(importlib.import_module("hydra_plugins.climbing").Climbing)


def test_a_sweeper_gets_the_reward_of_each_job_and_the_table_shows_all(
    climbing: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_train(pretend, ["-m", "hydra/sweeper=climbing", "env=Xor", "seed=1", "run_dir=s"]) == 0
    output = capsys.readouterr().out
    # 0.02 beats 0.005, then 0.04 beats 0.01
    assert re.findall(r"optim\.lr=(\S+)", output) == ["0.02", "0.005", "0.04", "0.01"]
    assert re.search(r"^\* .*optim\.lr=0\.04 ", output, re.MULTILINE)
    assert run_dirs(output) == ["s/0", "s/1", "s/2", "s/3"]


@pytest.mark.parametrize(
    ("seed", "code", "message"),
    [
        (13, 2, r"^error: the wall is red \(job 1 of the sweep: .*seed=13.*\)$"),
        (14, 130, r"^saved to out/a$"),
        (15, 2, r"^error: no episode ended in the last updates.*s/0 has no episodic_reward.*\(job 1 of the sweep"),
    ],
)
def test_a_job_that_fails_inside_hydra_ends_the_sweep_with_its_own_message(
    seed: int, code: int, message: str, climbing: None, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["-m", "hydra/sweeper=climbing", "env=Xor", f"seed={seed}", "run_dir=s"]
    assert run_train(pretend, arguments) == code
    output = capsys.readouterr()
    assert re.search(message, output.err, re.MULTILINE)
    assert "Traceback" not in output.err and run_dirs(output.out) == []


def test_the_optuna_sweeper_maximises_and_its_jobs_run_in_processes() -> None:
    sweep = sweep_of(["-m", "hydra/sweeper=optuna", "jobs=3", "hydra.sweeper.n_jobs=6"])
    assert sweep.arguments == [
        "-m",
        "hydra/sweeper=optuna",
        "hydra.sweeper.n_jobs=6",
        "hydra.sweeper.direction=maximize",
        "hydra/launcher=joblib",
        "hydra.launcher.n_jobs=3",
    ]
    minimal = sweep_of(["-m", "hydra/sweeper=optuna", "hydra.sweeper.direction=minimize"])
    assert minimal.arguments == ["-m", "hydra/sweeper=optuna", "hydra.sweeper.direction=minimize"]


@pytest.mark.parametrize("jobs", [[], ["jobs=2"]])
def test_the_optuna_sweeper_finds_the_best_job_one_by_one_and_side_by_side(
    jobs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper", reason="needs an old optuna: a second environment")
    if jobs:
        pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    space = ["optim.lr=interval(0.001,0.01)", "hydra.sweeper.n_trials=4", "hydra.sweeper.sampler.seed=1"]
    assert run_train(pretend, ["-m", "hydra/sweeper=optuna", *jobs, *space, "env=Xor", "run_dir=s"]) == 0
    output = capsys.readouterr().out
    assert run_dirs(output) == ["s/0", "s/1", "s/2", "s/3"]
    rates = [float(rate) for rate in re.findall(r"optim\.lr=(\S+)", output)]
    results = yaml.safe_load((tmp_path / "s/optimization_results.yaml").read_text())
    assert results["best_params"]["optim.lr"] == pytest.approx(max(rates))
    assert results["best_value"] == pytest.approx(1 + max(rates))
