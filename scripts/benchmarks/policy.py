"""Benchmark of acting and learning, optionally against the ancestor.

python scripts/bench.py policy --sections default               # what training does at its default sizes, in a minute
python scripts/bench.py policy --json policy.json
python scripts/bench.py policy --sections peer --peer PYTHON    # an interpreter that has enn-trainer 0.1.16

`act` samples by keyed noise, as rollouts do, and includes converting observations and actions; `update` is one minibatch as
training learns it: by the compiled step where it can be, else by autograd (evaluation, losses, gradient, clipping, optimizer
step). Compared measurements alternate, and medians are reported, so that a disturbance of the machine affects all of them.
`GFLOP/s` counts the transformer's matrix products alone, over the whole time of the call; `of peak` is its share of the speed of
`torch.mm` of large square matrices, measured in the same run with as many threads.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import Measurement, parser, report

NATURAL = dict(os.environ)  # environment for the ancestor, before the next import sets OpenMP variables

from policy_cases import (  # noqa: E402
    HEADS,
    Frames,
    Policy,
    gemm_gflops,
    minesweeper_frames,
    ragged_frames,
    save_frames,
    seconds_per_call,
)

from enn_ppo.settings.config import OptimConfig, RolloutConfig  # noqa: E402
from rogue_net import RogueNetConfig  # noqa: E402
from rogue_net.config import RelposConfig  # noqa: E402

import torch  # isort: skip  # noqa: E402

FOLDER = Path(__file__).parent
KINDS = ("act", "update")
SECTIONS = ("default", "policy", "shapes", "relpos", "peer")


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--sections", nargs="*", choices=SECTIONS, default=SECTIONS)
    arguments.add_argument("--backends", nargs="*", default=["reference", "fused"])
    arguments.add_argument("--widths", nargs="*", type=int, choices=HEADS, default=list(HEADS))
    arguments.add_argument("--threads", nargs="*", type=int, default=[1, 2])
    arguments.add_argument("--act-frames", type=int, default=RolloutConfig().num_envs, help="of section default")
    arguments.add_argument("--update-frames", type=int, default=OptimConfig().batch_size, help="of section default")
    arguments.add_argument("--tokens", type=int, default=6144, help="entities of all frames of a batch together")
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--seconds", type=float, default=0.3, help="of each of the rounds' measurements")
    arguments.add_argument(
        "--quick", action="store_true", help="width 32, one thread, small frames, three short rounds"
    )
    arguments.add_argument("--peer", metavar="PYTHON", help="an interpreter that has enn-trainer, to compare with")
    given = arguments.parse_args()
    if given.quick:
        given.widths, given.threads, given.rounds, given.seconds = [32], [1], 3, 0.1
    load = os.getloadavg()[0]  # should be near 0: other work on the same cores invalidates the results
    measurements = [Measurement("cores", os.cpu_count() or 1, "cores", {"load": load, "torch": torch.__version__})]
    if "default" in given.sections:
        measurements += bench_default(given)
    if "policy" in given.sections:
        measurements += bench_policy(given)
    if "shapes" in given.sections:
        measurements += bench_shapes(given)
    if "relpos" in given.sections:
        measurements += bench_relpos(given)
    if "peer" in given.sections and given.peer:
        measurements += bench_peer(given)
    report(measurements, given.json)


# --- Taking turns ---


def medians(functions: Mapping[Any, Callable[[], float]], rounds: int) -> dict[Any, float]:
    """The median of each function's results over rounds, in each of which every function runs; the first round is a warm-up."""
    values: dict[Any, list[float]] = {key: [] for key in functions}
    for number in range(rounds + 1):
        for key, function in functions.items():
            value = function()
            if number:
                values[key].append(value)
    return {key: statistics.median(seen) for key, seen in values.items()}


def timed(policy: Policy, kind: str, threads: int, seconds: float) -> Callable[[], float]:
    """A function that measures a call of `policy.act` or `policy.update`, in seconds."""

    def measure() -> float:
        torch.set_num_threads(threads)
        return seconds_per_call(getattr(policy, kind), seconds)

    return measure


def peak(threads: int, seconds: float) -> Callable[[], float]:
    """A function that measures the machine's peak GFLOP/s."""

    def measure() -> float:
        torch.set_num_threads(threads)
        return gemm_gflops(seconds)

    return measure


def network(width: int, backend: str, *, layers: int = 2, relpos: RelposConfig | None = None) -> RogueNetConfig:
    relpos = relpos or RelposConfig()
    return RogueNetConfig(d_model=width, n_head=HEADS[width], n_layer=layers, backend=backend, relpos=relpos)


# --- What training does at its default sizes ---


