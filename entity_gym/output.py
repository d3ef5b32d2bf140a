"""Standard output and standard error of the commands."""

from __future__ import annotations

import sys
from contextlib import suppress


def accept_all_characters() -> None:
    """Let standard output replace the characters that its encoding lacks: a Windows console or pipe may have few."""
    with suppress(AttributeError, OSError):  # an object that a caller has put in its place
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]


def tell(text: str) -> None:
    """Print a line to standard error. Where that can no longer be written, the work goes on without it."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)
