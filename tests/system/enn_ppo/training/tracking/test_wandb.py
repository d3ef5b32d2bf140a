"""The real wandb, offline."""

from __future__ import annotations

from pathlib import Path

import pytest

from enn_ppo.training.tracking.logger import read_metrics
from tests.enn_ppo.training.tracking.test_logger import ROWS
from tests.processes import run

PROGRAM = """
import os, signal, sys
from pathlib import Path
from tests.enn_ppo.training.tracking.test_logger import ROWS, log_and_close, make

def service():
    tasks = Path("/proc/self/task").iterdir()
    pids = [int(pid) for task in tasks for pid in (task / "children").read_text().split()]
    return next(pid for pid in pids if "wandb-core" in Path(f"/proc/{pid}/comm").read_text())

def start(name, resume_step=None):
    run_dir = Path(name)
    run_dir.mkdir(exist_ok=True)
    return make(run_dir, resume_step, lambda text: print(f"{name}: {text}"), wandb="offline")

log_and_close(start("resumed"), ROWS[:2])
log_and_close(start("resumed", resume_step=200), ROWS[2:])

logger = start("killed")
logger.log(ROWS[0])
os.kill(service(), signal.SIGKILL)
log_and_close(logger, ROWS[1:])
"""


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The folder of two runs, and what was printed. One process runs them all, for it is slow to start."""
    pytest.importorskip("wandb")
    if not Path("/proc/self/task").exists():
        pytest.skip("needs Linux")
    folder = tmp_path_factory.mktemp("offline")
    done = run("-c", PROGRAM, cwd=folder, HOME=str(folder), WANDB_ERROR_REPORTING="false")
    assert done.returncode == 0, done.stderr
    return folder, done.stdout.splitlines()


def test_offline_a_resumed_run_continues_under_the_same_id_in_the_run_directory(
    offline: tuple[Path, list[str]],
) -> None:
    run_dir, printed = offline[0] / "resumed", offline[1]
    run_id = (run_dir / "wandb" / "run_id").read_text().strip()
    files = [file.name for file in run_dir.glob("wandb/offline-run-*/*.wandb")]
    assert set(files) == {f"run-{run_id}.wandb"}
    assert read_metrics(run_dir / "metrics.jsonl") == ROWS
    assert not any(line.startswith("resumed") for line in printed)


def test_a_killed_process_of_wandb_costs_one_warning(offline: tuple[Path, list[str]]) -> None:
    folder, printed = offline
    (warning,) = [line for line in printed if line.startswith("killed: ")]
    assert warning.startswith("killed: wandb failed and is disabled; metrics.jsonl continues: ")
    assert read_metrics(folder / "killed" / "metrics.jsonl") == ROWS
    assert printed == [warning]
