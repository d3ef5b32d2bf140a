"""Running processes with a time limit, including their child processes."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from typing import Any


def run_for(command: Sequence[str], seconds: float, **options: Any) -> int | None:
    """Run a command in its own process group, and kill the remaining processes of the group at the end.

    Args:
        command: program and arguments.
        seconds: time limit.
        options: of `subprocess.Popen`.

    Returns:
        The exit code; None after a timeout.
    """
    process = subprocess.Popen(command, process_group=0, **options)
    try:
        return process.wait(max(0.0, seconds))
    except subprocess.TimeoutExpired:
        return None
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:  # the group has ended
            pass
        process.wait()
