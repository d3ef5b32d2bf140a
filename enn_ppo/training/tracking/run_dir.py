"""The run directory: its files, one trainer at a time, and checks before an older run is overwritten."""

from __future__ import annotations

import errno
import itertools
import os
import re
import shutil
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from enn_ppo.training.files import ASIDE, is_link
from entity_gym.untrusted import YAML_BYTES, open_regular

CONFIG = "config.yaml"
METRICS = "metrics.jsonl"
LEARNING_CURVE = "learning_curve.png"
CHECKPOINTS = "checkpoints"
RATINGS = "ratings.json"
VIDEOS = "videos"
REPLAYS = "replays"
POOL = "pool"
TENSORBOARD = "tensorboard"
WANDB = "wandb"
LOCK = ".trainer.lock"
_OURS = (CHECKPOINTS, POOL, VIDEOS, REPLAYS)  # folders that hold only files of a run; trackers' may hold anything
_FOLDERS = (*_OURS, TENSORBOARD, WANDB)
_FILES = (LEARNING_CURVE, RATINGS, "clone.yaml", "clone.jsonl", METRICS, CONFIG)
_LEAF = rf"(step|watched)_\d{{12,}}\.(safetensors|gif|html)|{ASIDE}"
_CONTENT = {CONFIG: b"total_timesteps:", METRICS: b"{"}  # bytes that those of a run have
_MARKS = (CONFIG, METRICS, CHECKPOINTS)  # a directory with any of these holds a run


class RunLock:
    """Keeps other trainers out of run directories, from `take` to `close` or the end of the process, however it ends."""

    def __init__(self) -> None:
        self._locks: list[FileLock] = []
        self._made: list[Path] = []  # run directories that were not there before

    def take(self, run_dir: Path, *policies: str) -> None:
        """Lock a run directory and those of its policies, which are made if they are missing.

        Raises:
            ValueError: another trainer writes into one, one of a policy is a link, or it cannot be written.
        """
        for name in ("", *policies):
            folder = (run_dir / name).absolute()  # the working directory may change before `close`
            if link := next((each for each in (folder / LOCK, *[folder] * bool(name)) if is_link(each)), None):
                raise ValueError(f"run_dir {run_dir} is refused: {link.name} is a link; give another run_dir")
            self._make(folder)
            lock = FileLock(folder / LOCK)
            try:
                lock.acquire(blocking=False)
                self._locks.append(lock)
            except Timeout:
                raise ValueError(
                    f"run_dir {run_dir / name} is in use: another trainer writes into it. Wait until it has ended, stop it, or "
                    "give another run_dir"
                ) from None
            except OSError as error:
                if error.errno not in (errno.ENOLCK, errno.ENOTSUP):  # some network file systems
                    raise _not_written(run_dir, error) from error
                (folder / LOCK).unlink(missing_ok=True)
                told = f"run_dir {run_dir} cannot be locked ({error.strerror})"
                warnings.warn(f"{told}: see to it that no other trainer writes into it", stacklevel=3)

    def take_unused(self, run_dir: Path, *policies: str) -> Path:
        """Make and lock `run_dir`, or where that exists already `<run_dir>_2`, `<run_dir>_3` and so on. Returns the folder.

        Raises:
            ValueError: it cannot be written.
        """
        unused, numbers = run_dir, itertools.count(2)
        while not self._make(unused.absolute()):
            unused = run_dir.with_name(f"{run_dir.name}_{next(numbers)}")
        self.take(unused, *policies)
        return unused

    def close(self) -> None:
        """Release the locks, and remove the run directories that are new and still empty. May be called twice."""
        for lock in self._locks:
            with suppress(OSError):  # Windows removes no open file
                Path(lock.lock_file).unlink()  # before it is released, so that nobody else's is removed
            lock.release()
        for folder in reversed(self._made):
            with suppress(OSError):
                folder.rmdir()
        self._locks, self._made = [], []

    def _make(self, folder: Path) -> bool:
        """Make a folder; returns False if it exists."""
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            return False
        except OSError as error:
            raise _not_written(folder, error) from error
        self._made.append(folder)
        return True


def prepare_run_dir(path: Path, *, resume: bool, overwrite: bool) -> None:
    """Check that a run directory, which exists, can be used: `resume` continues a run in it, and removes nothing.

    `overwrite` removes the files of an existing run, if they look like those of a run; other files stay.

    Raises:
        ValueError: the directory holds a run and neither flag is set, both are set, something that no run writes has the name
            of a run's file or folder, or the directory cannot be written.
    """
    if resume and overwrite:
        raise ValueError("resume and overwrite=true exclude each other: one continues a run, the other removes it")
    try:
        found = [name for name in _MARKS if os.path.lexists(path / name)]
        if strange := list(_strange(path, is_removed=bool(found) and overwrite)):
            raise ValueError(
                f"run_dir {path} is refused: {'; '.join(strange[:3])}. A run writes and removes only its own files and folders: "
                "remove these, or give another run_dir"
            )
        if found and not (resume or overwrite):
            raise ValueError(
                f"run_dir {path} already holds a run ({', '.join(found)}): continue it with resume={path}, "
                "remove it with overwrite=true, or give another run_dir"
            )
        # checkpoints first and config.yaml last: after an interruption the remaining files still count as a run
        for name in (*_FOLDERS, *_FILES) if found and overwrite else ():
            if os.path.lexists(path / name):
                shutil.rmtree(path / name) if name in _FOLDERS else (path / name).unlink()
    except OSError as error:
        raise _not_written(path, error) from error


def _strange(path: Path, is_removed: bool) -> Iterator[str]:
    """Say what of the files and folders with a run's names is a link or of another kind, or before removal of other contents."""
    for name in (*_FOLDERS, *_FILES):
        entry, is_folder = path / name, name in _FOLDERS
        if is_link(entry):
            yield f"{name} is a link"
        elif entry.exists() and entry.is_dir() != is_folder:
            yield f"{name} is no {'folder' if is_folder else 'file'}"
        elif is_removed and name in _CONTENT and entry.exists():
            with open_regular(entry) as file:
                start = file.read(YAML_BYTES)
            if start and _CONTENT[name] not in start:
                yield f"{name} is not that of a run"
        for leaf in sorted(entry.iterdir()) if name in _OURS and entry.is_dir() else ():
            is_known = re.fullmatch(_LEAF, leaf.name)
            if (is_known and (is_link(leaf) or not leaf.is_file())) or (is_removed and not is_known):
                yield f"{name} holds {leaf.name}" + ", a link" * is_link(leaf)


def _not_written(path: Path, error: OSError) -> ValueError:
    return ValueError(f"run_dir {path} cannot be written: {error.strerror or error} ({error.filename or path})")
