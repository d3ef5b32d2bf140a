"""Benchmark of training: environment steps and entities per second, and shares of time; optionally against the ancestor.

python scripts/bench.py train --threads 1
python scripts/bench.py train --threads 2 --batch-size 1024 --peer PYTHON    # an interpreter that has enn-trainer 0.1.16
python scripts/bench.py train --env CartPole-v1 --rejax PYTHON    # an interpreter that has rejax 0.1.3 and gymnax 0.0.9

With `--peer`, both sides train in turns with the same width, layers, heads, epochs, batch size and rollout length, each run in a
separate process; medians are reported. Learning rates are tiny, so that both policies stay random and see equally many entities.
Each side reports its own steps per second, without the first two updates; `share_gemm` is the share of matrix products
(`torch.mm` and `addmm`, by torch's profiler) in the time of training on one thread.

With `--rejax`, the other side is PPO of rejax: a program of JAX from environment to optimizer, in the environment of gymnax with
the same name, on as many cores as `--threads`; its compilation is not measured. Other defaults hold: 64 steps, 4 epochs, one
thread, and one layer of width 16; values come from a network of their own. For CartPole that makes 6,886 parameters of policy and
value network together, beside 9,155 of rejax's two MLPs with two hidden layers of 64. `--width 64 --layers 0`, one hidden layer
of 64, has 1,286.

`fixed_act` and `fixed_step` are what an act and an optimizer step cost whatever their frames: the median time of an act on 1
frame, and of a minibatch of 1 frame, measured alone as `bench.py policy` does, on one thread. `second_core` is the share of a
second core that learning uses: the CPU time of all other threads over that of the thread that learns, which also works on a part
of each minibatch. It is 0 if one core does all, and 1 if two always work together; work of other processes does not change it.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import Measurement, parser, report

NATURAL = dict(os.environ)  # environment for the ancestor, before the next import sets OpenMP variables

from policy_cases import Policy, seconds_per_call, world_frames  # noqa: E402  # before torch: sets OpenMP's environment variables

from enn_ppo import EnvConfig, OptimConfig, RogueNetConfig, RolloutConfig, TrainConfig, train  # noqa: E402
from enn_ppo.checkpoints.policy import select_device  # noqa: E402
from enn_ppo.training.learning.learner import Learned, Learner  # noqa: E402
from enn_ppo.training.tracking.logger import read_metrics  # noqa: E402

import torch  # isort: skip  # noqa: E402

FOLDER = Path(__file__).parent
UNITS = {
    "steps_per_second": "steps/s",
    "entities_per_second": "entities/s",
    "entities_per_frame": "entities",
    "share_env": "of the time",
    "share_act": "of the time",
    "share_update": "of the time",
    "share_gemm": "of the time",
    "second_core": "of learning",
    "fixed_act": "ms",
    "fixed_step": "ms",
}
WARM_UP = 2  # updates that are not measured
#: Defaults beside rejax.
BESIDE_REJAX = {"steps": 64, "epochs": 4, "threads": 1, "width": 16, "layers": 1}


def main() -> None:
    arguments = _arguments()
    if arguments.parse_known_args()[0].rejax:
        arguments.set_defaults(**BESIDE_REJAX)
    given = arguments.parse_args()
    run_of: dict[str, Callable[[Namespace], dict[str, float]]] = {"enn-ppo": _in_turn}
    run_of |= {"ancestor": _ancestor} if given.peer else {"rejax": _rejax} if given.rejax else {}
    sides = list(run_of)
    seen: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    for _ in range(given.rounds if len(sides) > 1 else 1):
        for side in sides:
            seen[side].append(run_of[side](given))
    found = {side: _medians(rounds) for side, rounds in seen.items()}
    found["enn-ppo"] |= fixed_costs(given)
    if given.gemm:
        found["enn-ppo"]["share_gemm"] = gemm_share(given)

    net, optim = config(given, None).net, config(given, None).optim
    settings = {
        "env": given.env,
        "num_envs": given.num_envs,
        "steps": given.steps,
        "threads": given.threads,
        "device": given.device,
        "width": net.d_model,
        "layers": net.n_layer,
        "heads": net.n_head,
        "backend": net.backend,
        "batch_size": optim.batch_size,
        "epochs": optim.epochs,
        "load": os.getloadavg()[
            0
        ],  # the ancestor's waiting threads spin: other work on the machine slows it down greatly
    }
    measurements = [
        Measurement(name, value, UNITS[name], settings | {"side": side})
        for side, figures in found.items()
        for name, value in figures.items()
    ]
    if len(sides) > 1:
        ratio = found["enn-ppo"]["steps_per_second"] / found[sides[1]]["steps_per_second"]
        measurements.append(Measurement("ratio", ratio, "times faster", settings))
    report(measurements, given.json)


def _arguments() -> ArgumentParser:
    arguments = parser(__doc__)
    net, rollout, optim = RogueNetConfig(), RolloutConfig(), OptimConfig()
    arguments.add_argument("--env", default="MineSweeper")
    arguments.add_argument("--num-envs", type=int, default=rollout.num_envs)
    arguments.add_argument("--steps", type=int, default=rollout.steps, help="steps of each environment in a rollout")
    arguments.add_argument("--updates", type=int, default=20, help="measured updates, after two of warm-up")
    arguments.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments.add_argument("--device", default="auto")
    arguments.add_argument("--width", type=int, default=net.d_model)
    arguments.add_argument("--layers", type=int, default=net.n_layer)
    arguments.add_argument("--heads", type=int, default=net.n_head)
    arguments.add_argument("--backend", default=net.backend)
    arguments.add_argument("--batch-size", type=int, default=optim.batch_size)
    arguments.add_argument("--epochs", type=int, default=optim.epochs)
    arguments.add_argument(
        "--gemm", action="store_true", help="also measure the share of matrix products, in a separate run"
    )
    peers = arguments.add_mutually_exclusive_group()
    peers.add_argument("--peer", metavar="PYTHON", help="an interpreter with enn-trainer, to compare with")
    peers.add_argument("--rejax", metavar="PYTHON", help="an interpreter with rejax, to compare with")
    arguments.add_argument("--rounds", type=int, default=5, help="rounds of both sides, with --peer or --rejax")
    return arguments


def config(given: Namespace, run_dir: str | None) -> TrainConfig:
    """The training settings of the benchmark."""
    net = RogueNetConfig(d_model=given.width, n_layer=given.layers, n_head=given.heads, backend=given.backend)
    lr = 1e-6 if given.peer or given.rejax else OptimConfig().lr
    return TrainConfig(
        env=EnvConfig(id=given.env),
        rollout=RolloutConfig(num_envs=given.num_envs, steps=given.steps),
        net=net,
        value_net=net if given.rejax else None,
        optim=OptimConfig(batch_size=given.batch_size, epochs=given.epochs, lr=lr),
        total_timesteps=(given.updates + WARM_UP) * given.num_envs * given.steps,
        num_threads=given.threads,
        device=given.device,
        run_dir=run_dir,
        checkpoint_interval=10**9,
    )


def run(settings: TrainConfig) -> dict[str, float]:
    """Train, and return the medians of the trainer's metrics, and how much of a second core learning uses."""
    with watched_learning() as updates:
        train(settings)
    rows = [
        row | {"entities_per_frame": row["entities_per_second"] / row["steps_per_second"]}
        for row in read_metrics(Path(str(settings.run_dir)) / "metrics.jsonl")[WARM_UP:]
    ]
    figures = {name: statistics.median(row[name] for row in rows) for name in UNITS if name in rows[0]}
    return figures | {"second_core": second_core(updates[WARM_UP:])}


