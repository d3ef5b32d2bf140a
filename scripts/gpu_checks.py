"""Checks on a machine with a GPU: the network against the CPU, and a training run with its speed and its peak memory.

python scripts/gpu_checks.py                       # some minutes; exits 1 if a difference is too large, 2 without a GPU
python scripts/gpu_checks.py --precision tf32
python scripts/gpu_checks.py --device cpu --timesteps 2048 --num-envs 16    # whether the script works, without a GPU
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from policy_cases import Frames, minesweeper_frames, ragged_frames  # before torch: sets OpenMP's environment variables

from enn_ppo import EnvConfig, OptimConfig, RolloutConfig, TrainConfig, train
from enn_ppo.training.tracking.logger import read_metrics
from rogue_net import FrameKeys, ObsBatch, RaggedTensor, RogueNet, RogueNetConfig, keyed
from rogue_net.config import RelposConfig

import torch  # isort: skip

#: The largest error that passes, by precision: the norm of the difference to the CPU's numbers, over their own norm.
LIMITS = {"fp32": 1e-4, "tf32": 2e-2, "bf16": 5e-2}
#: As many frames are played in 1,000 as may draw another action than on the CPU: where two choices are equally likely.
MOST_OTHER_ACTIONS = {"fp32": 1, "tf32": 20, "bf16": 50}
WARM_UP = 2  # updates whose speed is not counted


class Numbers(NamedTuple):
    """Actions, outputs and gradient of a network in some frames, on the CPU."""

    actions: dict[str, RaggedTensor]  # drawn by keyed noise
    outputs: torch.Tensor  # log-probs, entropies and values of the CPU's actions
    gradient: torch.Tensor  # of all parameters


def compute(frames: Frames, config: RogueNetConfig, device: torch.device, given: Numbers | None = None) -> Numbers:
    """Act, and evaluate the actions of `given`, or the own ones, with a gradient."""
    torch.manual_seed(0)
    net = RogueNet(config, frames.obs_space, frames.action_space)
    with torch.no_grad():  # a new network has values of 0 and nearly equal logits
        for parameter in net.parameters():
            scale = 0.5 / parameter.shape[1] ** 0.5 if parameter.dim() == 2 else 0.1
            parameter.add_(scale * torch.randn(parameter.shape))
    net.update_normalization(ObsBatch.from_vec_obs(frames.obs))
    net.to(device)
    batch = ObsBatch.from_vec_obs(frames.obs, device)
    keys = keyed(keyed(7, torch.arange(len(batch))), torch.tensor(0)).to(device)
    drawn = net.act(batch, generator=FrameKeys(keys)).actions
    judged = {name: each.map(lambda x: x.to(device)) for name, each in (given.actions if given else drawn).items()}
    evaluation = net.evaluate(batch, judged)
    of_actors = [*evaluation.log_probs.values(), *evaluation.entropies.values()]
    outputs = [*(ragged.values for ragged in of_actors), evaluation.values]
    torch.stack([each.mean() for each in outputs]).sum().backward()
    gradients = [each.grad.flatten() for each in net.parameters() if each.grad is not None]
    return Numbers(
        {name: each.map(lambda x: x.cpu()) for name, each in drawn.items()},
        torch.cat(outputs).detach().cpu(),
        torch.cat(gradients).cpu(),
    )


def check_parity(device: torch.device, precision: str) -> bool:
    """Print differences between the device's numbers and the CPU's, and return whether all are within their limits."""
    ragged = ragged_frames("1 to 39 entities", np.random.default_rng(0).integers(1, 40, 128).tolist(), select=True)
    cases = {
        "MineSweeper": (minesweeper_frames(256), RelposConfig()),
        "1 to 39 entities, select-entity": (ragged, RelposConfig()),
        "the same with relative positions": (ragged, ragged.relpos()),
    }
    passed = True
    for name, (frames, relpos) in cases.items():
        config = RogueNetConfig(relpos=relpos, backend="reference")
        here = compute(frames, config, torch.device("cpu"))
        there = compute(frames, replace(config, precision=precision), device, here)
        errors = {
            "outputs": float((there.outputs - here.outputs).norm() / here.outputs.norm()),
            "gradient": float((there.gradient - here.gradient).norm() / here.gradient.norm()),
        }
        pairs = [(there.actions[action].values, each.values) for action, each in here.actions.items()]
        other = 1000 * float(torch.cat([(ours != theirs).any(1) for ours, theirs in pairs]).float().mean())
        is_near = (
            all(error <= LIMITS[precision] for error in errors.values()) and other <= MOST_OTHER_ACTIONS[precision]
        )
        passed &= is_near
        shown = ", ".join(f"{what} {error:.1e}" for what, error in errors.items())
        print(f"{'ok  ' if is_near else 'FAIL'}  {name}: {shown}, {other:.1f} of 1,000 actions differ")
    return passed


def measure_training(given: argparse.Namespace, device: torch.device) -> None:
    """Train MineSweeper, and print the speed, the score and the peak memory."""
    net = RogueNetConfig(backend="reference", precision=given.precision)
    with tempfile.TemporaryDirectory() as folder:
        done = train(
            TrainConfig(
                env=EnvConfig(id="MineSweeper"),
                rollout=RolloutConfig(num_envs=given.num_envs, steps=16),
                optim=OptimConfig(batch_size=given.num_envs * 4),
                net=net,
                total_timesteps=given.timesteps,
                device=given.device,
                run_dir=str(Path(folder) / "run"),
            )
        )
        rows = read_metrics(Path(folder) / "run" / "metrics.jsonl")
    speeds = [float(row["steps_per_second"]) for row in rows if row.get("steps_per_second") is not None]
    print(f"training: {statistics.median(speeds[WARM_UP:] or speeds):,.0f} steps/s, median of {len(speeds)} updates")
    print(f"training: {done.step:,} steps; the last update's episodic reward: {rows[-1].get('episodic_reward')}")
    if device.type == "cuda":
        print(f"training: peak memory of the GPU {torch.cuda.max_memory_allocated(device) / 2**20:,.0f} MiB")


def main() -> int:
    """Returns the exit code."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    arguments.add_argument("--precision", choices=tuple(LIMITS), default="fp32")
    arguments.add_argument("--timesteps", type=int, default=2_000_000)
    arguments.add_argument("--num-envs", type=int, default=2048)
    given = arguments.parse_args()
    if given.device == "cuda" and not torch.cuda.is_available():
        print("there is no GPU: torch finds no CUDA device. Nothing was checked.", file=sys.stderr)
        return 2
    device = torch.device(given.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}, net.precision={given.precision}")
    passed = check_parity(device, given.precision)
    measure_training(given, device)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
