"""What a run leaves behind where the disk is full, its directory vanishes, or it is killed: never anything half-written."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from enn_ppo import Callback, EnvConfig, train
from enn_ppo.checkpoints import CheckpointError, load_checkpoint, record_score
from tests.enn_ppo.forged import save
from tests.enn_ppo.worlds import Copycat, tiny_config
from tests.processes import mounted, output_of


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for 256 KiB."""
    with mounted(tmp_path / "disk", "size=256k") as disk:
        if disk is None:
            pytest.skip("file systems cannot be mounted here")
        yield disk


def weights(size: int, value: float) -> dict[str, torch.Tensor]:
    return {"w": torch.full((size,), value)}


# --- A full disk ---


@pytest.mark.parametrize("spare", range(0, 45_000, 9_000))
def test_wherever_the_room_ends_latest_is_whole(small_disk: Path, spare: int) -> None:
    home = small_disk / "run/checkpoints"
    save(home, 100, policy=weights(10_000, 100), score=0.5)
    free = os.statvfs(small_disk)
    (small_disk / "ballast").write_bytes(b"0" * max(0, free.f_bavail * free.f_frsize - spare))
    try:
        save(home, 200, policy=weights(9_000, 200), score=0.7)
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
    told = caught.value.__notes__[0]
    assert f"step_{loaded.step:012d}" in told and f"resume={small_disk / 'run'}" in told


# --- A run directory that vanishes ---


def test_a_checkpoint_directory_that_vanishes_is_made_again(tmp_path: Path) -> None:
    class Vandal(Callback):
        def on_checkpoint(self, path: Path, step: int) -> None:
            if step == 96:
                shutil.rmtree(path.parent)

    config = tiny_config(tmp_path / "run", env=EnvConfig(), checkpoint_interval=1)
    train(config, env=Copycat, callbacks=[Vandal()])
    assert load_checkpoint(tmp_path / "run").step == 160
    assert sorted(path.name for path in (tmp_path / "run/checkpoints").glob("step_*")) == [
        "step_000000000128.safetensors",
        "step_000000000160.safetensors",
    ]


# --- kill -9 ---

KILL_WHILE_SAVING = """
import os, signal, sys, time, torch
from pathlib import Path
from enn_ppo.checkpoints import load_checkpoint, record_score
from tests.enn_ppo.forged import save

directory, kills = Path(sys.argv[1]), 20
torch.set_num_threads(1)

def save_one(step):
    weights = {"w": torch.full((1000,), float(step))}
    save(
        directory, step, 2, policy=weights, value_net=weights, trainer={"step": step},
        score=float(step % 7),
    )
    record_score(directory, step, float(step % 5))

def save_forever(step, announce):
    while True:
        step += 1
        os.write(announce, b".")
        save_one(step)

save_one(1)
steps = [1]
for kill in range(kills):
    heard, announce = os.pipe()
    child = os.fork()
    if child == 0:
        save_forever(steps[-1], announce)
    os.close(announce)  # so that reading ends where the child fails
    os.read(heard, 1)
    began = time.monotonic()
    os.read(heard, 1)  # one save is done and the next begins: die in it, each time a little later
    time.sleep((time.monotonic() - began) * kill / kills)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(heard)
    for name in ("best", "latest"):
        loaded = load_checkpoint(directory / name)
        found = {*loaded.policy["w"].tolist(), *loaded.value_net["w"].tolist(), loaded.trainer["step"], loaded.step}
        assert len(found) == 1, "never a mixture"
    steps.append(loaded.step)
assert steps == sorted(set(steps)), steps  # what was saved is saved
save_one(steps[-1] + 1)
for file in directory.iterdir():
    load_checkpoint(file)  # nothing half-written is left
"""


def test_kill_9_at_any_moment_leaves_a_latest_and_a_best_that_load(tmp_path: Path) -> None:
    output_of(KILL_WHILE_SAVING, tmp_path)