@contextmanager
def watched_learning() -> Iterator[list[tuple[float, float]]]:
    """A list to which each `Learner.learn` adds the CPU time of its thread, and that of all other threads, in seconds."""
    updates: list[tuple[float, float]] = []
    learn = Learner.learn

    def watched(self: Learner, *args: Any, **options: Any) -> Learned:
        own, together = time.thread_time(), time.process_time()
        learned = learn(self, *args, **options)
        own, together = time.thread_time() - own, time.process_time() - together
        updates.append((own, together - own))
        return learned

    Learner.learn = watched  # type: ignore[method-assign]
    try:
        yield updates
    finally:
        Learner.learn = learn  # type: ignore[method-assign]


def second_core(updates: list[tuple[float, float]]) -> float:
    """The CPU time of other threads over that of the learning thread, of all updates together."""
    own, others = (sum(times) for times in zip(*updates, strict=True))
    return max(0.0, others) / own  # clocks of processes and threads differ by some microseconds


def fixed_costs(given: Namespace, seconds: float = 0.3, rounds: int = 5) -> dict[str, float]:
    """Milliseconds of an act and of a minibatch of one frame, on one thread: medians of `rounds` of `seconds` each."""
    device, threads = select_device(given.device), torch.get_num_threads()
    policy = Policy(world_frames(given.env, 1), config(given, None).net, device)
    torch.set_num_threads(1)

    def milliseconds(function: Callable[[], None]) -> float:
        def complete() -> None:
            function()
            if device.type == "cuda":
                torch.cuda.synchronize(device)

        complete()  # compiles
        return 1e3 * statistics.median(seconds_per_call(complete, seconds) for _ in range(rounds))

    found = {"fixed_act": milliseconds(policy.act), "fixed_step": milliseconds(policy.update)}
    torch.set_num_threads(threads)
    return found


