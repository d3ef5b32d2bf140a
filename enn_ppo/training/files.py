"""Atomic writing of files."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def write_file(path: Path, data: bytes) -> None:
    """Write a file, and flush it to the disk."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, data: bytes) -> None:
    """Write or replace `path` atomically.

    Raises:
        OSError: the file cannot be written; the old file, if any, is unchanged.
    """
    aside = path.with_name(f".{path.name}.aside")  # a fixed name: crashes leave at most one such file
    try:
        write_file(aside, data)
        os.replace(aside, path)
    except OSError:
        with suppress(OSError):
            aside.unlink()
        raise


def flush_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk, so that a crash cannot undo a rename."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
