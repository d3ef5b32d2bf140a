"""Jobs of --multirun side by side. Those that run one after another are in test_cli.py."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from enn_ppo.settings.command_line.cli import run_eval, run_train
from enn_ppo.settings.config import TrainConfig
from enn_ppo.training.errors import Interrupted

REPOSITORY = Path(__file__).parents[4]


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
        "import sys, time\nfrom pathlib import Path\nfrom enn_ppo.settings.command_line.cli import run_train\n"
        "from enn_ppo.training.errors import Interrupted\n"
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
    assert "jobs=... is for sweeps of training" in capsys.readouterr().err
