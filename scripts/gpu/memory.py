"""Section `memory`: bytes per frame of a rollout, peak memory of acting and learning, and growth over updates.

A rollout's bytes are exact, and the same on any device. Peaks are torch's allocations beyond those at the start; on the CPU,
where torch does not count allocations, they are rough figures of the process.
"""

from __future__ import annotations

import dataclasses
import gc
import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from enn_ppo.rollout import Rollout
from enn_ppo.settings.config import EnvConfig
from enn_ppo.training.run import Run
from gpu.cases import WORLDS, World, begin, start_knobs, train_config
from gpu.results import Section
from gpu.timing import synchronize
from rogue_net import ObsBatch, RaggedTensor, RogueNetConfig

UPDATES = 20
CHERRIES = World(
    "CherryPick", EnvConfig(id="CherryPick"), RogueNetConfig(n_layer=1), ent_coef=0.02, score=0.99, asked=0.0
)


def measure(section: Section) -> None:
    """Measure three environments: one with a single action, one with a snake, and one with entity selection."""
    for world in (*WORLDS.values(), CHERRIES):
        section.measured("memory", {"world": world.name}, partial(one, section, world))


def one(section: Section, world: World) -> dict[str, Any]:
    """Measure one environment."""
    device = section.device
    with TemporaryDirectory() as folder:
        config = train_config(world, start_knobs(device, tiny=section.tiny), device, f"{folder}/run")
        with begin(config) as run:
            rollout = run.state.sampler.collect(config.rollout.steps)[""]
            frames = rollout.by_step("values").numel()
            parts = bytes_of(rollout)
            found = {
                "frames": frames,
                "entities_per_frame": rollout.frames.obs.num_tokens / frames,
                "bytes_per_frame": {name: size / frames for name, size in parts.items()},
                "bytes_per_frame_all": sum(parts.values()) / frames,
            }
            found |= peaks(run, rollout, device)
            del rollout
            return found | growth(section, run)


# --- Rollouts ---


def bytes_of(rollout: Rollout) -> dict[str, int]:
    """Bytes of a rollout's tensors and arrays by part; shared memory counts for the first part."""
    seen: set[int] = set()
    parts: dict[str, int] = {}
    for part, array in (*_of_observations(rollout.frames.obs), *_of_others(rollout)):
        address = array.data_ptr() if isinstance(array, torch.Tensor) else array.ctypes.data
        size = array.nbytes
        if size and address not in seen:
            parts[part] = parts.get(part, 0) + size
            seen.add(address)
    return parts


def _of_observations(obs: ObsBatch) -> Iterator[tuple[str, Any]]:
    for ragged in obs.features.values():
        yield "features", ragged.values
        yield "offsets", ragged.offsets
    for ragged in obs.visible.values():
        yield "visibility", ragged.values
        yield "offsets", ragged.offsets
    for mask in obs.action_masks.values():
        for field in dataclasses.fields(mask):
            value = getattr(mask, field.name)
            if isinstance(value, torch.Tensor):
                yield "masks", value
            elif isinstance(value, RaggedTensor):
                yield "masks" if field.name == "pairs" else "actors and choices", value.values
                yield "offsets", value.offsets


def _of_others(rollout: Rollout) -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(rollout.frames):
        value = getattr(rollout.frames, field.name)
        name = field.name.replace("_", "-")
        if isinstance(value, torch.Tensor):
            yield name, value
        elif isinstance(value, Mapping):  # of actions
            for each in value.values():
                if isinstance(each, tuple) and isinstance(each[0], torch.Tensor):
                    yield name, each[0]
                    yield "offsets", each[1]


# --- Peaks ---


def peaks(run: Run, rollout: Rollout, device: torch.device) -> dict[str, float]:
    """Peak bytes per frame of a batch of acting, and of a minibatch of learning."""
    config, state = run.state.config, run.state
    first = torch.arange(config.rollout.num_envs, device=device)
    before = Allocated.begin(device)
    state.net.act(rollout.frames.obs[first])
    act = before.peak() / len(first)
    settings = state.begin_update()
    before = Allocated.begin(device)
    state.learner.learn(rollout, settings)
    return {"act_peak_bytes_per_frame": act, "update_peak_bytes_per_frame": before.peak() / config.optim.batch_size}


class Allocated:
    """Allocated memory at the start of a measurement."""

    def __init__(self, device: torch.device, before: int) -> None:
        self._device, self._before = device, before

    @staticmethod
    def begin(device: torch.device) -> Allocated:
        """Reset the peak, and start a measurement."""
        gc.collect()
        synchronize(device)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        elif os.access("/proc/self/clear_refs", os.W_OK):
            Path("/proc/self/clear_refs").write_text("5")  # resets the process's peak
        return Allocated(device, allocated(device))

    def peak(self) -> int:
        """Peak since the start, minus the memory at the start, in bytes."""
        synchronize(self._device)
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device) - self._before
        return max(0, _status("VmHWM") - self._before)


def allocated(device: torch.device) -> int:
    """Bytes of tensors on the device; on the CPU, of the whole process."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else _status("VmRSS")


def _status(name: str) -> int:
    """A field of /proc/self/status in bytes; 0 without /proc."""
    path = Path("/proc/self/status")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(name)), 0)


def growth(section: Section, run: Run) -> dict[str, Any]:
    """Memory after each of several updates, in MiB, which should be constant."""
    device, steps, state, after, reserved = section.device, run.state.config.rollout.steps, run.state, [], []
    updates = 4 if section.tiny else UPDATES
    for _ in range(updates):
        settings = state.begin_update()
        state.advance(state.learn(state.sampler.collect(steps), settings), 1.0)
        synchronize(device)
        after.append(allocated(device) / 2**20)
        reserved.append(torch.cuda.memory_reserved(device) / 2**20 if device.type == "cuda" else after[-1])
    half = updates // 2
    return {
        "after_update_mib": after,
        "reserved_mib": reserved,
        "grown_mib": max(after[half:]) - max(after[:half]),
        "reserved_grown_mib": max(reserved[half:]) - max(reserved[:half]),
    }
