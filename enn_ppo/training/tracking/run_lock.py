"""One trainer per run directory: a lock that the operating system releases when the process ends, however it ends."""

from __future__ import annotations

import errno
import itertools
import warnings
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from enn_ppo.training.files import is_link

LOCK = ".trainer.lock"


class RunLock:
    """Keeps other trainers out of run directories, from `take` to `close` or the end of the process."""

    def __init__(self) -> None:
        self._locks: list[FileLock] = []
        self._made: list[Path] = []  # folders, the innermost first

    def take(self, run_dir: Path, *policies: str) -> None:
        """Lock a run directory and those of its policies, which are made if they are missing.

        A path that is no folder is left to others to refuse.

        Raises:
            ValueError: another trainer writes into one, one of a policy is a link, or it cannot be written.
        """
        for name in ("", *policies):
            folder = (run_dir / name).absolute()  # the working directory may change before `close`
            if folder.exists() and not folder.is_dir():
                continue
            if link := next((each for each in (folder / LOCK, *[folder] * bool(name)) if is_link(each)), None):
                raise ValueError(f"run_dir {run_dir} is refused: {link.name} is a link; give another run_dir")
            lock = FileLock(folder / LOCK)
            try:
                self._made = [each for each in (folder, *folder.parents) if not each.exists()] + self._made
                folder.mkdir(parents=True, exist_ok=True)
                lock.acquire(blocking=False)
            except Timeout:
                raise ValueError(
                    f"run_dir {run_dir / name} is in use: another trainer writes into it. Wait until it has ended, stop it, or "
                    "give another run_dir"
                ) from None
            except OSError as error:
                if error.errno not in (errno.ENOLCK, errno.ENOTSUP):  # some network file systems
                    reason = f"{error.strerror or error} ({error.filename or run_dir})"
                    raise ValueError(f"run_dir {run_dir} cannot be written: {reason}") from error
                told = f"run_dir {run_dir} cannot be locked ({error.strerror})"
                warnings.warn(f"{told}: see to it that no other trainer writes into it", stacklevel=3)
                (folder / LOCK).unlink(missing_ok=True)
            else:
                self._locks.append(lock)

    def take_unused(self, run_dir: Path, *policies: str) -> Path:
        """Make and lock `run_dir`, or where that exists already `<run_dir>_2`, `<run_dir>_3` and so on. Returns the folder.

        Raises:
            ValueError: it cannot be written.
        """
        for number in itertools.count(1):
            folder = run_dir.with_name(f"{run_dir.name}_{number}") if number > 1 else run_dir
            missing = [each for each in (folder.absolute(), *folder.absolute().parents) if not each.exists()]
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
