"""Section `machine`: versions of hardware and software, and peak speeds."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from gpu.results import Section
from gpu.timing import peaks, seconds_per_call, synchronize

#: Libraries that a section or a test needs.
WANTED = (
    "triton",
    "numba",
    "safetensors",
    "pytest",
    "hypothesis",
    "hydra",
    "omegaconf",
    "ray",
    "wandb",
    "tensorboard",
    "pyarrow",
    "openskill",
    "optuna",
    "imageio_ffmpeg",
)


def measure(section: Section) -> None:
    """Write versions, and measure peak speeds."""
    section.put(**versions(section.device))
    section.put(missing=[name for name in WANTED if find_spec(name) is None])
    section.put(peaks=peaks(section.device, tiny=section.tiny))
    section.put(transfers=transfers(section.device, tiny=section.tiny))
    section.put(launch_us=launches(section.device, tiny=section.tiny))


def versions(device: torch.device) -> dict[str, Any]:
    """Names and versions of hardware, driver and libraries."""
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "triton": _triton_version(),
        "cuda": torch.version.cuda,
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "driver": _driver(),
        "gpu": platform.processor() or platform.machine(),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {
            "gpu": properties.name,
            "memory_gib": properties.total_memory / 2**30,
            "multiprocessors": properties.multi_processor_count,
            "capability": list(torch.cuda.get_device_capability(device)),
        }
    return found


def _triton_version() -> str | None:
    if find_spec("triton") is None:
        return None
    import triton

    return str(triton.__version__)


def _driver() -> str | None:
    """Version of the GPU's driver, from nvidia-smi."""
    if shutil.which("nvidia-smi") is None:
        return None
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip() or None


def transfers(device: torch.device, *, tiny: bool) -> dict[str, float]:
    """Copies between the host's pinned memory and the device: bandwidth of large ones, latency of small ones."""
    numbers = 2**12 if tiny else 2**26
    seconds = 0.01 if tiny else 0.3
    here = torch.empty(numbers, pin_memory=device.type == "cuda").normal_()
    there = torch.empty(numbers, device=device)
    small_here, small_there = here[:1024], there[:1024]

    def small_to_device() -> None:
        small_there.copy_(small_here, non_blocking=True)
        synchronize(device)

    def small_to_host() -> None:
        small_here.copy_(small_there, non_blocking=True)
        synchronize(device)

    to_device = seconds_per_call(lambda: there.copy_(here, non_blocking=True), device, seconds)
    to_host = seconds_per_call(lambda: here.copy_(there, non_blocking=True), device, seconds)
    return {
        "to_device_gb_s": 4 * numbers / to_device / 1e9,
        "to_host_gb_s": 4 * numbers / to_host / 1e9,
        "small_to_device_us": 1e6 * seconds_per_call(small_to_device, device, seconds / 3),
        "small_to_host_us": 1e6 * seconds_per_call(small_to_host, device, seconds / 3),
    }


def launches(device: torch.device, *, tiny: bool) -> dict[str, float]:
    """Microseconds of an empty kernel: in a sequence of launches, and alone with synchronisation."""
    x = torch.zeros(32, device=device)
    seconds = 0.01 if tiny else 0.2

    def alone() -> None:
        x.add_(1)
        synchronize(device)

    in_a_row = 1e6 * seconds_per_call(lambda: x.add_(1), device, seconds)
    return {"in_a_row": in_a_row, "alone": 1e6 * seconds_per_call(alone, device, seconds)}
