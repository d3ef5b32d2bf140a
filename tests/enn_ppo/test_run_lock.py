"""One trainer per run directory: a second one is refused with the name of the first, and a dead one is in nobody's way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from enn_ppo import EnvConfig, EvalConfig, evaluate, train
from enn_ppo.checkpoints import load_checkpoint
from enn_ppo.training.tracking.run_lock import LOCK, RunLock
from tests.enn_ppo.worlds import Copycat, tiny_config

REPOSITORY = Path(__file__).parents[2]

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
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", TRAIN_FOR_EVER, str(tmp_path / "run")],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    while len(list(tmp_path.glob("run/checkpoints/step_*"))) < 2:
        assert process.poll() is None, process.stderr and process.stderr.read()
        time.sleep(0.05)
    yield process
    process.kill()
    process.communicate()


def test_a_second_trainer_is_refused_and_told_who_is_there_until_the_first_is_killed(
    trainer: subprocess.Popen[str], tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    config = tiny_config(run_dir, env=EnvConfig(), total_timesteps=10**9)
    holder = json.loads((run_dir / LOCK).read_text())
    message = (
        rf"run_dir {run_dir} is in use: a trainer writes into it \(process {trainer.pid} on {holder['host']}, since "
        rf"{holder['started'][:13]}.*\). Wait until it has ended, stop it, or give another run_dir"
    )
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


def test_the_lock_keeps_others_out_until_it_is_closed(tmp_path: Path) -> None:
    first, second = RunLock(), RunLock()
    first.take(tmp_path)
    with pytest.raises(ValueError, match=rf"is in use: .*\(process {os.getpid()} on "):
        second.take(tmp_path)
    first.close()
    assert os.listdir(tmp_path) == []
    second.take(tmp_path)
    first.close()  # does nothing any more
    assert os.listdir(tmp_path) == [LOCK]
    second.close()


def test_a_folder_that_was_made_for_nothing_is_removed(tmp_path: Path) -> None:
    for name in ("a/b/c", "a"):
        lock = RunLock()
        lock.take(tmp_path / name)
        lock.close()
    assert os.listdir(tmp_path) == []
    lock = RunLock()
    lock.take(tmp_path / "a/b")
    (tmp_path / "a/notes.txt").touch()
    lock.close()
    assert os.listdir(tmp_path / "a") == ["notes.txt"]


def test_a_run_that_does_not_begin_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no checkpoint"):
        train(tiny_config(tmp_path / "out/a", env=EnvConfig(), resume=str(tmp_path / "nowhere")), env=Copycat)
    assert os.listdir(tmp_path) == []


def test_a_forked_child_that_outlives_the_trainer_does_not_hold_the_lock(tmp_path: Path) -> None:
    ready, tell = os.pipe()
    trainer = os.fork()
    if trainer == 0:
        RunLock().take(tmp_path)
        if os.fork() == 0:
            os.write(tell, str(os.getpid()).encode())
            signal.pause()
        signal.pause()
    child = int(os.read(ready, 20))
    os.kill(trainer, signal.SIGKILL)
    os.waitpid(trainer, 0)
    lock = RunLock()
    lock.take(tmp_path)
    lock.close()
    os.kill(child, signal.SIGKILL)


def test_where_the_file_system_has_no_locks_a_warning_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(descriptor: int, blocking: bool) -> bool:
        raise OSError(37, "No locks available")

    monkeypatch.setattr("enn_ppo.training.tracking.run_lock.lock_descriptor", none)
    lock = RunLock()
    with pytest.warns(UserWarning, match=r"cannot be locked \(No locks available\): see to it that no other trainer"):
        lock.take(tmp_path)
    assert os.listdir(tmp_path) == []
    lock.close()
