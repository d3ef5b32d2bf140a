"""How a batch is computed in parts changes nothing: tiles, threads, torch's modes, and memory that is used again."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rogue_net import FrameKeys, ObsBatch, RogueNet, keyed
from rogue_net.config import Backend, RelposConfig
from rogue_net.kernels.cpu import program
from rogue_net.kernels.cpu.adamw import CompiledAdamW
from rogue_net.kernels.cpu.program import Program
from rogue_net.kernels.cpu.threads import run_parts
from tests.rogue_net.backends import (
    EACH,
    EACH_RELPOS,
    PICK,
    SMALL,
    Results,
    Scene,
    assert_tensor_near,
    even_scene,
    net_of,
    network,
    twin,
)
from tests.rogue_net.programs import Given, by_modules, by_program, given_for, run_program

# --- Tiles and threads


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def made_for(net: RogueNet, batch: ObsBatch) -> tuple[Given, dict[str, float]]:
    """What a program is given, and the summands of the gradients that are 0."""
    given = given_for(twin(net, "reference"), batch, 0)
    return given, by_modules(twin(net, "reference", torch.float64), given).summands


def assert_equal_but_for_rounding(given: Results, expected: Results, summands: dict[str, float]) -> None:
    for name, tensor in {**expected.outputs, **expected.gradients}.items():
        given_tensor = {**given.outputs, **given.gradients}[name]
        least = sum(size for part, size in summands.items() if part in name)
        assert_tensor_near(given_tensor, tensor, name, least, bound=1e-6)


def frame_keys(batch: ObsBatch) -> FrameKeys:
    return FrameKeys(keyed(3, torch.arange(len(batch))))


@EACH_RELPOS
@settings(max_examples=10)
@given(
    counts=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.just(0)), min_size=6, max_size=9).filter(
        lambda counts: sum(map(sum, counts)) > 40
    ),
    seed=st.integers(0, 2**20),
)
def test_the_size_of_tiles_changes_nothing_but_the_order_of_sums(
    relpos: RelposConfig, counts: list[tuple[int, int, int]], seed: int
) -> None:
    batch, net = Scene(counts, seed, hide=True).batch, net_of("fused", relpos)
    given, summands = made_for(net, batch)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, "usual_room", lambda width: 1000)
        expected = by_program(net, given)  # one tile
        for size in (1, 7, 40):
            patch.setattr(program, "usual_room", lambda width, size=size: size)
            assert_equal_but_for_rounding(by_program(net, given), expected, summands)


@EACH_RELPOS
def test_the_number_of_threads_changes_nothing_but_the_order_of_sums(
    relpos: RelposConfig, threads: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    # so that few tokens, whose sums round little, are worth several threads
    monkeypatch.setattr(program, "TOKENS_OF_A_THREAD", 50)
    parts: list[int] = []
    monkeypatch.setattr(program, "run_parts", lambda work, count: (parts.append(count), run_parts(work, count)))
    batch, net = even_scene(12, 20).batch, net_of("fused", relpos)
    given, summands = made_for(net, batch)
    threads(1)
    expected, acted = by_program(net, given), net.act(batch, generator=frame_keys(batch))
    for count in (2, 3):
        threads(count)
        parts.clear()
        assert_equal_but_for_rounding(by_program(net, given), expected, summands)
        again = net.act(batch, generator=frame_keys(batch))
        assert parts == [count] * 3  # log-probs, gradients, actions
        assert torch.equal(again.values, acted.values)
        for name, actions in acted.actions.items():
            assert torch.equal(again.actions[name].values, actions.values)
            assert torch.equal(again.log_probs[name].values, acted.log_probs[name].values)
    assert torch.get_num_threads() == 3


@EACH_RELPOS
def test_the_same_number_of_threads_learns_the_same_bits(relpos: RelposConfig, threads: Callable[[int], None]) -> None:
    batch = even_scene(70, 20).batch  # enough for two threads
    given = given_for(net_of("reference", relpos), batch, 0)
    before = net_of("fused", relpos).value_head.project.weight
    for num_threads in (1, 2):
        threads(num_threads)
        first, second = net_of("fused", relpos), net_of("fused", relpos)
        for net in (first, second):
            learn_by_program(net, given, steps=3)
        torch.testing.assert_close(first.state_dict(), second.state_dict(), atol=0, rtol=0)
        assert not torch.equal(first.value_head.project.weight, before)


def learn_by_program(net: RogueNet, given: Given, steps: int) -> None:
    parameters = [
        each for part in (net.heads, net.embedding, net.transformer, net.value_head) for each in part.parameters()
    ]
    adamw = CompiledAdamW(net, torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.0), 0)
    adamw.begin()
    for _ in range(steps):
        run_program(adamw.program, given)
        adamw.step(1e9)
    adamw.end()


# --- Parameters as views of one flat tensor


def test_parameters_of_the_modules_are_views_of_the_programs_and_stay_the_objects_that_optimizers_hold() -> None:
    net = net_of("fused")
    before = dict(net.named_parameters())
    numbers = {name: each.clone() for name, each in before.items()}
    made = net.program()
    assert made is not None
    made.refresh()
    memory = made.flat.untyped_storage().data_ptr()
    assert all(each.untyped_storage().data_ptr() == memory for each in made.parameters)
    for name, parameter in net.named_parameters():
        assert parameter is before[name] and torch.equal(parameter, numbers[name])
    made.flat.add_(1)
    torch.testing.assert_close(
        net.heads[0].state_dict(),
        {  # in place, without a copy
            name.removeprefix("heads.0."): each + 1 for name, each in numbers.items() if name.startswith("heads.0.")
        },
    )


def test_parameters_that_get_other_memory_are_taken_again() -> None:
    net = net_of("fused")
    net.act(SMALL, greedy=True)
    other = net_of("fused", seed=2)
    for mine, each in zip(net.parameters(), other.parameters(), strict=True):
        mine.data = each.data.clone()
    torch.testing.assert_close(net.act(SMALL, greedy=True).values, other.act(SMALL, greedy=True).values, atol=0, rtol=0)


def test_a_pickle_or_copy_of_a_network_that_has_acted_is_as_large_as_before() -> None:
    net = net_of("fused")
    size = len(pickle.dumps(net))
    expected = net.act(SMALL, greedy=True).values
    assert len(pickle.dumps(net)) == len(pickle.dumps(copy.deepcopy(net))) == size
    for each in (net, pickle.loads(pickle.dumps(net)), copy.deepcopy(net)):
        assert torch.equal(each.act(SMALL, greedy=True).values, expected)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_steps_by_kernels_and_by_pytorch_take_turns_with_one_state(decay: float) -> None:
    given = given_for(net_of("reference"), SMALL, 0)
    mixed, plain = net_of("fused"), net_of("fused")
    optimizers = [torch.optim.AdamW(net.parameters(), lr=0.01, eps=1e-2, weight_decay=decay) for net in (mixed, plain)]
    for step in range(6):
        for net, optimizer in zip((mixed, plain), optimizers, strict=True):
            adamw = CompiledAdamW(net, optimizer, 0)
            adamw.begin()
            run_program(adamw.program, given)
            if net is mixed and step % 3:
                adamw.step(1e9)
                adamw.end()
            else:
                gradients = adamw.program.parts_of(adamw.program.gradient_flat)
                for parameter, gradient in zip(adamw.program.parameters, gradients, strict=True):
                    parameter.grad = gradient.clone()
                optimizer.step()
    torch.testing.assert_close(mixed.state_dict(), plain.state_dict(), atol=1e-4, rtol=1e-4)
    assert torch.equal(
        mixed.act(SMALL, greedy=True).values, pickle.loads(pickle.dumps(mixed)).act(SMALL, greedy=True).values
    )


def test_an_error_in_another_thread_is_raised_and_the_threads_are_given_back() -> None:
    def work(part: int) -> None:
        if part == 1:
            raise ArithmeticError("part 1")

    with pytest.raises(ArithmeticError, match="part 1"):
        run_parts(work, 2)
    done: list[int] = []
    run_parts(done.append, 2)
    assert sorted(done) == [0, 1]


# --- Memory


def test_memory_does_not_grow_with_the_pairs_of_attention() -> None:
    relative = Program(net_of("fused"))

    def numbers(room: int) -> int:
        held: Any = relative._new_memory()
        held.of(room, room, 0, 3, 3)
        return len(held._floats)

    sizes = [numbers(room) for room in (256, 512, 1024)]
    assert sizes[2] - sizes[1] == 2 * (sizes[1] - sizes[0])


@EACH
@EACH_RELPOS
@pytest.mark.parametrize("frames", [0, 1, 3])
def test_a_batch_without_tokens_has_results_for_its_frames(name: Backend, relpos: RelposConfig, frames: int) -> None:
    batch = SMALL[torch.ones(frames, dtype=torch.int64)]
    assert batch.num_tokens == 0
    net = net_of(name, relpos)
    result = net.act(batch, generator=frame_keys(batch))
    assert torch.equal(result.values, net.value_head.project.bias.detach().expand(frames))
    assert len(result.log_probs[PICK].values) == 0
    if name == "fused":
        gradients = by_program(net, given_for(net_of("reference", relpos), batch, 0)).gradients
    else:
        results = network(net, batch, result.actions)
        assert torch.equal(results.outputs["value"], result.values)
        gradients = results.gradients
    assert all(not each.any() for part, each in gradients.items() if part.startswith("transformer"))
