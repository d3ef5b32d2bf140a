"""How a batch is computed in parts changes nothing: chunks, threads, torch's modes, and memory that is used again."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rogue_net import ObsBatch
from rogue_net.config import Backend, RelposConfig
from rogue_net.frames import Frames
from rogue_net.kernels.cpu import parts, transform
from rogue_net.kernels.cpu.activations import kept_pool, nothing_kept_pool, work_pool
from rogue_net.kernels.cpu.memory import Pool
from rogue_net.kernels.cpu.threads import run_parts
from tests.rogue_net.backends import (
    EACH,
    EACH_RELPOS,
    PICK,
    SMALL,
    Results,
    Scene,
    assert_close,
    assert_tensor_near,
    blocks_of,
    even_scene,
    gradients,
    gradients_on,
    learn,
    loss_on,
    net_of,
    network,
    twin,
)

# --- Chunks and threads


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def assert_equal_but_for_rounding(given: Results, expected: Results, summands: dict[str, float]) -> None:
    for name, tensor in {**expected.outputs, **expected.gradients}.items():
        given_tensor = {**given.outputs, **given.gradients}[name]
        least = sum(size for part, size in summands.items() if part in name)
        assert_tensor_near(given_tensor, tensor, name, least, bound=1e-6)


@EACH_RELPOS
@settings(max_examples=10)
@given(
    counts=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.just(0)), min_size=6, max_size=15).filter(
        lambda counts: sum(map(sum, counts)) > 40
    ),
    seed=st.integers(0, 2**20),
)
def test_the_size_of_chunks_changes_nothing_but_the_order_of_sums(
    relpos: RelposConfig, counts: list[tuple[int, int, int]], seed: int
) -> None:
    batch, net = Scene(counts, seed, hide=True).batch, net_of("fused", relpos)
    summands = blocks_of(twin(net, "reference"), batch).summands
    expected = blocks_of(net, batch)  # one chunk
    for size in (1, 7, 40):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(transform, "CHUNK", size)
            assert_equal_but_for_rounding(blocks_of(net, batch), expected, summands)
            with torch.no_grad():
                tokens = torch.randn(expected.outputs["out"].shape, generator=torch.Generator().manual_seed(0))
                assert_tensor_near(net.transformer(tokens, batch), expected.outputs["out"], "out", bound=1e-6)


@EACH_RELPOS
def test_the_number_of_threads_changes_nothing_but_the_order_of_sums(
    relpos: RelposConfig, threads: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "PART", 50)  # so that few tokens, whose sums round little, are worth several threads
    batch, net = even_scene(12, 20).batch, net_of("fused", relpos)
    summands = blocks_of(twin(net, "reference"), batch).summands
    threads(1)
    expected = blocks_of(net, batch)
    for count in (2, 3):
        threads(count)
        assert len(parts.split(Frames.of(batch), transform.CHUNK)) == count
        assert_equal_but_for_rounding(blocks_of(net, batch), expected, summands)
    assert torch.get_num_threads() == 3


@EACH
@EACH_RELPOS
@pytest.mark.parametrize("num_threads", [1, 2])
def test_the_same_seed_and_threads_learn_the_same_bits(
    name: Backend, relpos: RelposConfig, num_threads: int, threads: Callable[[int], None]
) -> None:
    threads(num_threads)
    batch = even_scene(70, 20).batch
    weights = []
    for _ in range(2):
        net = net_of(name, relpos)
        learn(net, batch, steps=3)
        weights.append(net.state_dict() | {"values": net.value(batch)})
    for each, tensor in weights[0].items():
        assert torch.equal(weights[1][each], tensor), each


@EACH
@EACH_RELPOS
@pytest.mark.parametrize("num_threads", [1, 2])
def test_without_gradients_nothing_is_recorded_whatever_the_mode(
    name: Backend, relpos: RelposConfig, num_threads: int, threads: Callable[[int], None]
) -> None:
    threads(num_threads)
    batch = even_scene(70, 20).batch  # enough for two threads
    net = net_of(name, relpos)
    expected = blocks_of(net, batch).outputs["out"]
    tokens = torch.randn(expected.shape, generator=torch.Generator().manual_seed(0))
    for mode in (torch.inference_mode, torch.no_grad, torch.inference_mode):
        with mode():
            out = net.transformer(tokens, batch)
            assert not out.requires_grad and out.grad_fn is None
            torch.testing.assert_close(out.clone(), expected)
    assert_close(blocks_of(net, batch).outputs, {"out": expected})  # and it learns as before


def test_an_error_in_another_thread_is_raised_and_the_threads_are_given_back(threads: Callable[[int], None]) -> None:
    def work(part: int) -> None:
        if part == 1:
            raise ArithmeticError("part 1")

    threads(2)
    with pytest.raises(ArithmeticError, match="part 1"):
        run_parts(work, [0, 1])
    assert torch.get_num_threads() == 2


# --- Memory


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with all memory that the pools make."""
    sizes: list[int] = []

    def counting(make: Callable[..., Any]) -> Callable[..., Any]:
        def counted(size: int, *key: int) -> Any:
            sizes.append(size)
            return make(size, *key)

        return counted

    for pool in (kept_pool, nothing_kept_pool, work_pool):
        monkeypatch.setattr(pool, "_make", counting(pool._make))
    return sizes


