"""Whether the Triton kernels have passed their checks on this kind of GPU.

`scripts/gpu_checks.sh` runs the kernels' tests on a GPU and writes the outcome to a small JSON file in the user's cache folder;
`net.backend=auto` uses the kernels where that file says that they passed. The file has one entry per GPU name:

    {"NVIDIA H100": {"capability": "9.0", "torch": "2.13.0", "triton": "3.5.0", "kernels": "<sha256>", "problems": []}}

An entry counts for the compute capability, the versions and the kernels' source code that it names, and for no others.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from rogue_net.kernels.cuda import launching

CACHE_VARIABLE = "ROGUE_NET_CACHE_DIR"
FILE = "gpu_checks.json"


class Setup(NamedTuple):
    """Versions for which a check of the kernels counts, besides the name of the GPU."""

    capability: str  # compute capability of the GPU, as "9.0"
    torch: str  # version
    triton: str  # version
    kernels: str  # SHA-256 of the kernels' source files


def report_path() -> Path:
    """Return the path of the report: in $ROGUE_NET_CACHE_DIR, or in `rogue_net` in the user's cache folder."""
    given = os.environ.get(CACHE_VARIABLE)
    if given:
        return Path(given) / FILE
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home())) / "rogue_net" / FILE
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rogue_net" / FILE


def gpu_name(device: torch.device) -> str | None:
    """Return the name of a CUDA device; None if this process has no such device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" and torch.cuda.is_available() else None


def setup_of(device: torch.device) -> Setup:
    """Return the compute capability of a CUDA device, and the versions and kernels of this process."""
    import triton  # takes a second, and is not needed without a report

    major, minor = torch.cuda.get_device_capability(device)
    return Setup(f"{major}.{minor}", torch.__version__, triton.__version__, kernels_digest())


@cache
def kernels_digest() -> str:
    """Return the SHA-256 of all source files of the Triton kernels."""
    files = sorted(Path(launching.__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def write_report(device: torch.device, problems: Sequence[str]) -> Path:
    """Write what the checks found on a CUDA device. Entries of other GPUs are kept, a damaged file is replaced.

    Args:
        device: that was checked.
        problems: sentences; empty if the kernels passed.

    Returns:
        The path of the report.
    """
    name = gpu_name(device)
    assert name is not None
    path = report_path()
    entries = _read(path)
    entries = entries if isinstance(entries, dict) else {}
    entries[name] = {**setup_of(device)._asdict(), "problems": list(problems)}
    path.parent.mkdir(parents=True, exist_ok=True)
    # written aside and renamed: other processes see the old report or the new one
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=FILE, delete=False) as aside:
        json.dump(entries, aside, indent=1)
    os.replace(aside.name, path)
    return path


@cache
def why_unchecked(device: torch.device) -> str | None:
    """Return why the kernels do not count as checked on a CUDA device; None if they passed. Reads the report once per process."""
    name, path = gpu_name(device), report_path()
    if name is None:
        return f"there is no GPU behind {device}"
    entries = _read(path)
    if isinstance(entries, str):
        return f"the report of the kernels' checks, {path}, cannot be read ({entries})"
    entry = entries.get(name)
    if entry is None:
        return f"the Triton kernels have not been checked on this GPU, {name}: {path} has no report on it"
    try:
        checked, problems = Setup(**{field: str(entry[field]) for field in Setup._fields}), list(entry["problems"])
    except (KeyError, TypeError) as error:
        return f"the report of the kernels' checks, {path}, is damaged ({type(error).__name__}: {error})"
    here = setup_of(device)
    if checked.kernels != here.kernels:
        return f"the Triton kernels have changed since they were checked on this GPU, {name}"
    for field in ("capability", "torch", "triton"):
        was, now = getattr(checked, field), getattr(here, field)
        if was != now:
            title = "compute capability" if field == "capability" else field
            return f"the Triton kernels were checked on this GPU, {name}, with {title} {was}, and this is {now}"
    if problems:
        return f"the checks of the Triton kernels failed on this GPU, {name}: {problems[0]}"
    return None


def _read(path: Path) -> dict[str, Any] | str:
    """The entries of a report, none if there is no file; or why it cannot be read."""
    try:
        entries = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return entries if isinstance(entries, dict) else "it is not a table of GPUs"
