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
from entity_gym.untrusted import YAML_BYTES, open_regular, read_regular

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
_MARKS = (CONFIG, METRICS, CHECKPOINTS)  # a directory with any of these holds a run


class RunLock:
    """Keeps other trainers out of run directories, from `take` to `close` or the end of the process, however it ends."""

    def __init__(self) -> None:
        self._locks: list[FileLock] = []
        self._made: list[Path] = []  # folders, the innermost first

    def take(self, run_dir: Path, *policies: str) -> None:
        """Lock a run directory and those of its policies, which are made if they are missing.

        Raises:
            ValueError: another trainer writes into one, one of a policy is a link, or it cannot be written.
        """
        for name in ("", *policies):
            folder = (run_dir / name).absolute()  # the working directory may change before `close`
            if link := next((each for each in (folder / LOCK, *[folder] * bool(name)) if is_link(each)), None):
                raise ValueError(f"run_dir {run_dir} is refused: {link.name} is a link; give another run_dir")
            lock = FileLock(folder / LOCK)
            try:
                self._made = _missing(folder) + self._made
                folder.mkdir(parents=True, exist_ok=True)
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
        for number in itertools.count(1):
            folder = run_dir.with_name(f"{run_dir.name}_{number}") if number > 1 else run_dir
            missing = _missing(folder.absolute())
            try:
                folder.mkdir(parents=True)
            except FileExistsError:
                continue
            except OSError:
                missing = []  # `take` says why
            self._made = missing + self._made
            self.take(folder, *policies)
            return folder
        raise AssertionError

    def close(self) -> None:
        """Release the locks, and remove the folders that `take` has made and that are still empty. May be called twice."""
        for lock in self._locks:
            with suppress(OSError):  # Windows removes no open file
                Path(lock.lock_file).unlink()  # before it is released, so that nobody else's is removed
            lock.release()
        for folder in self._made:
            with suppress(OSError):
                folder.rmdir()
        self._locks, self._made = [], []


def prepare_run_dir(path: Path, *, resume: bool, overwrite: bool) -> None:
    """Create the run directory, or check that the existing one can be used.

    Args:
        path: the directory; parents are created.
        resume: an existing run is continued; nothing is removed.
        overwrite: an existing run's files are removed, if they look like those of a run; other files stay.

    Raises:
        ValueError: the directory holds a run and neither flag is set, both are set, something that no run writes has the name
            of a run's file or folder, or the directory cannot be written.
    """
    if resume and overwrite:
        raise ValueError("resume and overwrite=true exclude each other: one continues a run, the other removes it")
    try:
        path.mkdir(parents=True, exist_ok=True)
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
        for folder in (path, *(path / name for name in _OURS)):
            for entry in folder.iterdir() if folder.is_dir() else ():
                if re.fullmatch(ASIDE, entry.name):  # left half written by a crash
                    entry.unlink()
    except OSError as error:
        raise _not_written(path, error) from error


def _strange(path: Path, is_removed: bool) -> Iterator[str]:
    """Say what of the files and folders with a run's names is a link or of another kind.

    Args:
        path: the run directory.
        is_removed: everything is about to be removed, so other names and contents are strange, too.
    """
    for name in (*_FOLDERS, *_FILES):
        entry = path / name
        if is_link(entry):
            yield f"{name} is a link"
        elif not entry.exists():
            continue
        elif not (entry.is_dir() if name in _FOLDERS else entry.is_file()):
            yield f"{name} is no {'folder' if name in _FOLDERS else 'file'}"
        elif is_removed and name == CONFIG and b"total_timesteps:" not in read_regular(entry, YAML_BYTES):
            yield f"{name} has no total_timesteps"
        elif is_removed and name == METRICS and open_regular(entry).read(1) not in (b"", b"{"):
            yield f"{name} holds no rows of metrics"
        for leaf in sorted(entry.iterdir()) if name in _OURS and entry.is_dir() else ():
            is_known = re.fullmatch(_LEAF, leaf.name)
            if (is_known and (is_link(leaf) or not leaf.is_file())) or (is_removed and not is_known):
                yield f"{name} holds {leaf.name}" + ", a link" * is_link(leaf)


def _not_written(path: Path, error: OSError) -> ValueError:
    return ValueError(f"run_dir {path} cannot be written: {error.strerror or error} ({error.filename or path})")


def _missing(folder: Path) -> list[Path]:
    """The folders that have to be made for this one, the innermost first."""
    return [each for each in (folder, *folder.parents) if not each.exists()]
