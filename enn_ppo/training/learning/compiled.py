"""Optimizer steps on a CPU by compiled programs, without torch's operations.

`CompiledSteps` is what any loss needs that has a kernel; `CompiledPPO` does with it what `enn_ppo.ppo.learn_minibatch` does:
`update` is the same, but is given `FrameNumbers` for samples, and `CompiledPPO.learn` for `learn`.
"""

from __future__ import annotations

import math
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
from enn_ppo.training.learning.teacher import TeacherLoss
from enn_ppo.training.ranks import ALONE, Ranks
from entity_gym.actions import ActionSpace, SelectEntityActionSpace
from rogue_net import ObsBatch, RaggedTensor, RogueNet, RogueNetConfig
from rogue_net.kernels.cpu.ahead import Job
from rogue_net.kernels.cpu.calling import entry
from rogue_net.kernels.cpu.columns import Columns
from rogue_net.kernels.cpu.compiling import address, bind
from rogue_net.kernels.cpu.program import Moments, Program, jobs_of

#: Kernels of PPO's loss.
_LOSS: list[Job] = [(compiled_loss.ppo, ()), (compiled_loss.weigh, ())]


def jobs_of_ppo(config: RogueNetConfig, action_space: Mapping[str, ActionSpace]) -> list[Job]:
    """All kernels that train a network by PPO, those that take longest first."""
    return [*jobs_of(config, action_space), *_LOSS]


class CompiledSteps:
    """A program for each network, and the optimizer's moments.

    Args:
        model: policy and value function.
        optimizer: AdamW, with a group of parameters for each network, or one for both, whose gradients are clipped together.
    """

    def __init__(self, model: ActorCritic, optimizer: torch.optim.Optimizer) -> None:
        self._model, self._optimizer = model, optimizer
        self._programs = self._make_programs()
        self._columns: list[Columns] = []
        self._steps: list[NDArray[np.int64]] = []  # of the optimizer until now, for each parameter of each program

    def _make_programs(self) -> list[Program]:
        policy, value_net = self._model.policy, self._model.value_net
        if value_net is None:
            return [Program(policy)]
        return [Program(policy, with_value=False), Program(value_net, with_actions=False)]

    @property
    def num_actors(self) -> NDArray[np.int64]:
        """(B,) actors in each of the frames at hand."""
        return self._columns[0].num_actors

    @contextmanager
    def frames(
        self,
        obs: ObsBatch,
        actions: Mapping[str, RaggedTensor],
        log_probs: Mapping[str, RaggedTensor],
        targets: Mapping[str, RaggedTensor] | None = None,
    ) -> Iterator[None]:
        """Hold B frames, parameters and moments in the programs, and bring the last two back to the modules in the end.

        Args:
            obs: B frames.
            actions: what was done in them.
            log_probs: action -> B sequences of (A,), of the policy that did it.
            targets: action -> logits to stay close to; None: there are none.

        Raises:
            ValueError: an action is no choice of its space.
        """
        if not all(program.is_current() for program in self._programs):
            self._programs = self._make_programs()
        moments = [self._moments(program) for program in self._programs]
        for program, held in zip(self._programs, moments, strict=True):
            program.load(held)
        old = {name: ragged.values for name, ragged in log_probs.items()}
        with torch.no_grad():
            self._columns = [each.columns(obs, actions, old, targets) for each in self._programs]
        check_choices(self._model.policy, actions)
        state = self._optimizer.state
        steps = [[state[parameter]["step"] for parameter in program.parameters] for program in self._programs]
        self._steps = [np.array([int(each) for each in of_program], np.int64) for of_program in steps]
        try:
            yield
        finally:
            for program, held in zip(self._programs, moments, strict=True):
                program.store(held)
            for of_program, numbers in zip(steps, self._steps, strict=True):
                for step, number in zip(of_program, numbers.tolist(), strict=True):
                    step.fill_(number)
            self._columns = []

    def gradient(
        self,
        frames: Tensor,
        loss: int,
        settings: Callable[[float, bool], NDArray[np.float32]],
        columns: NDArray[np.float32],
        names: Sequence[str],
        ranks: Ranks = ALONE,
        *,
        learning: bool = True,
    ) -> Stats:
        """Compute the gradient of the loss of a minibatch; returns what the loss logs.

        Args:
            frames: (M,) int64, numbers of the frames.
            loss: address of its kernel.
            settings: makes those of the loss, from the deviation of the value head and whether a network has the value.
            columns: (columns, M), what the loss reads.
            names: of the numbers to log.
            ranks: the processes whose gradients are added.
            learning: whether there is a gradient; else only what there is to log.
        """
        found = torch.zeros(len(names))
        numbers = frames.numpy()
        deviation = float(self._model.value_head.deviation)
        for program, of_program in zip(self._programs, self._columns, strict=True):
            given = settings(deviation, program.with_value)
            found += program.gradient(of_program, numbers, loss, given, columns, len(names), learning=learning)
        if ranks.size > 1:
            parts = [found, *(program.gradient_flat for program in self._programs)]
            sums = ranks.sum(torch.cat(parts)).split_with_sizes([len(part) for part in parts])
            torch._foreach_copy_(parts, list(sums))
        return dict(zip(names, found.unbind(), strict=True))

    def step(self, max_grad_norm: float) -> list[float]:
        """Make an optimizer step; returns the gradient's norm of each group of parameters."""
        self._steps = [numbers + 1 for numbers in self._steps]
        numbered = list(zip(self._programs, self._steps, strict=True))
        groups = self._optimizer.param_groups
        programs = [[each] for each in numbered] if len(groups) > 1 else [numbered]
        norms = []
        for group, of_group in zip(groups, programs, strict=True):
            norms.append(math.hypot(*(program.norm() for program, _ in of_group)))
            scale = (group.get("max_grad_norm") or max_grad_norm) / (norms[-1] + 1e-6)
            for program, numbers in of_group:
                program.step(
                    numbers,
                    float(group["lr"]),
                    1.0 if scale >= 1 else scale,  # a NaN stays one
                    group["betas"],
                    group["eps"],
                    group["weight_decay"],
                )
        return norms

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