def bench_default(given: Namespace) -> list[Measurement]:
    """Measure acting and one minibatch of the default network in MineSweeper, at the default batch sizes.

    `compiled` is `net.backend=auto`, which training takes: one compiled call for each thread. `modules` is
    `net.backend=reference`: torch's operations, and autograd.
    """
    sizes = {"act": given.act_frames, "update": given.update_frames}
    backends = {"compiled": "auto", "modules": "reference"}
    policies = {
        (kind, side): Policy(minesweeper_frames(size), RogueNetConfig(backend=backend))
        for kind, size in sizes.items()
        for side, backend in backends.items()
    }
    assert all(policy.compiled == (side == "compiled") for (_, side), policy in policies.items())
    runs = {
        (kind, side, threads): timed(policy, kind, threads, given.seconds)
        for threads in given.threads
        for (kind, side), policy in policies.items()
    }
    measured, found = medians(runs, given.rounds), []
    for (kind, side, threads), seconds in measured.items():
        settings = {"frames": sizes[kind], "threads": threads, "side": side}
        rates = {
            "us/frame": round(1e6 * seconds / sizes[kind], 2),
            "entities": policies[kind, side].batch.num_tokens,
        }
        found.append(Measurement(f"default_{kind}", 1e3 * seconds, "ms", settings | rates))
        if side == "compiled":
            gain = measured[kind, "modules", threads] / seconds
            found.append(Measurement(f"default_{kind}_gain", gain, "times faster", settings))
    return found


# --- Widths, sizes of frames, relative positions, threads, backends ---


def bench_policy(given: Namespace) -> list[Measurement]:
    """Measure every combination of settings, one width after the other."""
    measurements = []
    for width in given.widths:
        for frames in _sizes(given.tokens, given.quick):
            for relpos in (False, True):
                measurements += _compare_backends(given, width, frames, relpos)
                gc.collect()
    return measurements


