"""Python programs in processes of their own, and file systems that can be full."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[1]


def start(
    *arguments: object,
    cwd: Path = ROOT,
    stdout: int | IO[Any] = subprocess.PIPE,
    stderr: int = subprocess.PIPE,
    **environment: str,
) -> subprocess.Popen[str]:
    """Start Python with these arguments and more of an environment; it imports from this checkout."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    paths = [environment.pop("PYTHONPATH", ""), str(ROOT), inherited.get("PYTHONPATH", "")]
    own = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env=inherited | own | environment,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        text=True,
    )


def run(
    *arguments: object, cwd: Path = ROOT, timeout: float = 300.0, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Start Python as `start` does, and wait for its end, at most `timeout` seconds."""
    with start(*arguments, cwd=cwd, **environment) as process:
        try:
            output, errors = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def output_of(program: str, *arguments: object, **environment: str) -> str:
    """Return what a program given as text has printed; it must not fail."""
    done = run("-c", program, *arguments, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def is_running(pid: int) -> bool:
    """True if a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@contextmanager
def mounted(folder: Path, options: str = "size=200m") -> Iterator[Path | None]:
    """A tmpfs in a folder; None if file systems cannot be mounted here."""
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        yield None
        return
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
