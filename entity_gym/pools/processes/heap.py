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
    """Let threads share one heap, so that one uses what another has freed; blocks of 1 MiB and more lie outside of it.

    Call it before the threads start.
    """
    if hasattr(_libc, "mallopt"):
        _libc.mallopt(_M_ARENA_MAX, 1)
        _libc.mallopt(_M_MMAP_THRESHOLD, 2**20)


def return_memory() -> None:
    """Return freed memory to the system. Takes milliseconds, without the GIL."""
    if hasattr(_libc, "malloc_trim"):
        _libc.malloc_trim(0)
