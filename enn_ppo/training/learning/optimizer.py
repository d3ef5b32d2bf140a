"""AdamW with a parameter group for each network, gradient sums over ranks, and gradient clipping."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from enn_ppo.settings.learning import OptimConfig
from enn_ppo.training.learning.actor_critic import ActorCritic
from enn_ppo.training.ranks import Ranks


class AdamW(torch.optim.AdamW):
    """`torch.optim.AdamW` without the decorators that import torch's compiler, which takes 2 s."""


def _undecorated(name: str) -> Any:
    method = getattr(torch.optim.AdamW, name)
    return getattr(method, "__wrapped__", method)


AdamW.step = torch.no_grad()(_undecorated("step"))  # type: ignore[method-assign]
for _name in ("zero_grad", "add_param_group", "state_dict", "load_state_dict"):
    setattr(AdamW, _name, _undecorated(_name))


def make_optimizer(model: ActorCritic, optim: OptimConfig) -> torch.optim.Optimizer:
    """Make AdamW for the policy, with a second parameter group for a separate value network.

    The learning rate is 0 until each update sets its own.
    """
    groups: list[dict[str, Any]] = [
        {"params": list(net.parameters()), "weight_decay": optim.weight_decay, "max_grad_norm": optim.max_grad_norm}
        for net in filter(None, (model.policy, model.value_net))
    ]
    return AdamW(groups, lr=0.0, eps=1e-5, fused=True)


@torch.no_grad()
def sum_gradients(groups: Sequence[Mapping[str, Any]], stats: dict[str, Tensor], ranks: Ranks) -> dict[str, Tensor]:
    """Replace every gradient by its sum over ranks, with one collective call.

    Args:
        groups: parameter groups of an optimizer. Parameters without a gradient on any rank keep none, and get no weight decay.
        stats: float32 scalars to sum in the same call.
        ranks: each has a part of the gradient.

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
    # reading the device's counts, which synchronises, is only needed for parameters without a gradient on this rank
    is_known = all(parameter.grad is not None for parameter in parameters)
    found_by_any = [True] * len(parameters) if is_known else has_gradient.tolist()
    for parameter, found, gradient in zip(parameters, found_by_any, sums, strict=True):
        parameter.grad = gradient.view_as(parameter) if found else None
    return dict(zip(stats, terms.unbind(), strict=True))


@torch.no_grad()
def clip_gradient(parameters: Sequence[Tensor], limit: float) -> Tensor:
    """Scale the gradient so that its norm is at most `limit`.

    Returns:
        The norm before scaling, a tensor (): one norm of all gradients concatenated, where `torch.nn.utils.clip_grad_norm_`
        computes one norm per parameter.
    """
    norm: Tensor = torch.cat([each.grad.flatten() for each in parameters if each.grad is not None]).norm()
    torch.nn.utils.clip_grads_with_norm_(parameters, limit, norm)
    return norm
