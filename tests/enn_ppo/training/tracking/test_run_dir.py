"""A run directory is never taken over by accident, has one trainer at a time, and loses nothing but a run."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from filelock import FileLock

from enn_ppo import EnvConfig, train
from enn_ppo.training.tracking.run_dir import LOCK, RunLock, prepare_run_dir
from tests.enn_ppo.worlds import Copycat, tiny_config


def a_run(path: Path) -> Path:
    (path / "wandb" / "offline-run-1").mkdir(parents=True)
    for name in (
        "checkpoints/step_000000000100.safetensors",
        "replays/.step_1.0123456789abcdef.aside.html",  # left by a crash
        "pool/step_000000000050.safetensors",
        "videos/step_000000000100.gif",
        "replays/watched_000000000100.html",
        "tensorboard/events",
        "ratings.json",
        "clone.yaml",
        "clone.jsonl",
        "learning_curve.png",
        "eval.json",  # of another command
    ):
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).touch()
    (path / "metrics.jsonl").write_text('{"step": 100}\n')
    (path / "config.yaml").write_text("total_timesteps: 20000\n")
    return path


@pytest.mark.parametrize(("resume", "overwrite"), [(False, False), (True, False), (False, True)])
def test_a_directory_without_a_run_stays_as_it_is(tmp_path: Path, resume: bool, overwrite: bool) -> None:
    (tmp_path / "notes.txt").touch()
    prepare_run_dir(tmp_path, resume=resume, overwrite=overwrite)
    assert os.listdir(tmp_path) == ["notes.txt"]


@pytest.mark.parametrize("mark", ["config.yaml", "metrics.jsonl", "checkpoints"])
def test_an_existing_run_is_refused_with_both_ways_out(tmp_path: Path, mark: str) -> None:
    (tmp_path / mark).touch() if "." in mark else (tmp_path / mark).mkdir()
    message = rf"already holds a run \({mark}\): continue it with resume={tmp_path}, remove it with overwrite=true"
    with pytest.raises(ValueError, match=message):
        prepare_run_dir(tmp_path, resume=False, overwrite=False)


def test_resume_leaves_everything_there_and_excludes_overwrite(tmp_path: Path) -> None:
    before = sorted(os.listdir(a_run(tmp_path)))
    with pytest.raises(ValueError, match="resume and overwrite=true exclude each other"):
        prepare_run_dir(tmp_path, resume=True, overwrite=True)
    prepare_run_dir(tmp_path, resume=True, overwrite=False)
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize("metrics", ['{"step": 100}\n', "", '{"ste', '{"step": 100}\n{"st'])
def test_overwrite_removes_only_what_a_run_writes_also_if_it_crashed_early(tmp_path: Path, metrics: str) -> None:
    (a_run(tmp_path) / "metrics.jsonl").write_text(metrics)
    prepare_run_dir(tmp_path, resume=False, overwrite=True)
    assert os.listdir(tmp_path) == ["eval.json"]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda run: (run / "config.yaml").write_text("port: 80\n"), "config.yaml is not that of a run"),
        (lambda run: (run / "metrics.jsonl").write_text("[1]\n"), "metrics.jsonl is not that of a run"),
        (lambda run: (run / "checkpoints" / "thesis.tex").touch(), "checkpoints holds thesis.tex"),
        (lambda run: (run / "videos" / "wedding.mp4").touch(), "videos holds wedding.mp4"),
        (lambda run: (run / "pool" / "swimming.safetensors").touch(), "pool holds swimming.safetensors"),
        (lambda run: ((run / "metrics.jsonl").unlink(), (run / "metrics.jsonl").mkdir()), "metrics.jsonl is no file"),
        (
            lambda run: (
                (run / "checkpoints").rename(run / "elsewhere"),
                (run / "checkpoints").symlink_to("elsewhere"),
            ),
            "checkpoints is a link",
        ),
        (
            lambda run: ((run / "wandb").rename(run / "elsewhere"), (run / "wandb").write_text("")),
            "wandb is no folder",
        ),
    ],
)
def test_overwrite_refuses_what_does_not_look_like_a_run(
    tmp_path: Path, spoil: Callable[[Path], object], message: str
) -> None:
    run = a_run(tmp_path / "run")
    spoil(run)
    before = sorted(str(path) for path in run.rglob("*"))
    with pytest.raises(ValueError, match=rf"run_dir {run} is refused: {message}"):
        prepare_run_dir(run, resume=False, overwrite=True)
    assert sorted(str(path) for path in run.rglob("*")) == before


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs Linux")
@pytest.mark.parametrize(
    ("folder", "reason"), [("file", "File exists"), ("file/a/b", "Not a directory"), ("/proc/x", "No such file")]
)
def test_a_place_where_nothing_can_be_written_is_named_before_anything_starts(
    tmp_path: Path, folder: str, reason: str
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=rf"run_dir {tmp_path / folder} cannot be written: {reason}"):
        train(tiny_config(tmp_path / folder, env=EnvConfig(), overwrite=True), env=Copycat)
    assert os.listdir(tmp_path) == ["file"]


# --- The lock ---


def test_the_lock_keeps_others_out_until_it_is_closed(tmp_path: Path) -> None:
    first, second = RunLock(), RunLock()
    first.take(tmp_path)
    with pytest.raises(ValueError, match="is in use: another trainer writes into it"):
        second.take(tmp_path)
    first.close()
    assert os.listdir(tmp_path) == []
    second.take(tmp_path)
    first.close()  # does nothing any more
    assert os.listdir(tmp_path) == [LOCK]
    second.close()


def test_runs_without_a_name_of_their_own_that_start_at_once_get_one_each(tmp_path: Path) -> None:
    locks = [RunLock() for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        taken = list(threads.map(lambda lock: lock.take_unused(tmp_path / "out/a"), locks))
    assert {path.name for path in taken} == {"a", "a_2", "a_3", "a_4"}
    (tmp_path / "out/a/metrics.jsonl").touch()
    for lock in locks:
        lock.close()
    assert os.listdir(tmp_path / "out") == ["a"]


def test_a_run_that_does_not_begin_leaves_no_directory(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no checkpoint"):
        train(tiny_config(tmp_path / "out/a", env=EnvConfig(), resume=str(tmp_path / "nowhere")), env=Copycat)
    assert os.listdir(tmp_path / "out") == []


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
    def none(lock: FileLock, blocking: bool) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(FileLock, "acquire", none)
    lock = RunLock()
    with pytest.warns(UserWarning, match=r"cannot be locked \(No locks available\): see to it that no other trainer"):
        lock.take(tmp_path)
    assert os.listdir(tmp_path) == []
    lock.close()
