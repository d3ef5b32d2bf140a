"""Section `steps`: time of the phases of training, compared with lower bounds from bytes and operations.

The device is synchronised at the end of each phase, which adds time; `unsynchronised_s` is the same loop without. The time of
nested phases is not included in the outer phase.
"""

from __future__ import annotations

import importlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial, wraps
from tempfile import TemporaryDirectory
from typing import Any

import torch

from enn_ppo.rollout import Rollout
from enn_ppo.settings.config import TrainConfig
from enn_ppo.training.learning.graphs.acting import ActGraph
from enn_ppo.training.learning.graphs.learning import MinibatchGraph
from enn_ppo.training.run import Run
from gpu.cases import WORLDS, Knobs, World, begin, start_knobs, train_config
from gpu.cost import Work, floor, network_work, optimizer_bytes
from gpu.memory import bytes_of
from gpu.results import Section
from gpu.timing import peaks, synchronize
from rogue_net import ObsBatch
from rogue_net.rogue_net import ActResult

UPDATES, TOP = 4, 10


def measure(section: Section) -> None:
    """Measure both environments at the start of the search for speed, and at its result if section `headline` has run."""
    reached = section.results.known("machine").get("peaks") or peaks(section.device, tiny=section.tiny)
    fastest = section.results.known("headline").get("fastest", {})
    start = start_knobs(section.device, tiny=section.tiny)
    for world in WORLDS.values():
        # phases can only be separated if environments and policy alternate
        kinds = dict.fromkeys([start, replace(Knobs(**fastest.get(world.name, vars(start))), pipeline=1)])
        for knobs in list(kinds)[-1:] if section.tiny else kinds:
            settings = {"world": world.name, **vars(knobs)}
            section.measured("steps", settings, partial(one, section, world, knobs, reached))


def one(section: Section, world: World, knobs: Knobs, reached: Mapping[str, float]) -> dict[str, Any]:
    """Measure one environment, after one update of warm-up."""
    device, updates = section.device, 1 if section.tiny else UPDATES
    with TemporaryDirectory() as folder:
        config = train_config(world, knobs, device, f"{folder}/run")
        with begin(config) as run:
            rollout = update(run)
            unsynchronised = seconds_of(run, device, updates)
            phases = Phases(device)
            with phases.watching(run):
                for _ in range(updates):
                    with phases.phase("the rest"):
                        update(run)
            seconds = {name: each / updates for name, each in phases.seconds.items()}
            frames = rollout.by_step("values").numel()
            return {
                "frames": frames,
                "entities_per_frame": rollout.frames.obs.num_tokens / frames,
                "unsynchronised_s": unsynchronised,
                "phases_s": seconds,
                "not_found": phases.not_found,
                "floors": floors(config, run, rollout, reached),
                **kernels(run, device),
            }


def update(run: Run) -> Rollout:
    """One iteration of the training loop, without its output."""
    state = run.state
    settings = state.begin_update()
    rollout: Rollout = state.sampler.collect(state.config.rollout.steps)[""]
    learned = state.learner.learn(rollout, settings)
    state.advance({"": learned}, 1.0)
    return rollout


def seconds_of(run: Run, device: torch.device, updates: int) -> float:
    """Mean seconds of an update, with one synchronisation after all updates."""
    synchronize(device)
    started = time.perf_counter()
    for _ in range(updates):
        update(run)
    synchronize(device)
    return (time.perf_counter() - started) / updates


