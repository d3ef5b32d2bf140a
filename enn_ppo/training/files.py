"""Writing files and folders of a run: atomically, and never through a link, which may lead out of the run."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

#: Hidden names of files that are being written; a crash may leave some.
ASIDE = r"\..+\.[0-9a-f]{16}\.aside(\.\w+)?"


def is_link(path: Path) -> bool:
    """Whether a path is a symbolic link or, on Windows, a junction."""
    try:
        found = os.lstat(path)
    except (OSError, ValueError):  # ValueError: no path, such as one with a null character
        return False
    junction = getattr(stat, "IO_REPARSE_TAG_MOUNT_POINT", None)
    return stat.S_ISLNK(found.st_mode) or (junction is not None and getattr(found, "st_reparse_tag", 0) == junction)


def open_to_write(path: Path, flags: int, mode: int = 0o666) -> int:
    """Open a regular file of a run with `os.open`, and return its descriptor.

    Raises:
        OSError: the path is a link, a folder or a device, or the file cannot be opened.
    """
    _refuse_link(path)  # Windows has no O_NOFOLLOW, and its message elsewhere is not understood
    for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY", "O_CLOEXEC"):
        flags |= getattr(os, name, 0)
    descriptor = os.open(path, flags, mode)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return descriptor


def write_file(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Write a new file, and flush it to the disk.

    Raises:
        OSError: there is something of this name, or the file cannot be written.
    """
    with open(open_to_write(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def append_to_file(path: Path, data: bytes) -> None:
    """Append to a file, which is created if it is missing.

    Raises:
        OSError: the path is a link or no regular file, or the file cannot be written.
    """
    with open(open_to_write(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab", buffering=0) as file:
        left = memoryview(data)
        while left:  # a write is incomplete only if the disk is full
            left = left[file.write(left) :]


def replace_file(path: Path, data: bytes) -> None:
    """Write or replace `path` atomically.

    Raises:
        OSError: the path is a link, or the file cannot be written; the old file, if any, is unchanged.
    """
    _refuse_link(path)
    aside = aside_of(path)
    try:
        write_file(aside, data)
        os.replace(aside, path)
    except OSError:
        with suppress(OSError):
            aside.unlink()
        raise


def aside_of(path: Path) -> Path:
    """A new hidden path beside `path`, with its suffix, for a file that is renamed to `path` when it is whole."""
    return path.with_name(f".{path.stem}.{secrets.token_hex(8)}.aside{path.suffix}")  # nobody can have put a link there


def make_folder(path: Path) -> None:
    """Make a folder of a run, with its parents, unless it is there.

    Raises:
        OSError: a link or a file has this name, or the folder cannot be made.
    """
    _refuse_link(path)
    path.mkdir(parents=True, exist_ok=True)


def flush_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk, so that a crash cannot undo a rename."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:  # Windows opens no folders
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _refuse_link(path: Path) -> None:
    if is_link(path):
        raise OSError(errno.ELOOP, "it is a link, and a run writes only into its own files and folders", str(path))