# --- PPO


@dataclass(frozen=True)
class FrameNumbers:
    """Frames of a rollout by their numbers. In `update` they stand for `Samples`, of which nothing is copied."""

    samples: Samples
    frames: Tensor  # (B,) int64

    def __len__(self) -> int:
        return len(self.frames)

    @property
    def advantages(self) -> Tensor:
        """(B,) see `Samples`."""
        return self.samples.advantages.index_select(0, self.frames)

    @property
    def num_actors(self) -> Tensor:
        """(B,) see `Samples`."""
        return self.samples.num_actors.index_select(0, self.frames)

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


class CompiledPPO:
    """PPO's optimizer steps.

    Args:
        model: policy and value function.
        optimizer: see `CompiledSteps`.
        teacher: that the policy stays close to; None: there is none.
    """

    def __init__(
        self, model: ActorCritic, optimizer: torch.optim.Optimizer, teacher: TeacherLoss | None = None
    ) -> None:
        self.steps, self._teacher = CompiledSteps(model, optimizer), teacher
        self._loss = entry(compiled_loss.ppo)

    @contextmanager
    def update(self, samples: Samples, settings: PPOSettings) -> Iterator[Any]:  # FrameNumbers, in the place of Samples
        """Hold the samples of an update, see `CompiledSteps.frames`."""
        taught = None
        if self._teacher is not None and settings.teacher_kl != 0:
            taught = self._teacher.logits(samples.obs)
        with self.steps.frames(samples.obs, samples.actions, samples.log_probs, taught):
            yield FrameNumbers(samples, torch.arange(len(samples)))

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
        frames = minibatch.frames
        columns = self._columns(minibatch.samples, frames, settings, totals)

        def given(deviation: float, has_value: bool) -> NDArray[np.float32]:
            return compiled_loss.settings_of(settings, deviation, has_value=has_value)

        stats = self.steps.gradient(frames, self._loss, given, columns, compiled_loss.STATS, ranks)
        if self._teacher is None:
            del stats["teacher_kl"]
        norms = self.steps.step(optim.max_grad_norm)
        named = zip(("grad_norm", "value_grad_norm"), norms, strict=False)
        return stats | {name: torch.tensor(norm) for name, norm in named}

    def _columns(
        self, samples: Samples, frames: Tensor, settings: PPOSettings, totals: Totals | None
    ) -> NDArray[np.float32]:
        """Compute the columns that the loss reads, of a minibatch or this rank's part of it."""
        columns = np.empty((5, len(frames)), np.float32)
        # values that are all the same may be one number that is expanded
        read = [each.contiguous() for each in (samples.advantages, samples.values, samples.returns)]
        numbers = [*map(address, read), address(self.steps.num_actors)]
        bind(compiled_loss.weigh)(
            len(frames), address(frames), *numbers, settings.ratio == "joint", settings.weighting == "actor",
            settings.normalize_advantages, *_of_all(totals), address(columns),
        )  # fmt: skip
        return columns


def _of_all(totals: Totals | None) -> tuple[float, ...]:
    """The arguments `is_part` to `all_variance` of `compiled_loss.weigh`."""
    if totals is None:
        return 0, 0, 0, 0, 0.0, 0.0
    advantages = totals.advantages
    counts = int(totals.actors), int(advantages.number)
    return 1, totals.frames, *counts, float(advantages.mean), float(advantages.variance)
