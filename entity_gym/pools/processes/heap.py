"""Memory of the C library, which keeps what is freed: glibc alone can be told otherwise, and elsewhere nothing happens.

Source: the manual page malloc_trim(3).
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

_libc: Any = ctypes.CDLL(None) if sys.platform == "linux" else None


def return_memory() -> None:
    """Return freed memory to the system. Takes milliseconds, without the GIL."""
    if hasattr(_libc, "malloc_trim"):
        _libc.malloc_trim(0)
