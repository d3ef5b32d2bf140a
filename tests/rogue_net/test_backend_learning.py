"""A network is a module like any other of torch's: graphs, gradients and hooks by modules, copies and weights by programs too."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from rogue_net import ObsBatch, RogueNet
from rogue_net.config import Backend, RelposConfig
from tests.rogue_net.backends import (
    EACH,
    EACH_RELPOS,
    OTHER,
    SMALL,
    assert_close,
    gradients,
    gradients_on,
    learn,
    loss_on,
    net_of,
    twin,
)

# --- Graphs: on CPUs modules alone have them


@EACH_RELPOS
def test_gradients_of_two_graphs_that_live_at_the_same_time_add_up(relpos: RelposConfig) -> None:
    net = net_of("reference", relpos)
    first, second = gradients_on(net, SMALL), gradients_on(net, OTHER)
    for order in ([0, 1], [1, 0]):
        net.zero_grad()
        losses = [loss_on(net, SMALL), loss_on(net, OTHER)]
        net.act(SMALL)
        for which in order:
            losses[which].backward()
        assert_close(gradients(net), {each: first[each] + second[each] for each in first})


def test_second_derivatives_of_what_has_none_are_an_error_and_not_wrong() -> None:
    net = net_of("reference")
    first = torch.autograd.grad(loss_on(net, SMALL), list(net.transformer.blocks.parameters()), create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable|not implemented"):
        first[0].sum().backward()


# --- Copies and weights


def values_of(net: RogueNet, batch: ObsBatch = SMALL) -> Tensor:
    """As whatever acts computes them: a program if there can be one."""
    return net.act(batch, greedy=True).values


@EACH
def test_a_copy_and_its_original_learn_on_their_own(name: Backend) -> None:
    net = net_of(name)
    loss_on(net, SMALL).backward()
    values = values_of(net)
    other = copy.deepcopy(net)
    before = copy.deepcopy(net.state_dict())
    expected = twin(net, "reference")
    for each in (other, expected):
        learn(each, OTHER)
    assert_close(other.state_dict(), expected.state_dict())
    torch.testing.assert_close(values_of(other), values_of(expected), atol=1e-5, rtol=1e-5)
    assert all(torch.equal(weight, before[each]) for each, weight in net.state_dict().items())
    assert torch.equal(values_of(net), values)
    learn(net, SMALL)
    assert_close(other.state_dict(), expected.state_dict())
    torch.testing.assert_close(values_of(other), values_of(expected), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(values_of(net), values, atol=1e-3)


@EACH
def test_weights_loaded_before_or_after_a_forward_pass_count(name: Backend) -> None:
    source = net_of("reference", seed=1)
    expected = gradients_on(source, SMALL)
    for assign in (False, True):
        fresh, used = net_of(name, seed=2), net_of(name, seed=3)
        gradients_on(used, OTHER)
        used.act(OTHER, greedy=True)
        for net in (fresh, used):
            net.load_state_dict(copy.deepcopy(source.state_dict()), assign=assign)
            torch.testing.assert_close(values_of(net), source.value(SMALL))
            assert_close(gradients_on(net, SMALL), expected)


@EACH
def test_every_step_of_an_optimizer_counts(name: Backend) -> None:
    net, expected = net_of(name), net_of("reference")
    for _ in range(4):
        for each in (net, expected):
            learn(each, SMALL, steps=1)
        torch.testing.assert_close(values_of(net), expected.value(SMALL))
    assert not torch.allclose(values_of(net), values_of(net_of(name)), atol=1e-3)


def test_hooks_of_parameters_are_called_once_with_the_whole_gradient() -> None:
    """How gradients are averaged among processes, and how optimizers step while others still compute."""
    net = net_of("reference")
    expected, calls = gradients_on(net, SMALL), {}
    net.zero_grad()
    for each, parameter in net.named_parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda parameter, each=each: calls.setdefault(each, []).append(parameter.grad.clone())
        )
    loss_on(net, SMALL).backward()
    assert calls.keys() == dict(net.named_parameters()).keys()
    assert_close({each: gradient for each, (gradient,) in calls.items()}, expected)
