"""AdamW by kernels, of a network's flat parameters, with the state of an optimizer of PyTorch."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from rogue_net.kernels.cpu import flat
from rogue_net.kernels.cpu.compiling import address, bind

if TYPE_CHECKING:
    from rogue_net.kernels.cpu.program import Program
    from rogue_net.rogue_net import RogueNet


class CompiledAdamW:
    """Makes the steps of an optimizer for the parameters of one network.

    Args:
        net: has a program.
        optimizer: `torch.optim.AdamW`.
        group: the number of the network's parameter group.
        actions: whether actions are trained.
        value: whether the value is.
    """

    def __init__(
        self, net: RogueNet, optimizer: torch.optim.Optimizer, group: int, *, actions: bool = True, value: bool = True
    ) -> None:
        self._net, self._optimizer, self._group, self.actions, self.value = net, optimizer, group, actions, value
        self._part = self.program.trained(actions=actions, value=value)
        self._moments = {name: torch.zeros_like(self.program.flat) for name in ("exp_avg", "exp_avg_sq")}

    @property
    def program(self) -> Program:
        """The network's program, as it is now."""
        program = self._net.program()
        assert program is not None, "no program computes this network"
        return program

    def begin(self) -> None:
        """Make the parameters and the optimizer's moments views of the flat ones."""
        self.program.refresh()
        self._parameters = self.program.parameters[self._part]
        self._states: list[dict[str, Tensor]] = [self._optimizer.state[each] for each in self._parameters]
        for parameter, state in zip(self._parameters, self._states, strict=True):
            if not state:  # before its first step
                state |= {"step": torch.tensor(0.0), **{name: torch.zeros_like(parameter) for name in self._moments}}
        for name, moment in self._moments.items():
            flat.take(self.program.parts_of(moment)[self._part], [each[name] for each in self._states])
        self._steps = [int(each["step"]) for each in self._states]
        numbers = (self.program.flat, self.program.gradient_flat, *self._moments.values())
        first, last = self.program.starts[self._part.start], self.program.starts[self._part.stop]
        self._adam = partial(bind(flat.adam), last - first, *(address(each[first:]) for each in numbers))
        self._squares = np.zeros(1, np.float32)
        self._square = partial(bind(flat.squares), len(numbers[1]), address(numbers[1]), address(self._squares))

    def step(self, max_grad_norm: float) -> float:
        """Make a step with `program.gradient_flat`, made shorter if it is too long.

        Args:
            max_grad_norm: unless the parameter group has one of its own.

        Returns:
            The norm of the gradient.
        """
        program, group = self.program, self._optimizer.param_groups[self._group]
        self._square()
        norm = math.sqrt(float(self._squares[0]))
        scale = (group.get("max_grad_norm") or max_grad_norm) / (norm + 1e-6)
        self._steps = [each + 1 for each in self._steps]
        (beta1, beta2), rate = group["betas"], float(group["lr"])
        starts = program.starts[self._part.start : self._part.stop + 1]
        held, different = (program.flat, *self._moments.values()), sorted(set(self._steps))
        for number in different:
            before = [each.clone() for each in held] if len(different) > 1 else []
            how = flat.Adam(
                scale=1.0 if scale >= 1 else scale,  # a NaN stays one
                rate=rate / (1 - beta1**number),
                keep=1 - rate * group["weight_decay"],
                beta1=beta1,
                beta2=beta2,
                rest1=1 - beta1,
                rest2=1 - beta2,
                correction=1 / math.sqrt(1 - beta2**number),
                epsilon=group["eps"],
            )
            self._adam(how)
            # a parameter that has made another number of steps, such as one that the environment has gained, waits for its turn
            for other in (place for place, made in enumerate(self._steps) if made != number):
                part = slice(starts[other], starts[other + 1])
                for each, old in zip(held, before, strict=True):
                    each[part] = old[part]
        program.fold()
        return norm

    def end(self) -> None:
        """Tell PyTorch how many steps were made, and that parameters have changed."""
        for state, number in zip(self._states, self._steps, strict=True):
            state["step"].fill_(number)
        torch.autograd.graph.increment_version(self._parameters)
