"""Files that are whole on the disk, or not there."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def write_file(path: Path, data: bytes) -> None:
    """Write a new file, and see that it is on the disk."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, data: bytes, aside: Path | None = None) -> None:
    """Write `path`, or what is there anew, so that nobody ever sees it half-written.

    Args:
        path: the file, in a folder that exists.
        data: all of it.
        aside: where it is written first, on the same disk; None: beside `path`, under a hidden name.

    Raises:
        OSError: the disk refused; what was there still is.
    """
    aside = aside or path.with_name(f".{path.name}.aside")  # the same at every try: a crash leaves one at the most
    try:
        write_file(aside, data)
        os.replace(aside, path)
    except OSError:
        with suppress(OSError):
            aside.unlink()
        raise
