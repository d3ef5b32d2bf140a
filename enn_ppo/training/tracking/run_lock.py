"""One trainer per run directory: a lock that the operating system releases when the process ends, however it ends."""

from __future__ import annotations

import json
import os
import socket
import warnings
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from filelock import lock_descriptor

from enn_ppo.training.files import is_link, open_to_write

LOCK = ".trainer.lock"
_HOLDER = 1  # position of the holder in the file: Windows lets nobody else read the locked first byte
_held: dict[int, Path] = {}  # descriptor -> lock file, of all locks of this process


class RunLock:
    """Keeps other trainers out of run directories, from `take` to `close` or the end of the process.

    The lock file says who holds it: process id, host and start time.
    """

    def __init__(self) -> None:
        self._descriptors: list[int] = []
        self._made: list[Path] = []  # folders, the innermost first

    def take(self, run_dir: Path, *policies: str) -> None:
        """Lock a run directory and those of its policies, which are made if they are missing.

        A path that is no folder is left to others to refuse.

        Raises:
            ValueError: another trainer writes into one (the message says which), one of a policy is a link, or it cannot be
                written.
        """
        for folder in (run_dir, *(run_dir / name for name in policies)):
            if folder != run_dir and is_link(folder):
                raise ValueError(f"run_dir {run_dir} is refused: {folder.name} is a link; give another run_dir")
            self._take(folder)

    def _take(self, run_dir: Path) -> None:
        try:
            folder = run_dir.absolute()  # the working directory may change before `close`
            if folder.exists() and not folder.is_dir():
                return
            self._made = [each for each in (folder, *folder.parents) if not each.exists()] + self._made
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = _lock(folder / LOCK)
            if descriptor is None:
                return
            self._descriptors.append(descriptor)
            now = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
            holder = {"pid": os.getpid(), "host": socket.gethostname(), "started": now}
            os.ftruncate(descriptor, 0)
            os.write(descriptor, b"\n" + json.dumps(holder).encode() + b"\n")
        except OSError as error:
            blocker = error.filename or run_dir
            raise ValueError(f"run_dir {run_dir} cannot be written: {error.strerror or error} ({blocker})") from error

    def close(self) -> None:
        """Release the locks, and remove the folders that `take` has made and that are still empty. May be called twice."""
        for descriptor in self._descriptors:
            if path := _held.pop(descriptor, None):
                if _is_at(path, descriptor):
                    with suppress(OSError):
                        path.unlink()  # before it is released, so that nobody else's is removed
                os.close(descriptor)
                if (
                    os.name == "nt"
                ):  # where an open file cannot be removed, and one that another trainer has opened stays
                    with suppress(OSError):
                        path.unlink()
        for folder in self._made:
            with suppress(OSError):
                folder.rmdir()
        self._descriptors, self._made = [], []


def _lock(path: Path) -> int | None:
    """Open and lock a file. Returns its descriptor, or None if the file system has no locks.

    Raises:
        ValueError: it is locked by another process, or by this one.
    """
    while True:
        descriptor = open_to_write(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            is_locked = lock_descriptor(descriptor, blocking=False)
        except OSError as error:  # some network file systems
            os.close(descriptor)
            path.unlink(missing_ok=True)
            warnings.warn(
                f"run_dir {path.parent} cannot be locked ({error.strerror}): see to it that no other trainer writes into it",
                stacklevel=4,
            )
            return None
        if not is_locked:
            os.lseek(descriptor, _HOLDER, os.SEEK_SET)
            holder = _described(os.read(descriptor, 1000))
            os.close(descriptor)
            raise ValueError(
                f"run_dir {path.parent} is in use: a trainer writes into it ({holder}). Wait until it has ended, stop it, "
                "or give another run_dir"
            )
        if _is_at(path, descriptor):
            _held[descriptor] = path
            return descriptor
        os.close(descriptor)  # its holder has removed the file meanwhile, so others would not see this lock


def _is_at(path: Path, descriptor: int) -> bool:
    """Whether the open file is still the one of this name."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _described(content: bytes) -> str:
    try:
        holder = json.loads(content)
        return f"process {holder['pid']} on {holder['host']}, since {holder['started']}"
    except (ValueError, KeyError, TypeError):  # it is just being written
        return "another process"


def _forget() -> None:
    """Close the descriptors in a forked child, which otherwise would hold the locks after the trainer has died."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forget)
