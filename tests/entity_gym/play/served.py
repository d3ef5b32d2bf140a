"""A command that plays in the browser, as a process."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


class Command:
    """A running command; `url` is the address that it prints in its second line."""

    def __init__(self, module: str, *arguments: str) -> None:
        # BROWSER: nothing is to be opened but by the test.
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments, "--browser", "--seed", "5"],
            cwd=ROOT,
            env={**os.environ, "BROWSER": "true", "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.said = [self.process.stdout.readline(), self.process.stdout.readline()]
        found = re.match(r"http://127\.0\.0\.1:(\d+)/", self.said[1])
        assert found is not None, (self.said, self.process.communicate())
        self.url, self.port = found[0], int(found[1])

    def end(self) -> tuple[int, str]:
        """Press Ctrl-C, if it still runs; returns its exit code and errors."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors
