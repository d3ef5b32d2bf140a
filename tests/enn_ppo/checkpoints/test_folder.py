"""A run's folder of checkpoints: what is found there under which name, and that no crash takes away what was there."""

import os
import resource
from pathlib import Path
from typing import Any

import pytest
import torch

from enn_ppo.checkpoints import CheckpointError, load_checkpoint, resolve_checkpoint
from tests.enn_ppo.forged import save


def names(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


def marked(directory: Path, step: int, mark: float, keep: int = 9) -> Path:
    return save(directory, step, keep, policy={"w": torch.tensor([mark])})


def mark_of(path: Path) -> float:
    return float(load_checkpoint(path).policy["w"])


def test_the_last_stay_and_after_resuming_from_an_earlier_one_the_abandoned_later_ones_go_first(tmp_path: Path) -> None:
    for step in (100, 200, 300, 400):
        save(tmp_path, step, keep_last=3)
    assert names(tmp_path) == [f"step_000000000{step}.safetensors" for step in (200, 300, 400)]
    save(tmp_path, 250, keep_last=2)
    assert names(tmp_path) == ["step_000000000200.safetensors", "step_000000000250.safetensors"]
    assert load_checkpoint(tmp_path).step == 250


def test_saving_a_step_again_replaces_it_and_a_run_directory_can_be_moved(tmp_path: Path) -> None:
    marked(tmp_path / "a" / "checkpoints", 100, 1.0)
    assert marked(tmp_path / "a" / "checkpoints", 100, 2.0).name == "step_000000000100.safetensors"
    (tmp_path / "a").rename(tmp_path / "b")
    assert mark_of(tmp_path / "b") == 2.0
    assert names(tmp_path / "b" / "checkpoints") == ["step_000000000100.safetensors"]


@pytest.mark.parametrize(
    "given",
    [
        "",
        "checkpoints",
        "checkpoints/latest",
        "checkpoints/step_000000000200",
        "checkpoints/step_000000000200.safetensors",
    ],
)
def test_a_run_its_checkpoints_latest_and_a_step_all_resolve(tmp_path: Path, given: str) -> None:
    save(tmp_path / "checkpoints", 100)
    save(tmp_path / "checkpoints", 200)
    (tmp_path / "config.yaml").write_text("total_timesteps: 1\n")  # a run directory has one too
    assert resolve_checkpoint(tmp_path / given) == tmp_path / "checkpoints" / "step_000000000200.safetensors"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            "runs/alpah/checkpoints/latest",
            "there is no alpah in .*runs; allowed: 'alpha', 'beta'; did you mean 'alpha'?",
        ),
        (
            "runs/alpha/checkpoints/step_000000000500",
            "there is no step_000000000500 in .*; allowed: .*'step_000000000200.safetensors'; did you mean",
        ),
        ("runs/alpha/metrics.jsonl", "metrics.jsonl is no whole checkpoint or policy file: .*; give a run directory"),
        ("runs/beta", r"there is no step_<12 digits> in .*runs/beta; allowed: 'notes.txt'$"),
    ],
)
def test_a_missing_checkpoint_says_what_is_there(tmp_path: Path, given: str, message: str) -> None:
    save(tmp_path / "runs" / "alpha" / "checkpoints", 100)
    save(tmp_path / "runs" / "alpha" / "checkpoints", 200)
    (tmp_path / "runs" / "alpha" / "metrics.jsonl").touch()
    (tmp_path / "runs" / "beta").mkdir()
    (tmp_path / "runs" / "beta" / "notes.txt").touch()
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(tmp_path / given)


def test_checkpoints_of_an_older_version_are_refused_by_name(tmp_path: Path) -> None:
    file = save(tmp_path / "of 4" / "checkpoints")
    file.write_bytes(file.read_bytes().replace(b'"format":"8"', b'"format":"5"'))
    with pytest.raises(
        CheckpointError, match=f"{file} has format 5, and this version of enn-ppo reads format 8: install"
    ):
        load_checkpoint(tmp_path / "of 4")
    (tmp_path / "of 3" / "checkpoints" / "step_000000000100").mkdir(parents=True)
    with pytest.raises(CheckpointError, match="has checkpoints of format 3, which are folders; commit 6b82b570"):
        load_checkpoint(tmp_path / "of 3")


# --- A disk that refuses, and a process that dies ---


def test_a_file_that_really_cannot_grow_is_a_checkpoint_error(tmp_path: Path) -> None:
    marked(tmp_path, 100, 1.0)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(CheckpointError, match="step_0*200.safetensors failed: File too large"):
            save(tmp_path, 200, trainer={"big": torch.zeros(10_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(tmp_path) == ["step_000000000100.safetensors"]
    assert mark_of(tmp_path / "latest") == 1.0


def test_a_file_in_the_way_is_a_checkpoint_error(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("")
    with pytest.raises(CheckpointError, match="step_0*1.safetensors failed: File exists"):
        save(tmp_path / "checkpoints", 1)


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_a_save_that_breaks_off_leaves_what_was_there_and_the_next_one_sweeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    marked(tmp_path, 200, 2.0)

    def fail(*given: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, function, fail)
        patch.setattr(Path, "unlink", fail)  # as if the process was killed: what it wrote stays
        with pytest.raises(CheckpointError, match="failed: No space left on device"):
            marked(tmp_path, 200, 3.0)
    assert len(names(tmp_path)) == 2 and mark_of(tmp_path) == 2.0
    marked(tmp_path, 300, 4.0, keep=1)
    assert names(tmp_path) == ["step_000000000300.safetensors"] and mark_of(tmp_path) == 4.0
