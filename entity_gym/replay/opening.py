"""Open a page in the browser, where there is one to be seen."""

from __future__ import annotations

import os
import sys
import threading
import webbrowser
from contextlib import suppress


def open_in_browser(address: str) -> threading.Thread:
    """Open an address where there is a display, or where the variable BROWSER names a browser; elsewhere do nothing.

    Returns:
        The daemon thread that opens it. A browser in the terminal returns only when it is closed, so a server goes on without
        it. A command that has nothing else to do joins the thread, which would end with it.
    """
    thread = threading.Thread(target=_open, args=(address,), name="browser", daemon=True)
    thread.start()
    return thread


def _open(address: str) -> None:
    chosen = any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
    if chosen or sys.platform in ("darwin", "win32"):
        with suppress(webbrowser.Error, OSError):
            webbrowser.open(address)
