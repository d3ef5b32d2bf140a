"""AdamW, one group of parameters for each network."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from enn_ppo.actor_critic import ActorCritic
from enn_ppo.config import TrainConfig


class AdamW(torch.optim.AdamW):
    """`torch.optim.AdamW` without torch's compiler, whose import takes 2 s.

    Torch decorates these methods so that the compiler leaves them alone, and the decorators import it. Nothing is compiled
    here, so the methods are taken without them.
    """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """See `torch.optim.AdamW.step`."""
        _undecorated(torch.optim.AdamW.step)(self)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """See `torch.optim.Optimizer.zero_grad`."""
        _undecorated(torch.optim.Optimizer.zero_grad)(self, set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """See `torch.optim.Optimizer.add_param_group`."""
        _undecorated(torch.optim.Optimizer.add_param_group)(self, param_group)

    def state_dict(self) -> dict[str, Any]:
        """See `torch.optim.Optimizer.state_dict`."""
        state: dict[str, Any] = _undecorated(torch.optim.Optimizer.state_dict)(self)
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """See `torch.optim.Optimizer.load_state_dict`."""
        _undecorated(torch.optim.Optimizer.load_state_dict)(self, state_dict)


def _undecorated(method: Any) -> Any:
    return getattr(method, "__wrapped__", method)


def make_optimizer(
    model: ActorCritic, config: TrainConfig, recorded_on: torch.device | None = None
) -> torch.optim.Optimizer:
    """AdamW of the policy, and in a second group of the value network where there is one.

    The learning rates are 0 until `set_learning_rates`.

    Args:
        model: with the parameters.
        config: of the run.
        recorded_on: the device that will record its steps as graphs, which read learning rates from its memory; None: none.
    """
    optim, own = config.optim, config.value_optim
    groups: list[dict[str, Any]] = [
        {
            "params": list(model.policy.parameters()),
            "weight_decay": optim.weight_decay,
            "max_grad_norm": optim.max_grad_norm,
        }
    ]
    if model.value_net is not None:
        groups.append(
            {
                "params": list(model.value_net.parameters()),
                "weight_decay": optim.weight_decay if own.weight_decay is None else own.weight_decay,
                "max_grad_norm": own.max_grad_norm or optim.max_grad_norm,
            }
        )
    if recorded_on is None:
        return AdamW(groups, lr=0.0, eps=1e-5, fused=True)
    for group in groups:
        group["lr"] = torch.zeros((), device=recorded_on)
    return AdamW(groups, lr=0.0, eps=1e-5, fused=True, capturable=recorded_on.type == "cuda")


def set_learning_rates(optimizer: torch.optim.Optimizer, rates: Iterable[float]) -> None:
    """Set the groups' learning rates, in their order; there may be more rates than groups."""
    for group, rate in zip(optimizer.param_groups, rates, strict=False):
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)  # in place, where a graph reads it
        else:
            group["lr"] = rate


def plain_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """`state_dict()` with learning rates as numbers, the same with and without graphs: either kind of run can resume it."""
    state = optimizer.state_dict()
    for group in state["param_groups"]:
        group["lr"] = float(group["lr"])
        group["capturable"] = False
    return state