def gemm_share(given: Namespace) -> float:
    """Share of matrix products in the time of training on one thread: profiled time over unprofiled total."""
    alone = Namespace(**{**vars(given), "threads": 1})
    with tempfile.TemporaryDirectory() as folder:
        settings = config(alone, f"{folder}/plain")
        steps = (given.updates + WARM_UP) * given.num_envs * given.steps
        seconds = steps / run(settings)["steps_per_second"]
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            train(replace(settings, run_dir=f"{folder}/profiled"))
    names = ("aten::mm", "aten::addmm", "aten::addmm_")
    products = sum(event.self_cpu_time_total for event in profiler.key_averages() if event.key in names)
    return products / 1e6 / seconds


def _in_turn(given: Namespace) -> dict[str, float]:
    """One run of this trainer: in a separate process if compared with another one."""
    if not given.peer and not given.rejax:
        with tempfile.TemporaryDirectory() as folder:
            return run(config(given, f"{folder}/run"))
    with tempfile.TemporaryDirectory() as folder:
        settings = repr(config(given, f"{folder}/run"))
        program = (
            "import json; from benchmarks.train import run;"
            "from enn_ppo.settings.config import *; from rogue_net.config import *;"
            f"print(json.dumps(run({settings})))"
        )
        return _last_line([sys.executable, "-c", program], NATURAL, FOLDER.parent)


def _ancestor(given: Namespace) -> dict[str, float]:
    """One run of the ancestor's trainer."""
    settings = {
        "env.id": given.env,
        "rollout.num_envs": given.num_envs,
        "rollout.steps": given.steps,
        "rollout.processes": 1,
        "total_timesteps": (given.updates + WARM_UP) * given.num_envs * given.steps,
        "net.d_model": given.width,
        "net.n_layer": given.layers,
        "net.n_head": given.heads,
        "optim.bs": given.batch_size,
        "optim.update_epochs": given.epochs,
        "optim.lr": 1e-6,
    }
    overrides = [f"{name}={value}" for name, value in settings.items()]
    command = [given.peer, str(FOLDER / "peers" / "train_peer.py"), str(given.updates + WARM_UP), *overrides]
    return _last_line(command, NATURAL | {"OMP_NUM_THREADS": str(given.threads)}, Path("/"))


def _rejax(given: Namespace) -> dict[str, float]:
    """One run of PPO of rejax."""
    numbers = [
        given.num_envs, given.steps, given.epochs, given.batch_size, given.updates + WARM_UP, given.threads,
    ]  # fmt: skip
    command = [given.rejax, str(FOLDER / "peers" / "rejax_peer.py"), given.env, *map(str, numbers)]
    return _last_line(command, NATURAL, Path("/"))


def _last_line(command: list[str], environment: Mapping[str, str], folder: Path) -> dict[str, float]:
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[:2])} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def _medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(figures[name] for figures in rounds) for name in rounds[0]}
