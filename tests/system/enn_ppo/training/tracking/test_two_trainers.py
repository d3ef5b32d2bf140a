"""A second trainer of a run directory in which another process trains."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from enn_ppo import EnvConfig, EvalConfig, evaluate, train
from enn_ppo.checkpoints import load_checkpoint
from enn_ppo.training.tracking.run_dir import LOCK
from tests.enn_ppo.worlds import Copycat, tiny_config
from tests.processes import start

TRAIN_FOR_EVER = """
import sys
from pathlib import Path
from enn_ppo import EnvConfig, train
from tests.enn_ppo.worlds import Copycat, tiny_config
train(tiny_config(Path(sys.argv[1]), env=EnvConfig(), total_timesteps=10**9, checkpoint_interval=1), env=Copycat)
"""


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that trains in `tmp_path / "run"` and has saved a first update."""
    process = start("-c", TRAIN_FOR_EVER, tmp_path / "run", stdout=subprocess.DEVNULL)
    while len(list(tmp_path.glob("run/checkpoints/step_*"))) < 2:
        assert process.poll() is None, process.stderr and process.stderr.read()
        time.sleep(0.05)
    yield process
    process.kill()
    process.communicate()


def test_a_second_trainer_is_refused_until_the_first_is_killed(trainer: subprocess.Popen[str], tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    config = tiny_config(run_dir, env=EnvConfig(), total_timesteps=10**9)
    message = f"run_dir {run_dir} is in use: another trainer writes into it. Wait until it has ended, stop it"
    for changes in ({"resume": str(run_dir)}, {"overwrite": True}, {}):
        with pytest.raises(ValueError, match=message):
            train(replace(config, **changes), env=Copycat)  # type: ignore[arg-type]

    branch = replace(config, resume=str(run_dir), run_dir=str(tmp_path / "branch"), total_timesteps=32)
    assert train(branch, env=Copycat).run_dir == tmp_path / "branch"  # only reads the running one
    assert evaluate(EvalConfig(checkpoint=str(run_dir), episodes=2, num_envs=2), env=Copycat).episodes
    assert trainer.poll() is None

    os.kill(trainer.pid, signal.SIGKILL)
    trainer.wait()
    assert (run_dir / LOCK).exists()
    step = load_checkpoint(run_dir).step
    train(replace(config, resume=str(run_dir), total_timesteps=step + 64), env=Copycat)
    assert load_checkpoint(run_dir).step == step + 64
    assert not (run_dir / LOCK).exists()
