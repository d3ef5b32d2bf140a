"""Processes that end when their time does, with all that they have started."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from typing import Any


def run_for(command: Sequence[str], seconds: float, **options: Any) -> int | None:
    """Run a command in a process group of its own; what is still running of it in the end is killed.

    Args:
        command: program and arguments.
        seconds: it may take.
        options: of `subprocess.Popen`.

    Returns:
        Its exit code; None where its time was over.
    """
    process = subprocess.Popen(command, process_group=0, **options)
    try:
        return process.wait(max(0.0, seconds))
    except subprocess.TimeoutExpired:
        return None
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:  # nothing is left of it
            pass
        process.wait()
