"""What a policy asks of a device: nothing, but for the actions.

torch's `meta` device has no memory: whatever would have to wait for a device's numbers fails there, as does what mixes devices.
A watcher counts the copies between it and the host.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from entity_gym import (
    CategoricalActionMask,
    GlobalCategoricalActionMask,
    Observation,
    SelectEntityActionMask,
    SelectEntityActionSpace,
)
from entity_gym.registry import make
from rogue_net import FrameKeys, ObsBatch, RaggedTensor, RogueNet, keyed, transformer
from rogue_net.batch import crossing
from rogue_net.batch.crossing import cut, in_one_copy, is_on, join, to_device, to_host, views
from rogue_net.batch.frames import Frames
from rogue_net.batch.padding import Capacity, padded, token_pairs_in
from rogue_net.batch.ragged import Cuts, Gather
from rogue_net.config import RelposConfig, TranslationConfig
from rogue_net.kernels import select
from tests.rogue_net.backends import ACTIONS, ALL_OF_RELPOS, SPACE, Scene, make_config
from tests.rogue_net.worlds import GLOBAL, MODE, MOVE, PICK, make_net, to_batch

META = torch.device("meta")


class Crossings(TorchDispatchMode):
    """Counts the operations that have tensors here and on a device."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = [each for each in tree_leaves((args, kwargs, result)) if isinstance(each, Tensor)]
        if len({each.device.type for each in tensors}) > 1:
            self.names.append(str(func))
        return result


@pytest.fixture(autouse=True)
def device_like_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels are thought to run on `meta`, where attention is anything with the right gradients' shapes."""

    def attention(qkv: Tensor, frames: Frames, relative: Any = None, **_: Any) -> Tensor:
        frames.bounds(len(qkv))
        if relative is None:
            return qkv.sum(1)
        gate = 0.0 if relative.gate is None else relative.gate.sum()
        return qkv.sum(1) + relative.keys.rows.sum() + relative.values.rows.sum() + gate

    monkeypatch.setattr(select, "TRITON_DEVICES", {"meta"})
    monkeypatch.setattr(transformer, "ragged_attention", attention)
    yield


def scene() -> ObsBatch:
    """Ships, rocks and flags, some of them hidden; every kind of action."""
    return Scene([(1, 3, 1), (0, 0, 0), (1, 4, 2)], seed=1, hide=True).batch


NETS: dict[str, Callable[[], RogueNet]] = {
    "plain": lambda: RogueNet(make_config(backend="fused"), SPACE, ACTIONS),
    "nobody": lambda: RogueNet(
        make_config(backend="fused"), SPACE, {**ACTIONS, "pick": SelectEntityActionSpace(nobody=True)}
    ),
    "pooling": lambda: RogueNet(make_config(backend="auto", pooling="meanmax"), SPACE, ACTIONS),
    "relative": lambda: RogueNet(make_config(backend="fused", relpos=RelposConfig(**ALL_OF_RELPOS)), SPACE, ACTIONS),
    "translated": lambda: RogueNet(
        make_config(
            backend="fused",
            translation=TranslationConfig(
                reference_entity="Ship",
                position_features=["x", "y"],
                rotation_vec_features=["dx", "dy"],
                add_distance=True,
            ),
        ),
        SPACE,
        ACTIONS,
    ),
}


def learn(net: RogueNet, batch: ObsBatch, actions: dict[str, RaggedTensor]) -> None:
    evaluation = net.evaluate(batch, actions)
    loss = evaluation.values.sum()
    for name, log_probs in evaluation.log_probs.items():
        loss = loss + (log_probs + evaluation.entropies[name]).sum()
    loss.backward()


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("full", [False, True], ids=["ragged", "padded"])
def test_acting_evaluating_and_their_gradients_ask_nothing_of_the_device(name: str, full: bool) -> None:
    net, batch = NETS[name](), scene()
    actions = net.act(batch).actions
    if full:
        capacity = Capacity.of(batch, token_pairs=True)
        actions = {n: a for n, a in net.act(padded(batch, capacity)).actions.items()}
        batch = padded(batch, capacity)
    net.to(META)
    # of relative positions alone, and where nothing is filled up, the host has to know how many pairs there are
    batch = batch if full else replace(batch, num_token_pairs=token_pairs_in(batch))
    there = batch.to(META)
    actions = {n: a.map(lambda tensor: tensor.to(META)) for n, a in actions.items()}
    keys = keyed(7, torch.arange(len(batch), device=META))
    with Crossings() as crossings:
        net.act(there, generator=FrameKeys(keys))
        net.value(there)
        learn(net, there, actions)
        if name != "relative":  # which looks at all pairs, some at a time
            net.update_normalization(there)
    assert crossings.names == []
    assert all(parameter.grad is not None for parameter in net.parameters())


def test_global_features_and_actions_cross_with_the_rest_and_ask_nothing() -> None:
    frame = Observation(
        features={
            "unit.scout": np.ones((2, 2), np.float32),
            "forward": np.ones((1, 1), np.float32),
            "flag": np.ones((1, 0), np.float32),
        },
        ids={"unit.scout": ["a", "b"], "forward": ["c"], "flag": ["d"]},
        actions={
            MOVE: CategoricalActionMask(actor_ids=["a"], mask=[[True, False, True]]),
            PICK: SelectEntityActionMask(actor_ids=["a", "c"], actee_ids=["b", "d"]),
            MODE: GlobalCategoricalActionMask(),
        },
        global_features=np.ones(2, np.float32),
    )
    net, batch = make_net(GLOBAL).to(META), to_batch([frame] * 3, GLOBAL)
    with Crossings() as crossings:
        there = batch.to(META)
        result = net.act(there, generator=FrameKeys(keyed(7, torch.arange(3, device=META))))
        learn(net, there, result.actions)
    assert len(crossings.names) == 1


