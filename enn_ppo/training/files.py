"""Files that are whole on the disk, or not there."""

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
    """Write or replace `path` atomically: nobody ever sees it half-written.

    Raises:
        OSError: the disk refused; the old file, if any, is unchanged.
    """
    aside = path.with_name(f".{path.name}.aside")  # the same at every try: a crash leaves one at the most
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
