"""What the tests let every rank do: torchrun starts this file, which writes what each rank has seen into a folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from enn_ppo import Callback, EnvConfig, OptimConfig, PPOConfig, RogueNetConfig, RolloutConfig, TrainConfig, train
from enn_ppo.settings.config import DistributedConfig
from enn_ppo.training.callbacks import Update
from enn_ppo.training.learning.learner import Learned, Learner
from enn_ppo.training.learning.optimizer import AdamW
from entity_gym import Action, Observation
from entity_gym.pools.source import EnvFactory
from rogue_net.kernels.cpu.adamw import CompiledAdamW
from tests.enn_ppo.worlds import SMALL_BOARD, Copycat, tiny_config
from tests.entity_gym.envs.minesweeper_python import PythonMineSweeper
from tests.set_worlds import Market, Stall

DDP = DistributedConfig(mode="ddp")
NUM_ENVS, STEPS = 128, 4  # 64 on each rank
ALL = OptimConfig(batch_size=NUM_ENVS * STEPS, epochs=1)
#: Settings whose gradients depend on numbers of all ranks.
GRADIENTS: dict[str, dict[str, Any]] = {
    "per actor": {},
    "joint by frame": {"ppo": PPOConfig(ratio="joint", weighting="frame", clip_value=True)},
    "returns": {"ppo": PPOConfig(normalize="returns", gamma=0.9)},
    "groups": {"rollout": {"group_size": 4}, "ppo": PPOConfig(advantages="group")},
    "advantages": {"ppo": PPOConfig(normalize_advantages=False)},
    "value net": {"value_net": RogueNetConfig(d_model=8, n_layer=1, n_head=1)},
    "micro-batches": {"optim": replace(ALL, micro_batch_size=70)},
}
#: Frames with one to three actors, boards where robots die, and markets where buyers select sets.
WORLDS: dict[str, tuple[EnvFactory | None, EnvConfig]] = {
    "lamps": (Copycat, EnvConfig()),
    "boards": (PythonMineSweeper, EnvConfig(kwargs=SMALL_BOARD)),
    "market": (Market, EnvConfig()),
    "stall": (Stall, EnvConfig()),
}
CASES = [*product(("lamps", "boards"), GRADIENTS), ("market", "joint by frame"), ("stall", "per actor")]


def one_update(world: str, case: str, run_dir: Path, **changes: Any) -> tuple[TrainConfig, EnvFactory | None]:
    """A run of one optimizer step from all frames."""
    env, world_config = WORLDS[world]
    of_case = dict(GRADIENTS[case])
    rollout = RolloutConfig(num_envs=NUM_ENVS, steps=STEPS, **(of_case.pop("rollout", {}) | changes.pop("rollout", {})))
    settings = {"env": world_config, "rollout": rollout, "optim": ALL, "total_timesteps": NUM_ENVS * STEPS}
    return tiny_config(run_dir, **(settings | of_case | changes)), env


def long_run(run_dir: Path, **changes: Any) -> TrainConfig:
    """A run in which everything that ranks share changes from update to update."""
    settings = {
        "rollout": RolloutConfig(num_envs=4, steps=8),
        "ppo": PPOConfig(normalize="returns", target_kl=1e-4),
        "optim": OptimConfig(batch_size=12, epochs=3, lr="0.02@0 -> 0@1"),
        "net": RogueNetConfig(d_model=16, n_layer=1, n_head=2, dropout=0.1),
        "total_timesteps": 4 * 8 * 6,
        "checkpoint_interval": 2,
    }
    return tiny_config(run_dir, **(settings | changes))


class FailsOnRank1(Copycat):
    """Raises in its tenth step, where torchrun calls it rank 1."""

    acts = 0

    def act(self, actions: Mapping[str, Action]) -> Observation:
        self.acts += 1
        if os.environ.get("RANK") == "1" and self.acts == 10:
            raise ValueError("the third lamp is broken")
        return super().act(actions)


@contextmanager
def first_gradient() -> Iterator[list[torch.Tensor]]:
    """Of the first optimizer step, end to end; nothing where a parameter has none."""
    seen: list[torch.Tensor] = []
    step = AdamW.step

    def record(self: AdamW, *arguments: Any) -> Any:
        if not seen:
            parameters = [parameter for group in self.param_groups for parameter in group["params"]]
            seen.append(torch.cat([each.grad.flatten() for each in parameters if each.grad is not None]).clone())
        return step(self, *arguments)

    compiled_step = CompiledAdamW.step

    def record_compiled(self: CompiledAdamW, *arguments: Any) -> float:
        if not any(self._steps):  # of each network
            parts = self.program.parts_of(self.program.gradient_flat)
            seen[:] = [torch.cat([*seen, *(part.flatten() for part in parts)])]
        return compiled_step(self, *arguments)

    # what the limit of the norm would hide is part of the claim, so the gradient is not clipped
    with (
        mock.patch.object(AdamW, "step", record),
        mock.patch.object(CompiledAdamW, "step", record_compiled),
        mock.patch("enn_ppo.ppo.clip_gradient", unclipped),
    ):
        yield seen


def unclipped(parameters: Any, limit: float) -> torch.Tensor:
    return torch.cat([each.grad.flatten() for each in parameters if each.grad is not None]).norm()


@contextmanager
def learners_states() -> Iterator[list[dict[str, Any]]]:
    """All that learning has changed, after every update."""
    states: list[dict[str, Any]] = []
    learn = Learner.learn

    def record(self: Learner, *arguments: Any) -> Learned:
        learned = learn(self, *arguments)
        weights = {name: value.clone() for name, value in self.model.state_dict().items()}
        averages = {
            f"{number}/{name}": torch.as_tensor(value).clone()
            for number, values in self.optimizer.state_dict()["state"].items()
            for name, value in values.items()
        }
        states.append(weights | averages)
        return learned

    with mock.patch.object(Learner, "learn", record):
        yield states


class LeadDecides(Callback):
    """On rank 0 it draws parameters and stops after some steps; no other rank may call it."""

    def __init__(self, rank: int, stop_at: int) -> None:
        self.rank, self.stop_at = rank, stop_at

    def on_update(self, update: Update) -> None:
        assert self.rank == 0
        if update.step == self.stop_at:
            update.stop()

    def env_info(self, progress: float, num_envs: int, rng: np.random.Generator) -> None:
        assert self.rank == 0


def main(folder: Path, rank: int) -> None:
    """Everything, one run after the other."""
    gradients = {}
    for world, case in CASES:
        config, env = one_update(world, case, folder / f"{world} {case}", distributed=DDP)
        with first_gradient() as seen:
            train(config, env)
        gradients[world, case] = seen[0]
    with learners_states() as states:
        train(long_run(folder / "whole", distributed=DDP), PythonMineSweeper)
    train(long_run(folder / "parts", distributed=DDP), PythonMineSweeper, callbacks=[LeadDecides(rank, 96)])
    result = train(long_run(folder / "parts", distributed=DDP, resume=str(folder / "parts")), PythonMineSweeper)
    timed = train(
        long_run(folder / "timed", distributed=DDP, total_timesteps=10**6, max_train_seconds=0.5), PythonMineSweeper
    )
    threads = sorted(name.read_text().strip() for name in Path("/proc/self/task").glob("*/comm"))
    seen_here = {
        "gradients": gradients,
        "states": states,
        "step": result.step,
        "timed": timed.step,
        "threads": threads,
    }
    torch.save(seen_here, folder / f"rank_{rank}.pt")


if __name__ == "__main__":
    torch.set_num_threads(1)
    with mock.patch("enn_ppo.training.tracking.run_output.plot_learning_curve"):  # each would take as long as a run
        main(Path(sys.argv[1]), int(os.environ["RANK"]))
