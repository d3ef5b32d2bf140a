"""PPO's optimizer steps on a CPU by compiled programs, without torch's operations.

`CompiledPPO` does what `enn_ppo.ppo.learn_minibatch` does: `enn_ppo.ppo.update` is given `FrameNumbers` for samples, and
`CompiledPPO.learn` for `learn`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from enn_ppo.ppo import Samples, Stats
from enn_ppo.settings.learning import OptimConfig, PPOSettings
from enn_ppo.training.frames import Columns
from enn_ppo.training.learning import compiled_loss
from enn_ppo.training.learning.actor_critic import ActorCritic
from enn_ppo.training.ranks import ALONE, Ranks
from entity_gym.actions import SelectEntityActionSpace
from rogue_net import RaggedTensor, RogueNet
from rogue_net.kernels.cpu.calling import entry
from rogue_net.kernels.cpu.program import Program


@dataclass(frozen=True, kw_only=True)
class FrameNumbers(Columns):
    """Frames of a rollout by their numbers. In `update` they stand for `Samples`, of which little is copied."""

    frames: Tensor  # (B,) int64
    num_actors: Tensor  # (B,) int64; these and the following are as in `Samples`
    advantages: Tensor
    values: Tensor
    returns: Tensor
    weights: Tensor | None = None
    frame_weights: Tensor | None = None


class CompiledPPO:
    """A program for each network, and the optimizer's state.

    Args:
        model: policy and value function.
        optimizer: AdamW, with a group of parameters for each network.
    """

    def __init__(self, model: ActorCritic, optimizer: torch.optim.Optimizer) -> None:
        self._model, self._optimizer, self._loss = model, optimizer, entry(compiled_loss.ppo)
        if model.value_net is None:
            self._programs = [Program(model.policy)]
        else:
            self._programs = [
                Program(model.policy, with_value=False),
                Program(model.value_net, with_actions=False),
            ]
        self._columns: list[Any] = []  # of each program, during an update

    @contextmanager
    def holding(self, samples: Samples) -> Iterator[Any]:  # FrameNumbers, in the place of Samples
        """Hold the samples, parameters and AdamW's state in the programs; bring the last two back to the modules in the end.

        Raises:
            ValueError: an action is no choice of its space.
        """
        states = [[self._state(parameter) for parameter in program.parameters] for program in self._programs]
        for program, of_program in zip(self._programs, states, strict=True):
            program.load(of_program)
        old = {name: ragged.values for name, ragged in samples.log_probs.items()}
        with torch.no_grad():
            self._columns = [each.columns(samples.obs, samples.actions, old) for each in self._programs]
        check_choices(self._model.policy, samples.actions)
        names = ("num_actors", "advantages", "values", "returns")
        try:
            yield FrameNumbers(frames=torch.arange(len(samples)), **{name: getattr(samples, name) for name in names})
        finally:
            for program, of_program in zip(self._programs, states, strict=True):
                program.store(of_program)
            self._columns = []

    def learn(self, minibatch: FrameNumbers, optim: OptimConfig, settings: PPOSettings, ranks: Ranks = ALONE) -> Stats:
        """See `enn_ppo.ppo.learn_minibatch`; the network and the loss are those of the programs."""
        columns = torch.stack([getattr(minibatch, name) for name in compiled_loss.COLUMNS]).numpy()
        found = torch.zeros(len(compiled_loss.STATS))
        deviation = float(self._model.value_head.deviation)
        for program, of_program in zip(self._programs, self._columns, strict=True):
            given = compiled_loss.settings_of(settings, deviation, has_value=program.with_value)
            found += program.gradient(of_program, minibatch.frames.numpy(), self._loss, given, columns, len(found))
        if ranks.size > 1:
            parts = [found, *(program.gradient_flat for program in self._programs)]
            sums = ranks.sum(torch.cat(parts)).split_with_sizes([len(part) for part in parts])
            torch._foreach_copy_(parts, list(sums))
        stats = dict(zip(compiled_loss.STATS, found.unbind(), strict=True))
        groups = zip(("grad_norm", "value_grad_norm"), self._programs, self._optimizer.param_groups, strict=False)
        for name, program, group in groups:
            norm = program.norm()
            scale = (group.get("max_grad_norm") or optim.max_grad_norm) / (norm + 1e-6)
            program.step(
                float(group["lr"]),
                1.0 if scale >= 1 else scale,  # a NaN stays one
                group["betas"],
                group["eps"],
                group["weight_decay"],
            )
            stats[name] = torch.tensor(norm)
        return stats

    def _state(self, parameter: Tensor) -> Mapping[str, Tensor]:
        """AdamW's state of a parameter; zeros before its first step."""
        state: dict[str, Tensor] = self._optimizer.state[parameter]
        if not state:
            state |= {"step": torch.tensor(0.0)}
            state |= {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
        return state


def check_choices(net: RogueNet, actions: Mapping[str, RaggedTensor]) -> None:
    """Raise a ValueError where an action is no choice of its space."""
    for name, space in net.action_space.items():
        values = actions[name].values
        if space.discrete and not isinstance(space, SelectEntityActionSpace) and len(values):
            low, high = (int(each) for each in values.aminmax())
            count = len(space.choices)  # type: ignore[attr-defined]
            if low < 0 or high >= count:
                raise ValueError(f"action {name!r} is {low if low < 0 else high}; choices are 0 to {count - 1}")
