"""A sweep from end to end: real training in real processes, interrupted and continued."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest

from tests.processes import run, start

WORLD = """
import time
from pathlib import Path

import numpy as np

from tests.enn_ppo.worlds import Copycat


class Once(Copycat):  # it breaks in one trial, whichever is the first, and is slow until there is a file named "fast"
    def _observation(self, reward=0.0, done=False):
        obs = super()._observation(reward, done)
        if not Path("fast").exists():
            time.sleep(0.05)
        try:
            Path("broken").touch(exist_ok=False)
        except FileExistsError:
            return obs
        obs.features = {"Lamp": np.full_like(obs.features["Lamp"], np.nan)}
        return obs
"""
SWEEP = (
    *("--config-dir", "mine", "sweep=lr", "sweep.trials=4", "sweep.jobs=2", "sweep.pruner=none", "run_dir=s"),
    *("env=custom", "env.id=world:Once", "rollout.num_envs=4", "rollout.steps=8", "optim.batch_size=16"),
    *("optim.epochs=1", "net.d_model=16", "net.n_layer=1", "device=cpu", "num_threads=1", "checkpoint_interval=4"),
    "total_timesteps=320",
)

pytest.importorskip("optuna", minversion="4")


@pytest.mark.slow
def test_a_sweep_goes_on_after_ctrl_c_and_a_world_that_breaks_fails_its_trial_alone(tmp_path: Path) -> None:
    (tmp_path / "mine/sweep").mkdir(parents=True)
    (tmp_path / "mine/sweep/lr.yaml").write_text("space:\n  optim.lr: {scale: log, low: 1e-3, high: 1e-2}\n")
    (tmp_path / "world.py").write_text(WORLD)
    first = start("-m", "enn_ppo.sweep", *SWEEP, cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert first.stdout is not None
    assert first.stdout.readline() == "4 trials, 4 to go; none is pruned\n"
    line = first.stdout.readline()
    assert re.match(r"trial \d: failed: .*Once \(environment \d\).*'Lamp'.*nan", line), line
    deadline = time.monotonic() + 120
    while not any(rows.stat().st_size for rows in (tmp_path / "s").glob("trials/*/*/metrics.jsonl")):
        assert first.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    first.send_signal(signal.SIGINT)
    printed, errors = first.communicate(timeout=90)
    assert (first.returncode, printed, errors) == (130, "", "interrupted; the same command goes on with s\n")

    (tmp_path / "fast").touch()
    done = run("-m", "enn_ppo.sweep", *SWEEP, cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\ntrial ") == 4 and "failed" not in done.stdout
    best = re.search(r"train with it:\n  python -m enn_ppo\.train --config-dir mine (.*)\n", done.stdout)
    assert best is not None and "optim.lr=" in best[1] and "sweep" not in best[1]
