"""Benchmark of the host's work per vector step when a policy acts on a GPU; needs no GPU.

python scripts/bench_host.py
python scripts/bench_host.py --num-envs 512 --json host.json

One vector step is one step of all environments. Counted is everything that Python does between receiving an observation and
handing actions to the environments (`EnvBlock.observe` and `EnvBlock.act` of `enn_ppo/rollout.py`), in microseconds of one
thread: the episode statistics, packing the observation into one buffer and enqueuing its copy, enqueuing the copy of the
actions and making buffers of them. Not counted are the network (a stand-in returns actions of the right shapes, and its time is
taken off; so is the replay of a CUDA graph), the environments' step (observations of the compiled environment are recorded
before, and played again), and waiting for the device.

The stand-in for the GPU is the CPU: its tensors take the way of those on a GPU, so that they are packed, copied in one go and
fetched. Operations on them cost the host about what it costs to launch them on CUDA, some microseconds each, and `operations`
counts them; most are views, which launch nothing. Copies between host and device, and of buffers on the device, are replaced by
nothing: enqueuing one takes some microseconds on CUDA. Pinned memory is replaced by memory that is used again, as torch's
allocator of pinned memory does.

    eager      without CUDA graphs (`compile=off`)
    graph      with them (`compile=auto`): observations are padded to the sizes of the graph

Reported of each: `host`, microseconds per step, and its parts `episodes` (statistics of episodes), `to_device` and
`to_host`; `operations`, torch's operations per step; `packed`, arrays that are copied on the host into the buffer, and their
bytes; `transfers`, copies between host and device, and their bytes in each direction. Of the times the tenth of the steps that
were fastest is left out, and the next one counts: other work on the machine only adds to them.
"""

from __future__ import annotations

import statistics
import time
from argparse import Namespace
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
from benchmark import Measurement, parser, report
from torch.utils._python_dispatch import TorchDispatchMode

import enn_ppo.rollout
from enn_ppo.rollout import EnvBlock
from enn_ppo.training.learning.graphs import acting
from entity_gym.actions.choices import random_actions
from entity_gym.batch.vec_obs import VecObs
from entity_gym.registry import make
from rogue_net import ActResult, ObsBatch, RaggedTensor
from rogue_net.batch import crossing, padding

import torch  # isort: skip
from torch import Tensor  # isort: skip

GPU = torch.device("cpu")  # stands for it
WARM_UP = 5  # steps
HOW = ("eager", "graph")


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--env", default="MineSweeper")
    arguments.add_argument("--num-envs", type=int, default=2048)
    arguments.add_argument("--steps", type=int, default=200)
    arguments.add_argument("--how", nargs="*", choices=HOW, default=HOW)
    given = arguments.parse_args()
    torch.set_num_threads(1)
    seen = recorded(given.env, given.num_envs)
    report([each for how in given.how for each in bench(given, seen, how)], given.json)


def recorded(env: str, num_envs: int, steps: int = 12) -> list[VecObs]:
    """Observations of consecutive steps with random actions, after some steps that are left out."""
    rng, seen = np.random.default_rng(0), []
    with make(env, num_envs=num_envs, seed=0) as pool:
        obs = pool.reset(0)
        for _ in range(2 * steps):
            obs = pool.act(random_actions(obs, rng, pool.action_space()))
            seen.append(obs)
    return seen[steps:]


def bench(given: Namespace, seen: Sequence[VecObs], how: str) -> list[Measurement]:
    """Measure one way of acting: time first, then counts, which slow everything down."""
    with stand_in() as counts:
        times = play(seen, given.steps, how)
        counts.clear()
        with Operations(counts):
            play(seen, steps := 10, how, counts)
    settings = {"env": given.env, "num_envs": given.num_envs, "how": how}
    settings["episodes ended"] = round(statistics.fmean(int(obs.done.sum()) for obs in seen))
    found = [Measurement(name, value, "us per step", settings) for name, value in times.items()]
    for name, unit in UNITS.items():
        found.append(Measurement(name, counts[name] / steps, unit, settings))
    return found


UNITS = {
    "operations": "per step",
    "packed": "arrays",
    "packed_bytes": "bytes",
    "transfers": "per step",
    "to_device_bytes": "bytes",
    "to_host_bytes": "bytes",
}


class Clock:
    """Sums up the time of parts of a step."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that adds its time to the part `name`."""

        def run(*arguments: Any, **options: Any) -> Any:
            started = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                self.seconds[name] += time.perf_counter() - started

        return run


