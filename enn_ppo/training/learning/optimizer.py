"""AdamW, one group of parameters for each network; gradients of all ranks, and their largest norm."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from enn_ppo.settings.config import TrainConfig
from enn_ppo.training.learning.actor_critic import ActorCritic
from enn_ppo.training.ranks import Ranks


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


@torch.no_grad()
def sum_gradients(groups: Sequence[Mapping[str, Any]], stats: dict[str, Tensor], ranks: Ranks) -> dict[str, Tensor]:
    """Make the gradient of every parameter the sum of all ranks' gradients, in one message.

    Args:
        groups: of an optimizer. Parameters that no rank has a gradient of keep none, and so are not decayed either.
        stats: float32 numbers to add up on the way.
        ranks: who has a part of the gradient.

    Returns:
        The sums of `stats`.
    """
    if ranks.size == 1:
        return stats
    parameters: list[Tensor] = [parameter for group in groups for parameter in group["params"]]
    terms = torch.stack(list(stats.values()))
    has_gradient = terms.new_tensor([parameter.grad is not None for parameter in parameters])
    gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in parameters]
    message = ranks.sum(torch.cat([terms, has_gradient, *(gradient.flatten() for gradient in gradients)]))
    sizes = [len(terms), len(parameters), *(parameter.numel() for parameter in parameters)]
    terms, has_gradient, *sums = torch.split(message, sizes)
    # asking the device, which synchronises, is only needed where this rank does not know by itself
    is_known = all(parameter.grad is not None for parameter in parameters)
    found_by_any = [True] * len(parameters) if is_known else has_gradient.tolist()
    for parameter, found, gradient in zip(parameters, found_by_any, sums, strict=True):
        parameter.grad = gradient.view_as(parameter) if found else None
    return dict(zip(stats, terms.unbind(), strict=True))


@torch.no_grad()
def clip_gradient(parameters: Sequence[Tensor], limit: float) -> Tensor:
    """Scale the gradient so that its norm is at most `limit`.

    Returns:
        Its norm before that, a tensor (): one norm of all gradients end to end, where `torch.nn.utils.clip_grad_norm_` takes
        one of each parameter.
    """
    norm: Tensor = torch.cat([each.grad.flatten() for each in parameters if each.grad is not None]).norm()
    torch.nn.utils.clip_grads_with_norm_(parameters, limit, norm)
    return norm