@EACH_RELPOS
def test_updates_use_the_same_memory_again(relpos: RelposConfig, made: list[int]) -> None:
    net = net_of("fused", relpos)
    batches = [even_scene(20, entities).batch for entities in (10, 14, 5, 12)]

    def update(batch: ObsBatch) -> None:
        net.act(batch)
        loss = loss_on(net, batch)
        net.zero_grad()
        loss.backward()
        loss_on(net, batch)  # dropped without a backward pass

    for batch in batches:
        update(batch)
    before = len(made)
    for step in range(50):
        update(batches[step % 4])
    assert len(made) == before


def test_many_graphs_at_the_same_time_have_memory_of_their_own_and_only_some_is_kept() -> None:
    net = net_of("fused")
    expected = gradients_on(net, SMALL)
    net.zero_grad()
    losses = [loss_on(net, SMALL) for _ in range(10)]
    for loss in losses[::2]:
        loss.backward()
    assert_close(gradients(net), {each: 5 * gradient for each, gradient in expected.items()})
    del loss, losses
    for pool in (kept_pool, nothing_kept_pool, work_pool):
        assert all(len(free) <= Pool.SPARE for free in pool._free.values())


def test_a_pool_hands_nothing_out_twice_and_what_is_too_small_not_at_all() -> None:
    pool: Pool[list[int]] = Pool(lambda size, kind: [size, kind])
    first, second = pool.take((7,), 10), pool.take((7,), 10)
    assert first.memory is not second.memory
    room, kind = first.memory
    assert room >= 10 and kind == 7
    kept = first.memory
    del first
    assert pool.take((8,), 10).memory is not kept
    larger = pool.take((7,), room + 1)
    assert larger.memory[0] > room
    memory = larger.memory
    del larger
    assert pool.take((7,), 1).memory is memory


def test_memory_that_the_garbage_collector_gives_back_while_a_pool_is_asked_does_not_lock_it() -> None:
    pool: Pool[list[int]] = Pool(lambda size, kind: [size])

    def ask() -> None:
        for _ in range(50):
            cycle: list[Any] = [pool.take((1,), 4)]
            cycle.append(cycle)
        finished.append(True)

    finished: list[bool] = []
    thresholds = gc.get_threshold()
    gc.set_threshold(1)
    try:
        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        thread.join(30)
    finally:
        gc.set_threshold(*thresholds)
    assert finished == [True]


@EACH
@pytest.mark.parametrize(
    "batch",
    [SMALL[torch.tensor([], dtype=torch.int64)], Scene([(0, 0, 0)] * 3, 0).batch, Scene([(0, 0, 0)], 0, True).batch],
    ids=["no frames", "empty frames", "an empty frame"],
)
def test_a_batch_without_tokens_has_results_for_its_frames(name: Backend, batch: ObsBatch) -> None:
    net = net_of(name)
    result = net.act(batch)
    assert torch.equal(result.values, net.value_head.project.bias.detach().expand(len(batch)))
    assert len(result.log_probs[PICK]) == 0
    values = network(net, batch, result.actions).outputs["value"]
    assert torch.equal(values, result.values)
    tokens = torch.zeros(0, 16, requires_grad=True)
    net.zero_grad()
    out = net.transformer(tokens, batch)
    out.sum().backward()
    assert out.shape == (0, 16)
    for parameter in net.transformer.parameters():
        assert parameter.grad is not None and not parameter.grad.any()