def play(seen: Sequence[VecObs], steps: int, how: str, counts: defaultdict[str, int] | None = None) -> dict[str, float]:
    """Play a rollout, and return the median microseconds of a step, and of its parts.

    Args:
        seen: observations to play, again and again.
        steps: to measure.
        how: `eager` or `graph`.
        counts: cleared after the warm-up, if given.
    """
    clock, net = Clock(), Net()
    block = EnvBlock(Replayed(seen), {"": net}, GPU, 0)  # type: ignore[arg-type]
    with ExitStack() as stack:
        if how == "graph":
            graph = acting.ActGraph(net, GPU)
            block._graphs = {"": graph}
            stack.enter_context(patch.object(acting, "Recording", lambda act, device: clock.timed("net", Replay(act))))
            stack.enter_context(
                patch.object(acting.ActGraph, "__call__", clock.timed("to_device", acting.ActGraph.__call__))
            )
        else:
            net.act = clock.timed("net", net.act)  # type: ignore[method-assign]
            stack.enter_context(patch.object(ObsBatch, "from_vec_obs", clock.timed("to_device", ObsBatch.from_vec_obs)))
        fetch = clock.timed("to_host", enn_ppo.rollout.fetch_actions)
        stack.enter_context(patch.object(enn_ppo.rollout, "fetch_actions", fetch))
        block.tracker.step = clock.timed("episodes", block.tracker.step)  # type: ignore[method-assign]
        return _steps(block, steps, clock, counts)


def _steps(block: EnvBlock, steps: int, clock: Clock, counts: defaultdict[str, int] | None) -> dict[str, float]:
    rows: list[dict[str, float]] = []
    block.reset()
    block.begin(WARM_UP + steps)
    for number in range(WARM_UP + steps):
        if number == WARM_UP and counts is not None:
            counts.clear()
        clock.seconds.clear()
        started = time.perf_counter()
        actions = block.act()
        acted = time.perf_counter()
        obs = block.vec_env.act(actions)
        received = time.perf_counter()
        block.observe(obs, 0.0)
        ended = time.perf_counter()
        parts = clock.seconds
        if "graph" in str(type(next(iter(block._graphs.values()), None))).lower():
            parts["to_device"] -= parts["net"]  # the replay is a part of it
        rows.append({"host": ended - received + acted - started - parts.pop("net"), **parts})
    return {name: 1e6 * float(np.quantile([row[name] for row in rows[WARM_UP:]], 0.1)) for name in rows[0]}


class Replayed:
    """A pool that shows recorded observations, whatever it is asked to do, and each time as if nobody had read it before."""

    def __init__(self, seen: Sequence[VecObs]) -> None:
        self._seen, self._step = seen, 0

    def __len__(self) -> int:
        return len(self._seen[0])

    def reset(self, *_: object) -> VecObs:
        return self._seen[0]

    def act(self, actions: object) -> VecObs:
        self._step += 1
        obs = self._seen[self._step % len(self._seen)]
        # compiled pools make reports when they are asked for them, and keep them
        return replace(obs, end_of_episode_info=copy(obs.end_of_episode_info))


class Net:
    """A policy that returns tensors of the right shapes."""

    def act(self, batch: ObsBatch, state: object = None, **_: object) -> ActResult:
        actors = {name: mask.actors for name, mask in batch.action_masks.items()}
        return ActResult(
            {name: RaggedTensor(torch.empty_like(each.values), each.offsets) for name, each in actors.items()},
            {name: torch.empty(len(each.values), device=GPU) for name, each in actors.items()},
            torch.empty(len(batch), device=GPU),
        )


class Replay:
    """A CUDA graph's replay: returns the same tensors every time."""

    def __init__(self, act: Callable[[], ActResult]) -> None:
        self._result = act()

    def __call__(self) -> ActResult:
        return self._result


class Operations(TorchDispatchMode):
    """Counts torch's operations."""

    def __init__(self, counts: defaultdict[str, int]) -> None:
        super().__init__()
        self._counts = counts

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._counts["operations"] += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def stand_in() -> Iterator[defaultdict[str, int]]:
    """Let the CPU stand for a GPU: copies are counted, and copy nothing."""
    counts: defaultdict[str, int] = defaultdict(int)
    kept: dict[int, Tensor] = {}

    def staging(size: int, device: torch.device) -> Tensor:
        room = 1 << max(size - 1, 1).bit_length()
        if room not in kept:
            kept[room] = torch.zeros(room, dtype=torch.uint8)
        return kept[room][:size]

    def enqueue(there: Tensor, host: Tensor) -> None:
        counts["transfers"] += 1
        counts["to_device_bytes"] += host.nbytes

    def fetch(host: Tensor, flat: Tensor) -> None:
        counts["transfers"] += 1
        counts["to_host_bytes"] += host.nbytes

    def copy_array(out: np.ndarray, array: np.ndarray) -> None:
        counts["packed"] += 1
        counts["packed_bytes"] += array.nbytes
        np.copyto(out, array)

    replaced = {"is_host": lambda device: False, "_staging": staging, "_enqueue": enqueue, "_fetch": fetch}
    replaced["copy_array"] = copy_array
    with ExitStack() as stack:
        stack.enter_context(patch.multiple(crossing, **replaced))
        stack.enter_context(patch.object(padding, "copy_array", copy_array))
        stack.enter_context(patch.object(acting, "copy_there", lambda into, source: None))
        yield counts


if __name__ == "__main__":
    main()
