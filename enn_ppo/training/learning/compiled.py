"""PPO's optimizer steps on a CPU by compiled programs, without torch's operations.

`CompiledPPO` does what `enn_ppo.ppo.learn_minibatch` does: `enn_ppo.ppo.update` is given `FrameNumbers` for samples, and
`CompiledPPO.learn` for `learn`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from enn_ppo.ppo import Samples, Stats, Totals
from enn_ppo.settings.learning import OptimConfig, PPOSettings
from enn_ppo.training.learning import compiled_loss
from enn_ppo.training.learning.actor_critic import ActorCritic
from enn_ppo.training.ranks import Ranks
from entity_gym.actions import ActionSpace, SelectEntityActionSpace
from rogue_net import RaggedTensor, RogueNet, RogueNetConfig
from rogue_net.kernels.cpu.ahead import Job
from rogue_net.kernels.cpu.calling import entry
from rogue_net.kernels.cpu.columns import Columns
from rogue_net.kernels.cpu.compiling import address, bind
from rogue_net.kernels.cpu.program import Moments, Program, jobs_of


def jobs_of_ppo(config: RogueNetConfig, action_space: Mapping[str, ActionSpace]) -> list[Job]:
    """All kernels that train a network by PPO, those that take longest first."""
    return [*jobs_of(config, action_space), (compiled_loss.ppo, ()), (compiled_loss.weigh, ())]


@dataclass(frozen=True)
class FrameNumbers:
    """Frames of a rollout by their numbers. In `update` they stand for `Samples`, of which nothing is copied."""

    samples: Samples
    frames: Tensor  # (B,) int64

    def __len__(self) -> int:
        return len(self.frames)

    def __getattr__(self, name: str) -> Tensor:
        """(B,) a column of `Samples` with one number for each frame."""
        column: Tensor = getattr(self.samples, name)
        return column.index_select(0, self.frames)

    def gather(self, frames: Tensor, *, all_of_them: bool = False) -> FrameNumbers:
        """See `enn_ppo.training.frames.Columns.gather`."""
        return replace(self, frames=self.frames.index_select(0, frames))

    def split(self, sizes: Sequence[int]) -> list[FrameNumbers]:
        """See `enn_ppo.training.frames.Columns.split`."""
        return [replace(self, frames=part) for part in torch.split(self.frames, list(sizes))]


class CompiledPPO:
    """A program for each network, and the optimizer's moments.

    Args:
        model: policy and value function.
        optimizer: AdamW, with a group of parameters for each network.
    """

    def __init__(self, model: ActorCritic, optimizer: torch.optim.Optimizer) -> None:
        self._model, self._optimizer, self._loss = model, optimizer, entry(compiled_loss.ppo)
        self._programs = self._make_programs()
        self._columns: list[Columns] = []
        self._steps: list[NDArray[np.int64]] = []  # of the optimizer until now, for each parameter of each program

    def _make_programs(self) -> list[Program]:
        policy, value_net = self._model.policy, self._model.value_net
        if value_net is None:
            return [Program(policy)]
        return [Program(policy, with_value=False), Program(value_net, with_actions=False)]

    @contextmanager
    def update(self, samples: Samples) -> Iterator[Any]:  # FrameNumbers, in the place of Samples
        """Hold the samples, parameters and moments in the programs, and bring the last two back to the modules in the end.

        Raises:
            ValueError: an action is no choice of its space.
        """
        if not all(program.is_current() for program in self._programs):
            self._programs = self._make_programs()
        moments = [self._moments(program) for program in self._programs]
        for program, held in zip(self._programs, moments, strict=True):
            program.load(held)
        old = {name: ragged.values for name, ragged in samples.log_probs.items()}
        with torch.no_grad():
            self._columns = [each.columns(samples.obs, samples.actions, old) for each in self._programs]
        check_choices(self._model.policy, samples.actions)
        state = self._optimizer.state
        steps = [[state[parameter]["step"] for parameter in program.parameters] for program in self._programs]
        self._steps = [np.array([int(each) for each in of_program], np.int64) for of_program in steps]
        try:
            yield FrameNumbers(samples, torch.arange(len(samples)))
        finally:
            for program, held in zip(self._programs, moments, strict=True):
                program.store(held)
            for of_program, numbers in zip(steps, self._steps, strict=True):
                for step, number in zip(of_program, numbers.tolist(), strict=True):
                    step.fill_(number)
            self._columns = []

    def learn(
        self,
        net: object,
        optimizer: torch.optim.Optimizer,
        minibatch: FrameNumbers,
        optim: OptimConfig,
        settings: PPOSettings,
        loss: Callable[..., Any],
        ranks: Ranks,
        totals: Totals | None = None,
    ) -> Stats:
        """See `enn_ppo.ppo.learn_minibatch`; the network and the loss are those of the programs."""
        frames, columns = minibatch.frames, self._weighed(minibatch, settings, totals)
        found = torch.zeros(len(compiled_loss.STATS))
        deviation = float(self._model.value_head.deviation)
        for program, of_program in zip(self._programs, self._columns, strict=True):
            given = compiled_loss.settings_of(settings, deviation, has_value=program.with_value)
            found += program.gradient(of_program, frames.numpy(), self._loss, given, columns, len(found))
        if ranks.size > 1:
            parts = [found, *(program.gradient_flat for program in self._programs)]
            sums = ranks.sum(torch.cat(parts)).split_with_sizes([len(part) for part in parts])
            torch._foreach_copy_(parts, list(sums))
        stats = dict(zip(compiled_loss.STATS, found.unbind(), strict=True))
        named = ("grad_norm", "value_grad_norm")
        groups = zip(named, self._programs, self._optimizer.param_groups, strict=False)
        for number, (name, program, group) in enumerate(groups):
            norm = program.norm()
            scale = (group.get("max_grad_norm") or optim.max_grad_norm) / (norm + 1e-6)
            self._steps[number] += 1
            program.step(
                self._steps[number],
                float(group["lr"]),
                1.0 if scale >= 1 else scale,  # a NaN stays one
                group["betas"],
                group["eps"],
                group["weight_decay"],
            )
            stats[name] = torch.tensor(norm)
        return stats

    def _weighed(self, minibatch: FrameNumbers, settings: PPOSettings, totals: Totals | None) -> NDArray[np.float32]:
        """Compute the columns that the loss reads, of a minibatch or this rank's part of it."""
        samples, frames = minibatch.samples, minibatch.frames
        columns = np.empty((5, len(frames)), np.float32)
        # values that are all the same may be one number that is expanded
        read = [each.contiguous() for each in (samples.advantages, samples.values, samples.returns)]
        numbers = [*map(address, read), address(self._columns[0].num_actors)]
        of_all: tuple[float, ...] = 0, 0, 0, 0, 0.0, 0.0
        if totals is not None:
            advantages = totals.advantages
            counts = int(totals.actors), int(advantages.number)
            of_all = 1, totals.frames, *counts, float(advantages.mean), float(advantages.variance)
        bind(compiled_loss.weigh)(
            len(frames), address(frames), *numbers, settings.ratio == "joint", settings.weighting == "actor",
            settings.normalize_advantages, *of_all, address(columns),
        )  # fmt: skip
        return columns

    def _moments(self, program: Program) -> Moments:
        """The optimizer's moments of a program's parameters; zeros before its first step."""
        state = self._optimizer.state
        for parameter in program.parameters:
            if not state[parameter]:
                state[parameter] = {
                    "step": torch.tensor(0.0),
                    "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format),
                    "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format),
                }
        states = [state[parameter] for parameter in program.parameters]
        return Moments([each["exp_avg"] for each in states], [each["exp_avg_sq"] for each in states])


def check_choices(net: RogueNet, actions: Mapping[str, RaggedTensor]) -> None:
    """Raise a ValueError where an action is no choice of its space."""
    for name, space in net.action_space.items():
        values = actions[name].values
        if space.discrete and not isinstance(space, SelectEntityActionSpace) and len(values):
            low, high = (int(each) for each in values.aminmax())
            count = len(space.choices)  # type: ignore[attr-defined]
            if low < 0 or high >= count:
                raise ValueError(f"action {name!r} is {low if low < 0 else high}; choices are 0 to {count - 1}")