def test_observations_cross_as_one_copy() -> None:
    batch = scene()
    with Crossings() as crossings:
        there = batch.to(META)
        padded(batch, Capacity.of(batch)).to(META)
    assert crossings.names == ["aten.copy_.default"] * 2
    assert [tensor.shape for tensor in there.tensors()] == [tensor.shape for tensor in batch.tensors()]


def test_gathering_all_frames_and_filling_up_ask_nothing_of_the_device() -> None:
    there = scene().to(META)
    order = torch.arange(3, device=META)
    with Crossings() as crossings:
        there.gather(Gather(order, all_of_them=True))
        padded(there, Capacity.of(there))
    assert crossings.names == []


def test_splitting_asks_once() -> None:
    batch = scene()
    asked: list[Tensor] = []
    original = Tensor.tolist

    def tolist(tensor: Tensor) -> Any:
        asked.append(tensor)
        return original(tensor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tensor, "tolist", tolist)
        parts = batch.split(Cuts([1, 2], batch.offsets))
    assert len(asked) == 1
    whole = ObsBatch.cat(parts)
    for name, ragged in batch.features.items():
        assert all(torch.equal(before, after) for before, after in zip(ragged, whole.features[name], strict=True))
    assert [part.action_masks["pick"].num_pairs for part in parts] == [  # type: ignore[union-attr]
        int(part.action_masks["pick"].pair_offsets[-1])
        for part in parts  # type: ignore[union-attr]
    ]


def test_parts_know_their_pairs_of_entities_so_that_a_capacity_asks_nothing_of_the_device() -> None:
    batch = scene()
    parts = batch.split(Cuts([1, 2], batch.offsets))
    assert [part.num_token_pairs for part in parts] == [5 * 5, 7 * 7]
    capacity = Capacity.of(batch, token_pairs=True)
    with Crossings() as crossings:
        assert all(capacity.fits(part.to(META)) for part in parts)
        assert not replace(capacity, token_pairs=49).fits(parts[1].to(META))
    assert crossings.names == ["aten.copy_.default"] * 3  # those of the test


@pytest.mark.parametrize(
    ("here", "wanted", "is_there"),
    [
        ("cpu", "cpu", True),
        ("cpu", "cpu:0", True),
        ("cpu", "cuda", False),
        ("cuda:0", "cpu", False),
        ("cuda:0", "cuda:0", True),
        ("cuda:0", "cuda:1", False),
        ("cuda:1", "cuda:0", False),
        ("cuda:1", "cuda", True),  # any GPU
    ],
)
def test_gpus_are_told_apart_by_their_number(here: str, wanted: str, is_there: bool) -> None:
    assert is_on(torch.device(here), torch.device(wanted)) == is_there


def test_a_batch_of_one_gpu_moves_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = scene()
    monkeypatch.setattr(ObsBatch, "device", torch.device("cuda:1"))
    moves: list[torch.device] = []
    monkeypatch.setattr(Tensor, "to", lambda tensor, device: moves.append(device) or tensor)
    for stays in ("cuda:1", "cuda"):
        assert batch.to(torch.device(stays)) is batch
    assert not moves
    batch.to(torch.device("cuda:0"))
    assert set(moves) == {torch.device("cuda:0")}


def test_a_step_is_packed_as_one_copy_and_is_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    with make("MineSweeper", num_envs=5, seed=1, orbital_cannon=True) as pool:
        obs = pool.reset(1)
    expected = ObsBatch.from_vec_obs(obs)
    copies: list[int] = []
    enqueue = crossing._enqueue
    monkeypatch.setattr(crossing, "_enqueue", lambda there, host: [copies.append(len(host)), enqueue(there, host)])
    monkeypatch.setattr(crossing, "is_host", lambda device: False)  # the CPU takes the way of a GPU
    packed = ObsBatch.from_vec_obs(obs)
    assert len(copies) == 1
    pairs = list(zip(packed.tensors(), expected.tensors(), strict=True))
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in pairs)
    starts = [a.data_ptr() - pairs[0][0].untyped_storage().data_ptr() for a, _ in pairs if a.numel()]
    assert all(start % 16 == 0 for start in starts)  # as kernels like it
    assert len({a.untyped_storage().data_ptr() for a, _ in pairs}) == 1


def test_what_crosses_is_what_was_there() -> None:
    tensors = [torch.arange(5), torch.rand(3, 2), torch.tensor([True, False, True]), torch.zeros(0, 4)]
    tensors += [torch.rand(2, 3, 4), torch.tensor(3.0), torch.rand(2, 3).double()]
    cpu = torch.device("cpu")
    for memory in (None, torch.empty(sum(tensor.nbytes + 16 for tensor in tensors), dtype=torch.uint8)):
        there = to_device(tensors, cpu, memory)
        assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(tensors, there, strict=True))
        assert len({tensor.untyped_storage().data_ptr() for tensor in there if tensor.numel()}) == 1
    assert memory is not None
    again = views(memory.clone(), tensors)
    assert all(torch.equal(a, b) for a, b in zip(tensors, again, strict=True))
    assert all((a == b.numpy()).all() for a, b in zip(to_host(tensors), tensors, strict=True))
    mixed = [*tensors, torch.tensor(7), torch.rand(4, 3).t(), torch.tensor([True])]
    joined = join(mixed)
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(cut(*joined), mixed, strict=True))
    for array, tensor in zip(in_one_copy(joined), mixed, strict=True):
        assert array.dtype == tensor.numpy().dtype and array.shape == tensor.shape and (array == tensor.numpy()).all()
        assert array.flags.aligned
