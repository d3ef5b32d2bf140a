"""A sweep from end to end: real training in real processes, interrupted and continued."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[4]
SPACE = "space:\n  optim.lr: {scale: log, low: 1e-3, high: 1e-2}\n  env.kwargs.mistake: [none, feature]\n"
TRAINING = (
    *(
        "env=custom",
        "env.id=tests.enn_ppo.worlds:Broken",
        "rollout.num_envs=4",
        "rollout.steps=8",
        "optim.batch_size=16",
    ),
    *("optim.epochs=1", "net.d_model=16", "net.n_layer=1", "device=cpu", "num_threads=1", "checkpoint_interval=4"),
)

pytest.importorskip("optuna", minversion="4")


@pytest.mark.slow
def test_a_sweep_goes_on_after_ctrl_c_and_a_world_that_breaks_fails_its_trials_alone(tmp_path: Path) -> None:
    (tmp_path / "mine/sweep").mkdir(parents=True)
    (tmp_path / "mine/sweep/lr.yaml").write_text(SPACE)
    settings = ("--config-dir", "mine", "sweep=lr", "sweep.trials=4", "sweep.jobs=2", "sweep.pruner=none", "run_dir=s")
    command = [sys.executable, "-m", "enn_ppo.sweep", *settings, *TRAINING, "total_timesteps=320"]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    first = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not list((tmp_path / "s").glob("trials/*/*/metrics.jsonl")):
        assert first.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    first.send_signal(signal.SIGINT)
    _, errors = first.communicate(timeout=90)
    assert (first.returncode, errors) == (130, "interrupted; the same command goes on with s\n")

    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "4 of 4 done; " in done.stdout
    for line in (line for line in done.stdout.splitlines() if "mistake=feature" in line):
        assert re.search(r"failed: .*Broken \(environment 0\).*'Lamp'.*nan", line), line
    best = re.search(r"train with it:\n  python -m enn_ppo\.train --config-dir mine (.*mistake=none)\n", done.stdout)
    assert best is not None and "sweep" not in best[1]