def _sizes(tokens: int, quick: bool) -> list[Frames]:
    """Frames of several sizes, with about `tokens` entities in all."""

    def drawn(low: int, high: int) -> list[int]:
        return np.random.default_rng(low).integers(low, high + 1, 2 * tokens // (low + high)).tolist()

    small = ragged_frames("2-10", drawn(2, 10))
    if quick:
        return [small]
    middle, mixed = ragged_frames("8-56", drawn(8, 56)), ragged_frames("1-200", drawn(1, 200))
    return [small, middle, mixed, minesweeper_frames(tokens // 6)]


def _compare_backends(given: Namespace, width: int, frames: Frames, relpos: bool) -> list[Measurement]:
    policies = {
        backend: Policy(frames, network(width, backend, relpos=frames.relpos() if relpos else None))
        for backend in given.backends
    }
    runs: dict[Any, Callable[[], float]] = {threads: peak(threads, given.seconds) for threads in given.threads}
    for threads in given.threads:
        for backend, policy in policies.items():
            for kind in KINDS:
                runs[kind, backend, threads] = timed(policy, kind, threads, given.seconds)
    measured = medians(runs, given.rounds)

    found = []
    for key in runs:
        if isinstance(key, tuple):
            kind, backend, threads = key
            settings = {"width": width, "frames": frames.name, "relpos": relpos, "threads": threads, "backend": backend}
            rates = _rates(policies[backend], frames, kind, measured[key], measured[threads])
            found.append(Measurement(kind, 1e3 * measured[key], "ms", settings | rates))
            if threads == 2 and 1 in given.threads:
                gain = measured[kind, backend, 1] / measured[key]
                found.append(Measurement(f"{kind}_threads", gain, "2 over 1", settings))
    return found


def _rates(policy: Policy, frames: Frames, kind: str, seconds: float, peak_gflops: float) -> dict[str, Any]:
    gflops = policy.gflop(kind) / seconds
    return {
        "frames/s": round(len(frames.obs) / seconds),
        "entities/s": round(frames.obs.num_entities / seconds),
        "GFLOP/s": round(gflops, 1),
        "of peak": round(gflops / peak_gflops, 3),
    }


# --- Cost per entity in frames of different sizes ---


def bench_shapes(given: Namespace) -> list[Measurement]:
    """Measure equal numbers of entities in small and in large frames, and one crowded frame among many small ones."""
    small, large = ragged_frames("8", [8] * 1024), ragged_frames("128", [128] * 64)
    few, crowd = ragged_frames("5", [5] * 1000, select=True), ragged_frames("500", [500], select=True)
    both = ragged_frames("5 and 500", [5] * 500 + [500] + [5] * 500, select=True)
    found = []
    for backend in given.backends:
        policies = {frames.name: Policy(frames, network(32, backend)) for frames in (small, large, few, crowd, both)}
        runs = {
            (kind, name): timed(policy, kind, 1, given.seconds) for name, policy in policies.items() for kind in KINDS
        }
        measured = medians(runs, given.rounds)
        settings = {"width": 32, "threads": 1, "backend": backend}
        for (kind, name), seconds in measured.items():
            entities = policies[name].batch.num_tokens
            each = {"frames": name, "us/entity": round(1e6 * seconds / entities, 3)}
            found.append(Measurement(kind, 1e3 * seconds, "ms", settings | each))
        for kind in KINDS:
            found.append(
                Measurement(f"{kind}_entity", measured[kind, "128"] / measured[kind, "8"], "128 over 8", settings)
            )
            apart = measured[kind, "5"] + measured[kind, "500"]
            found.append(Measurement(f"{kind}_crowd", measured[kind, "5 and 500"] / apart, "over apart", settings))
    return found


# --- Relative positions: time and memory of a network with one layer ---


def bench_relpos(given: Namespace) -> list[Measurement]:
    """Measure minibatches of a network with one layer and relative positions: 32 frames with growing numbers of entities."""
    found = []
    sizes = (16, 64) if given.quick else (16, 32, 64, 128, 256)
    for width in given.widths[:1] if given.quick else (32, 128):
        for entities in sizes:
            runs = {}
            for backend in given.backends:
                alone = _layer_alone(width, entities, backend, given)
                settings = {"width": width, "entities": entities, "frames": 32, "threads": 1, "backend": backend}
                found.append(Measurement("relpos_layer", 1e3 * alone["seconds"], "ms", settings))
                found.append(Measurement("relpos_memory", alone["mebibytes"], "MiB at peak", settings))
                runs[backend] = alone["seconds"]
            if {"reference", "fused"} <= set(runs):
                settings = {"width": width, "entities": entities}
                gain = runs["reference"] / runs["fused"]
                found.append(Measurement("relpos_gain", gain, "times faster", settings))
    return found


def _layer_alone(width: int, entities: int, backend: str, given: Namespace) -> dict[str, float]:
    """Measure in a separate process, since peak memory is counted per process."""
    call = f"relpos_layer({width}, {entities}, {backend!r}, {given.rounds}, {given.seconds})"
    command = [sys.executable, "-c", f"from benchmarks import policy; policy.{call}"]
    done = subprocess.run(command, cwd=FOLDER.parent, env=NATURAL, stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def relpos_layer(width: int, entities: int, backend: str, rounds: int, seconds: float) -> None:
    """Print time and memory of a minibatch of a network with one layer."""
    torch.set_num_threads(1)

    def layer(lengths: Sequence[int]) -> Callable[[], None]:
        frames = ragged_frames("", lengths)
        return Policy(frames, network(width, backend, layers=1, relpos=frames.relpos())).update

    layer([2, 3])()  # compiles kernels
    run = layer([entities] * 32)
    before = _peak_mebibytes(reset=True)
    run()
    mebibytes = _peak_mebibytes() - before
    found = medians({"": lambda: seconds_per_call(run, seconds)}, rounds)[""]
    print(json.dumps({"seconds": found, "mebibytes": mebibytes}))


def _peak_mebibytes(*, reset: bool = False) -> float:
    """Peak memory of this process; on Linux, since the last `reset`."""
    if reset and sys.platform == "linux":
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")
    if sys.platform == "linux":
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # bytes on macOS


# --- The ancestor ---


class Peer:
    """The ancestor's policy in a separate process, which measures on request."""

    def __init__(self, python: str, frames: Path, width: int, threads: int) -> None:
        command = [python, "-W", "ignore", str(FOLDER / "peers" / "policy_peer.py"), str(frames)]
        numbers = [width, HEADS[width], 2, threads]
        self.process = subprocess.Popen(
            [*command, *map(str, numbers)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=NATURAL,
            cwd="/",
        )
        self.size = self._answer()

    def measure(self, kind: str, seconds: float) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{kind} {seconds}\n")
        self.process.stdin.flush()
        return float(self._answer())

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("the ancestor's process ended; what it said is above")
        return json.loads(line)


def bench_peer(given: Namespace) -> list[Measurement]:
    """Compare with the ancestor on the same 1,024 frames of MineSweeper, with two layers and one thread."""
    frames, found = minesweeper_frames(1024), []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "frames.npz"
        save_frames(frames, path)
        for width in (32, 128):
            if width in given.widths:
                found += _beside_peer(given, frames, path, width)
    return found


def _beside_peer(given: Namespace, frames: Frames, path: Path, width: int) -> list[Measurement]:
    peer = Peer(given.peer, path, width, threads=1)
    policies = {backend: Policy(frames, network(width, backend)) for backend in given.backends}
    runs: dict[Any, Callable[[], float]] = {"peak": peak(1, given.seconds)}
    for kind in KINDS:
        runs[kind, "ancestor"] = lambda kind=kind: peer.measure(kind, given.seconds)
        for backend, policy in policies.items():
            runs[kind, backend] = timed(policy, kind, 1, given.seconds)
    measured = medians(runs, max(given.rounds, 5))
    peer.close()

    sizes = {"ancestor": peer.size["entities"] / peer.size["frames"]}
    found = []
    for key in runs:
        if isinstance(key, tuple):
            kind, who = key
            settings = {"width": width, "frames": "MineSweeper", "threads": 1, "side": who}
            settings["entities/frame"] = round(sizes.get(who, frames.entities_per_frame), 2)
            rates = _rates(next(iter(policies.values())), frames, kind, measured[key], measured["peak"])
            found.append(Measurement(f"peer_{kind}", 1e3 * measured[key], "ms", settings | rates))
            if who != "ancestor":
                ratio = measured[kind, "ancestor"] / measured[key]
                found.append(Measurement(f"peer_{kind}_ratio", ratio, "times faster", settings))
    return found
