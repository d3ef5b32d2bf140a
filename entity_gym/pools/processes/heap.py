"""Memory of the C library, which keeps what is freed: glibc alone can be told otherwise, and elsewhere nothing happens.

Source: the manual pages mallopt(3) and malloc_trim(3).
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8  # from malloc.h
_libc: Any = ctypes.CDLL(None) if sys.platform == "linux" else None


def share_memory() -> None:
    """Let threads share one heap, so that one uses what another has freed, and return freed blocks of 128 KiB and more at once.

    128 KiB is where glibc starts, but it raises that threshold, up to 32 MiB, when a larger block is freed. Call it before the
    threads start.
    """
    if hasattr(_libc, "mallopt"):
        _libc.mallopt(_M_ARENA_MAX, 1)
        _libc.mallopt(_M_MMAP_THRESHOLD, 2**17)


def return_memory() -> None:
    """Return freed memory to the system. Takes milliseconds, without the GIL."""
    if hasattr(_libc, "malloc_trim"):
        _libc.malloc_trim(0)