class Phases:
    """Times phases of the training loop by wrapping its functions.

    Attributes:
        seconds: phase -> total time without nested phases.
        not_found: functions that do not exist.
    """

    def __init__(self, device: torch.device) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.not_found: list[str] = []
        self._device = device
        self._phases: list[str] = []
        self._since = 0.0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time within this context for the phase, without nested phases."""
        self._switch()
        self._phases.append(name)
        try:
            yield
        finally:
            self._switch()
            self._phases.pop()

    def _switch(self) -> None:
        synchronize(self._device)
        now = time.perf_counter()
        if self._phases:
            self.seconds[self._phases[-1]] += now - self._since
        self._since = now

    @contextmanager
    def watching(self, run: Run) -> Iterator[None]:
        """Wrap the trainer's functions within this context."""
        learning, state = importlib.import_module("enn_ppo.ppo"), run.state
        with ExitStack() as stack:
            for block in getattr(state.sampler, "blocks", []):
                stack.enter_context(self._replaced(block.vec_env, "act", "environment"))
            for holder, name, phase in (
                (ObsBatch, "from_vec_obs", "copies to the device"),
                (ActResult, "fetch", "copies to the host"),
                (state.model, "act", "act"),
                (ActGraph, "__call__", "act as a graph, with its copies"),
                (MinibatchGraph, "__call__", "minibatches as graphs"),
                (state.sampler, "collect", "rollout, else"),
                (state.learner, "estimate_advantages", "advantages"),
                (state.learner, "measure", "input statistics"),
                (learning.Samples, "gather", "gathering minibatches"),
                (learning, "learn_minibatch", "minibatches"),
                (state.learner, "learn", "update, else"),
            ):
                stack.enter_context(self._replaced(holder, name, phase))
            yield

    @contextmanager
    def _replaced(self, holder: Any, name: str, phase: str) -> Iterator[None]:
        if not hasattr(holder, name):
            self.not_found.append(f"{getattr(holder, '__name__', type(holder).__name__)}.{name}")
            yield
            return
        own = vars(holder).get(name)  # None if the attribute belongs to the class
        function: Callable[..., Any] = getattr(holder, name)

        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.phase(phase):
                return function(*args, **kwargs)

        setattr(holder, name, staticmethod(timed) if isinstance(own, staticmethod) else timed)
        try:
            yield
        finally:
            delattr(holder, name) if own is None else setattr(holder, name, own)


# --- Lower bounds ---


def floors(config: TrainConfig, run: Run, rollout: Rollout, reached: Mapping[str, float]) -> dict[str, Any]:
    """Least seconds of acting and learning in one update, limited by memory traffic or operations.

    Parameters are read once per step of acting, and twice per minibatch besides the optimizer's step; see `gpu/cost.py`.
    """
    net, optim = config.net, config.optim
    lengths = rollout.frames.obs.frames.lengths.tolist()
    parameters = sum(each.numel() for each in run.state.net.parameters())
    size = 2 if net.precision == "bf16" else 4
    features = sum(each.values.nbytes for each in rollout.frames.obs.features.values()) / max(1, sum(lengths))

    def work(kind: str) -> Work:
        return network_work(lengths, net.d_model, net.n_layer, features, kind, size=size)

    minibatches = -(-len(lengths) // optim.batch_size) * optim.epochs
    of_act = work("act") + Work(0, 4 * parameters * config.rollout.steps)
    of_update = work("update").times(optim.epochs) + Work(
        0, minibatches * (optimizer_bytes(parameters) + 8 * parameters)
    )
    found: dict[str, Any] = {"parameters": parameters, "minibatches": minibatches}
    for kind, each in (("act", of_act), ("update", of_update)):
        least = floor(each, reached[net.precision], reached["copy"])
        found[kind] = {
            "gflop": each.flops / 1e9,
            "megabytes": each.bytes / 1e6,
            "flops_s": least.flops_seconds,
            "bytes_s": least.bytes_seconds,
            "floor_s": least.seconds,
            "larger": least.larger,
        }
    found["observations_megabytes"] = sum(bytes_of(rollout).values()) / 1e6
    return found


# --- Kernel by kernel ---


def kernels(run: Run, device: torch.device) -> dict[str, Any]:
    """The ten kernels with the most time in one update, by torch's profiler; on the CPU, operations."""
    on_gpu = device.type == "cuda"
    kinds = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[kinds.CPU, *([kinds.CUDA] if on_gpu else [])]) as profiler:
        started = time.perf_counter()
        update(run)
        synchronize(device)
        seconds = time.perf_counter() - started
    events = [event for event in profiler.key_averages() if not on_gpu or is_kernel(event)]
    times = {event.key: (microseconds(event, on_gpu=on_gpu), event.count) for event in events}
    top = sorted(times.items(), key=lambda item: -item[1][0])[:TOP]
    return {
        "kernels": [{"kernel": name[:160], "us": us, "count": count} for name, (us, count) in top],
        "kernels_us": sum(us for us, _ in times.values()),
        "kernel_launches": sum(count for _, count in times.values()),
        "profiled_s": seconds,
    }


def is_kernel(event: Any) -> bool:
    """Whether the event is a kernel on the GPU, not an annotation that spans several kernels."""
    return "CUDA" in str(event.device_type) and not getattr(event, "is_user_annotation", False)


def microseconds(event: Any, *, on_gpu: bool) -> float:
    """Self time of a profiler's event; the attribute's name depends on torch's version."""
    names = ("self_device_time_total", "self_cuda_time_total") if on_gpu else ("self_cpu_time_total",)
    return float(next(getattr(event, name) for name in names if hasattr(event, name)))
