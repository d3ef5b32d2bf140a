"""One trainer per run directory: a second one is refused with the name of the first, and a dead one is in nobody's way."""

from __future__ import annotations

import errno
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from filelock import FileLock

from enn_ppo import EnvConfig, train
from enn_ppo.training.tracking.run_lock import LOCK, RunLock
from tests.enn_ppo.worlds import Copycat, tiny_config


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


def test_runs_without_a_name_of_their_own_that_start_at_once_get_one_each(tmp_path: Path) -> None:
    locks = [RunLock() for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        taken = list(threads.map(lambda lock: lock.take_unused(tmp_path / "out/a"), locks))
    assert {path.name for path in taken} == {"a", "a_2", "a_3", "a_4"}
    (tmp_path / "out/a/metrics.jsonl").touch()
    for lock in locks:
        lock.close()
    assert os.listdir(tmp_path / "out") == ["a"]


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
    def none(lock: FileLock, blocking: bool) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(FileLock, "acquire", none)
    lock = RunLock()
    with pytest.warns(UserWarning, match=r"cannot be locked \(No locks available\): see to it that no other trainer"):
        lock.take(tmp_path)
    assert os.listdir(tmp_path) == []
    lock.close()
