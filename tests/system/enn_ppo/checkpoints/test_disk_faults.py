"""What a run leaves behind where the disk is full, its directory vanishes, or it is killed: never anything half-written."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch

from enn_ppo import EnvConfig, train
from enn_ppo.checkpoints import CheckpointError, Retention, load_checkpoint, record_score, save_checkpoint
from entity_gym import Action, Observation
from tests.enn_ppo.worlds import Copycat, tiny_config

REPOSITORY = Path(__file__).parents[4]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for 256 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("file systems cannot be mounted here")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)  # weights that a test still holds are mapped from it


def save(directory: Path, step: int, size: int, **other: object) -> Path:
    return save_checkpoint(
        directory,
        step,
        policy={"w": torch.full((size,), float(step))},
        config={},
        spaces={},
        trainer={"step": step},
        **({"retention": Retention(keep_last=2)} | other),  # type: ignore[arg-type]
    )


# --- A full disk ---


def test_on_a_full_disk_the_checkpoints_that_were_there_still_load(small_disk: Path) -> None:
    home = small_disk / "run/checkpoints"
    save(home, 100, size=10_000)
    message = r"step_0*200.safetensors failed: No space left on device; the newest checkpoint is step_0*100, and resume=.*/run"
    with pytest.raises(CheckpointError, match=message):
        save(home, 200, size=100_000)
    assert os.listdir(home) == ["step_000000000100.safetensors"]
    assert load_checkpoint(small_disk / "run").step == 100
    save(home, 300, size=10_000)  # what was written in vain is not in the way
    assert load_checkpoint(small_disk / "run").step == 300


@pytest.mark.parametrize("spare", range(0, 45_000, 9_000))
def test_wherever_the_room_ends_latest_is_whole(small_disk: Path, spare: int) -> None:
    home = small_disk / "run/checkpoints"
    save(home, 100, size=10_000, score=0.5)
    free = os.statvfs(small_disk)
    (small_disk / "ballast").write_bytes(b"0" * max(0, free.f_bavail * free.f_frsize - spare))
    try:
        save(home, 200, size=9_000, score=0.7)
        record_score(home, 200, 0.9)
    except CheckpointError as error:
        assert "No space left on device" in str(error)
    loaded = load_checkpoint(small_disk / "run")
    assert loaded.policy["w"].unique().tolist() == [float(loaded.step)]
    assert load_checkpoint(home / "best").step in (100, 200)


def test_a_run_on_a_full_disk_ends_with_what_was_saved_named(small_disk: Path) -> None:
    config = tiny_config(
        small_disk / "run", env=EnvConfig(), checkpoint_interval=1, keep_last=100, total_timesteps=6400
    )
    with pytest.raises(ValueError, match="No space left on device") as caught:
        train(config, env=Copycat)
    loaded = load_checkpoint(small_disk / "run")
    assert loaded.step > 0
    told = str(caught.value)
    assert f"step_{loaded.step:012d}" in told and f"resume={small_disk / 'run'}" in told


# --- A run directory that vanishes ---


class Vandal(Copycat):
    """In the act of this number, somebody removes the run directory."""

    acts = 0
    at = 0
    run_dir: Path

    def act(self, actions: Mapping[str, Action]) -> Observation:
        Vandal.acts += 1
        if Vandal.acts == Vandal.at:
            shutil.rmtree(Vandal.run_dir)
        return super().act(actions)


def test_a_checkpoint_directory_that_vanishes_is_made_again(tmp_path: Path) -> None:
    Vandal.acts, Vandal.at, Vandal.run_dir = 0, 32 + 3 * 32 + 1, tmp_path / "run/checkpoints"
    train(tiny_config(tmp_path / "run", env=EnvConfig(), checkpoint_interval=1), env=Vandal)
    assert load_checkpoint(tmp_path / "run").step == 160
    assert sorted(path.name for path in (tmp_path / "run/checkpoints").glob("step_*")) == [
        "step_000000000128.safetensors",
        "step_000000000160.safetensors",
    ]


# --- kill -9 ---

SAVE_FOREVER = """
import sys, torch
from pathlib import Path
from enn_ppo.checkpoints import Retention, load_checkpoint, record_score, save_checkpoint
torch.set_num_threads(1)
directory = Path(sys.argv[1])
step = load_checkpoint(directory).step if any(directory.glob("step_*")) else 0
retention = Retention(keep_last=2, keep_best=1)
while True:
    step += 1
    weights = {"w": torch.full((20_000,), float(step))}
    save_checkpoint(
        directory, step, policy=weights, config={}, spaces={}, trainer={"step": step}, retention=retention,
        more_weights={"value_net": weights}, seconds=float(step), score=float(step % 7),
    )
    record_score(directory, step, float(step % 5))
    print(step, flush=True)
"""


def test_killed_in_the_middle_of_saving_again_and_again_latest_and_best_are_always_whole(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    newest = 0
    for kill in range(4):
        command = [sys.executable, "-c", SAVE_FOREVER, str(tmp_path)]
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for _ in range(5 + 8 * kill):
            told = process.stdout.readline()
        process.kill()
        assert process.wait() == -signal.SIGKILL
        process.stdout.close()
        for name in ("latest", "best"):
            loaded = load_checkpoint(tmp_path / name)
            expected = [float(loaded.step)]
            assert (
                loaded.policy["w"].unique().tolist()
                == loaded.more_weights["value_net"]["w"].unique().tolist()
                == expected
            )
            assert loaded.trainer == {"step": loaded.step}
        assert load_checkpoint(tmp_path / "latest").step >= int(told) > newest  # what was told to be saved is saved
        newest = int(told)
    for folder in tmp_path.glob("step_*"):
        load_checkpoint(folder)
