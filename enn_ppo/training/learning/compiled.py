"""Optimizer steps on a CPU by compiled programs: they learn what `enn_ppo.ppo.learn_minibatch` does, without torch's operations.

`update` is the same: it is given `FrameNumbers` for samples, and `CompiledLearning.learn` for `learn`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from enn_ppo.ppo import Samples, Stats, weigh
from enn_ppo.settings.learning import OptimConfig, PPOSettings
from enn_ppo.training.learning import compiled_loss
from enn_ppo.training.learning.actor_critic import ActorCritic
from enn_ppo.training.learning.compiled_loss import STATS
from enn_ppo.training.ranks import Ranks
from entity_gym.actions import SelectEntityActionSpace
from rogue_net import RogueNet
from rogue_net.kernels.cpu.calling import entry
from rogue_net.kernels.cpu.program import Columns, Moments, Program

TOKENS_OF_A_THREAD = 256  # that are worth another thread


@dataclass(frozen=True)
class FrameNumbers:
    """Frames of a rollout by their numbers. In `update` they stand for `Samples`, of which nothing is copied."""

    samples: Samples
    frames: Tensor  # (B,) int64

    def __len__(self) -> int:
        return len(self.frames)

    @property
    def values(self) -> Tensor:
        """(B,) see `Samples`."""
        return self.samples.values.index_select(0, self.frames)

    @property
    def returns(self) -> Tensor:
        """(B,) see `Samples`."""
        return self.samples.returns.index_select(0, self.frames)

    def gather(self, frames: Tensor, *, all_of_them: bool = False) -> FrameNumbers:
        """See `enn_ppo.training.frames.Columns.gather`."""
        return replace(self, frames=self.frames.index_select(0, frames))

    def split(self, sizes: Sequence[int]) -> list[FrameNumbers]:
        """See `enn_ppo.training.frames.Columns.split`."""
        return [replace(self, frames=part) for part in torch.split(self.frames, list(sizes))]


def check_choices(net: RogueNet, samples: Samples) -> None:
    """Raise a ValueError where an action of the samples is no choice of its space."""
    for name, space in net.action_space.items():
        if not isinstance(space, SelectEntityActionSpace) and len(values := samples.actions[name].values):
            low, high = (int(each) for each in values.aminmax())
            count = len(space.choices)  # type: ignore[attr-defined]
            if low < 0 or high >= count:
                raise ValueError(f"action {name!r} is {low if low < 0 else high}; choices are 0 to {count - 1}")


class CompiledLearning:
    """A program for each network, and the optimizer's moments.

    Args:
        model: policy and value function.
        optimizer: AdamW, with a group of parameters for each network.
    """

    def __init__(self, model: ActorCritic, optimizer: torch.optim.Optimizer) -> None:
        self._model, self._optimizer, self._head = model, optimizer, model.value_head
        self._programs = self._make_programs()
        self._loss = entry(compiled_loss.ppo)
        self._columns: list[Columns] = []
        self._steps = 0  # of the optimizer, until now

    def _make_programs(self) -> list[Program]:
        policy, value_net = self._model.policy, self._model.value_net
        if value_net is None:
            return [Program(policy)]
        return [Program(policy, with_value=False), Program(value_net, with_actions=False)]

    def can_learn(self) -> bool:
        """Whether all parameters have made the same number of steps, as all do but those that a checkpoint did not have."""
        if not all(program.is_current() for program in self._programs):
            self._programs = self._make_programs()
        state = self._optimizer.state
        parameters = [parameter for program in self._programs for parameter in program.parameters]
        return len({int(state[each]["step"]) if state[each] else 0 for each in parameters}) == 1

    @contextmanager
    def update(self, samples: Samples) -> Iterator[Any]:  # FrameNumbers, in the place of Samples
        """Hold parameters and moments in the programs, and bring them back to the modules in the end."""
        moments = [self._moments(program) for program in self._programs]
        for program, held in zip(self._programs, moments, strict=True):
            program.load(held)
        log_probs = {name: ragged.values for name, ragged in samples.log_probs.items()}
        with torch.no_grad():
            self._columns = [each.columns(samples.obs, samples.actions, log_probs) for each in self._programs]
        check_choices(self._model.policy, samples)
        state = self._optimizer.state
        steps = [state[parameter]["step"] for program in self._programs for parameter in program.parameters]
        self._steps = int(steps[0])
        try:
            yield FrameNumbers(samples, torch.arange(len(samples)))
        finally:
            for program, held in zip(self._programs, moments, strict=True):
                program.store(held)
            for step in steps:
                step.fill_(self._steps)
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
    ) -> Stats:
        """See `enn_ppo.ppo.learn_minibatch`; the network and the loss are those of the programs."""
        samples, frames = minibatch.samples, minibatch.frames
        num_actors = torch.from_numpy(self._columns[0].num_actors).index_select(0, frames)
        weighed = weigh(samples.advantages.index_select(0, frames), num_actors, settings, ranks)
        columns = torch.stack(
            [
                weighed["advantages"],
                weighed["weights"],
                samples.values.index_select(0, frames),
                samples.returns.index_select(0, frames),
                weighed["frame_weights"],
            ]
        )
        found = torch.zeros(len(STATS))
        for program, of_program in zip(self._programs, self._columns, strict=True):
            numbers = frames.numpy()
            threads = int(min(torch.get_num_threads(), of_program.lengths[numbers].sum() // TOKENS_OF_A_THREAD))
            given = compiled_loss.settings_of(settings, float(self._head.deviation), has_value=program.with_value)
            found += program.gradient(
                of_program, numbers, self._loss, given, columns.numpy(), len(STATS), max(1, threads)
            )
        if ranks.size > 1:
            gradients = [program.gradient_flat for program in self._programs]
            sizes = [len(found), *map(len, gradients)]
            found, *sums = torch.split(ranks.sum(torch.cat([found, *gradients])), sizes)
            for gradient, total in zip(gradients, sums, strict=True):
                gradient.copy_(total)
        stats = dict(zip(STATS, found.unbind(), strict=True))
        self._steps += 1
        names = ("grad_norm", "value_grad_norm")
        for name, program, group in zip(names, self._programs, optimizer.param_groups, strict=False):
            norm = program.norm()
            stats[name] = torch.tensor(norm)
            scale = (group.get("max_grad_norm") or optim.max_grad_norm) / (norm + 1e-6)
            program.step(
                self._steps,
                float(group["lr"]),
                1.0 if scale >= 1 else scale,  # a NaN stays one
                group["betas"],
                group["eps"],
                group["weight_decay"],
            )
        return stats

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
