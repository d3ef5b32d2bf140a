"""The compiled program with memory computes what the modules do: acting step by step, whole sequences, and gradients."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rogue_net import FrameKeys, ObsBatch, RogueNet, keyed
from rogue_net.kernels.cpu.calling import entry
from rogue_net.kernels.cpu.program import Program
from tests.rogue_net.programs import weighted
from tests.rogue_net.test_memory import KINDS, Step, batch_of, episodes, net_of


def program_of(net: RogueNet) -> Program:
    found = net.program()
    assert found is not None
    return found


def as_modules(net: RogueNet) -> RogueNet:
    twin = copy.deepcopy(net)
    twin._program, twin._has_chosen = None, True
    return twin


def assert_same_state(found: Any, expected: Any) -> None:
    assert list(found) == list(expected) == ["types", "ids", "hidden"]
    for name in found:
        torch.testing.assert_close(found[name].values, expected[name].values, atol=1e-5, rtol=1e-5)
        assert torch.equal(found[name].offsets, expected[name].offsets)


@pytest.mark.parametrize("memory", KINDS)
@given(st.lists(episodes(), min_size=2, max_size=3), st.sampled_from([0, 1, 2]))
@settings(max_examples=12, deadline=None)
def test_acting_step_by_step(memory: str, sequences: list[list[Step]], n_layer: int) -> None:
    net = net_of(memory, n_layer=n_layer)
    reference, state, expected_state = as_modules(net), None, None
    for steps in zip(*sequences, strict=False):  # a batch of environments
        batch = batch_of(list(steps))
        keys = FrameKeys(keyed(3, torch.arange(len(batch))))
        found = net.act(batch, state, generator=keys)
        expected = reference.act(batch, expected_state, generator=keys)
        torch.testing.assert_close(found.values, expected.values, atol=1e-5, rtol=1e-5)
        with torch.no_grad():  # of the actions that were found: rounding may decide between two
            judged = reference.evaluate(batch, found.actions, expected_state)
        for name, each in judged.log_probs.items():
            torch.testing.assert_close(found.log_probs[name].values, each.values, atol=2e-5, rtol=1e-5)
        torch.testing.assert_close(net.value(batch, state), expected.values, atol=1e-5, rtol=1e-5)
        assert_same_state(found.state, expected.state)
        state, expected_state = found.state, expected.state


def rollout_of(sequences: list[list[Step]]) -> tuple[ObsBatch, Tensor, Tensor, list[list[int]]]:
    """Frames ordered by step as in a rollout; the one before each; whether it has one; and the frames of each sequence."""
    frames, numbers, before = [], [[] for _ in sequences], []
    for k in range(max(map(len, sequences))):
        for number, sequence in enumerate(sequences):
            if k < len(sequence):
                before.append(numbers[number][-1] if k else -1)
                numbers[number].append(len(frames))
                frames.append(sequence[k])
    return batch_of(frames), torch.tensor(before), torch.tensor(before) >= 0, numbers


@pytest.mark.parametrize("memory", KINDS)
@given(st.lists(episodes(), min_size=1, max_size=4), st.sampled_from([0, 1, 2]), st.integers(0, 2**31), st.booleans())
@settings(max_examples=15, deadline=None)
def test_gradients_of_whole_sequences(
    memory: str, sequences: list[list[Step]], n_layer: int, seed: int, goes_on: bool
) -> None:
    net = net_of(memory, n_layer=n_layer, seed=seed % 3)
    batch, before, _, numbers = rollout_of(sequences)
    generator = torch.Generator().manual_seed(seed)
    state = None
    if goes_on:  # the first frames go on from what was remembered before; the rows of other frames have no effect
        state = net.act(batch, greedy=True).state
    actions = net.act(batch, generator=generator, temperature=1.5).actions
    order = torch.tensor([frame for each in numbers for frame in each])
    starts = np.array([k == 0 for each in numbers for k in range(len(each))])
    weights = torch.rand(3, len(batch), generator=generator) + 0.5

    exact = as_modules(net).double()
    exact_batch = batch[order].map(lambda each: each.double() if each.is_floating_point() else each)
    kept = None
    if state is not None:
        kept = {name: each.gather(order) for name, each in state.items()}  # type: ignore[union-attr]
        kept["hidden"] = kept["hidden"]._replace(values=kept["hidden"].values.double())
    ordered = {name: each.gather(order) for name, each in actions.items()}
    found = exact.evaluate(exact_batch, ordered, kept, torch.from_numpy(~starts))
    of_log_prob, of_entropy, of_value = weights.double()
    total = (of_value * found.values).sum()
    for name, each in ordered.items():
        total = total + (of_log_prob[each.sequences] * found.log_probs[name].values).sum()
        total = total + (of_entropy[each.sequences] * found.entropies[name].values).sum()
    total.backward()

    program = program_of(net)
    program.refresh()
    log_probs = {name: torch.zeros(len(each.values)) for name, each in actions.items()}
    columns = program.columns(batch, actions, log_probs, None, state, before)
    stats = program.gradient(
        columns, order.numpy(), entry(weighted), np.zeros(1, np.float32), weights.numpy(), 3, starts=starts
    )
    torch.testing.assert_close(stats.sum().double(), total.detach(), atol=1e-3, rtol=1e-5)
    expected = dict(exact.named_parameters())
    names = {id(each): name for name, each in net.named_parameters()}
    largest = max(float(each.grad.abs().max()) for each in expected.values() if each.grad is not None)
    for parameter, part in zip(program.parameters, program.parts_of(program.gradient_flat), strict=True):
        gradient = expected[names[id(parameter)]].grad
        wanted = torch.zeros_like(part).double() if gradient is None else gradient
        assert float((part.double() - wanted).abs().max()) < 2e-5 * max(1.0, largest), names[id(parameter)]


def test_sequences_longer_than_a_tile_and_many_threads() -> None:
    rng = np.random.default_rng(0)

    def step() -> Step:
        units = rng.permutation(12)[: rng.integers(6, 12)].tolist()
        return Step(units, [1, 2], rng.normal(size=len(units) + 3).tolist())

    sequences = [[step() for _ in range(20)] for _ in range(8)]
    batch, before, _, numbers = rollout_of(sequences)
    net = net_of("both")
    order = torch.tensor([frame for each in numbers for frame in each])
    follows = torch.tensor([k > 0 for each in numbers for k in range(len(each))])
    actions = net.act(batch, greedy=True).actions
    ordered = {name: each.gather(order) for name, each in actions.items()}
    threads = torch.get_num_threads()
    try:
        values = []
        for number in (1, 2):
            torch.set_num_threads(number)
            values.append(program_of(net).evaluate(batch[order], ordered, None, follows)[1])
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*values)
    with torch.no_grad():
        expected = as_modules(net).evaluate(batch[order], ordered, None, follows).values
    torch.testing.assert_close(values[0], expected, atol=1e-5, rtol=1e-5)


def test_a_state_that_does_not_fit_is_refused() -> None:
    net, batch = net_of("both"), batch_of([Step([1], [2], [0.0] * 3)])
    state: Any = net.act(batch, greedy=True).state
    for name, change, message in (
        ("hidden", lambda each: each._replace(values=each.values[:, :8]), "state 'hidden' of shape"),
        ("ids", lambda each: each._replace(offsets=each.offsets * 2), "state 'ids' of shape"),
        ("types", lambda each: each._replace(values=each.values.int()), "must be torch.int64"),
    ):
        with pytest.raises(ValueError, match=message):
            net.act(batch, state | {name: change(state[name])}, greedy=True)
