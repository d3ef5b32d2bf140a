"""What a policy asks of a device: where frames begin, and the actions.

torch's `meta` device has no memory: whatever would have to wait for a device's numbers fails there, as does what mixes devices.
A watcher counts the copies between it and the host.
"""

from collections.abc import Callable
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
from rogue_net import FrameKeys, ObsBatch, RaggedTensor, RogueNet, keyed
from rogue_net.batch import crossing
from rogue_net.batch.crossing import to_device, to_host
from rogue_net.batch.frames import Frames
from rogue_net.batch.ragged import Cuts, Gather
from rogue_net.config import RelposConfig, TranslationConfig
from tests.rogue_net.backends import ACTIONS, ALL_OF_RELPOS, SPACE, Scene, make_config
from tests.rogue_net.worlds import GLOBAL, MODE, MOVE, PICK, make_net, to_batch

META = torch.device("meta")
TO_DEVICE = "aten._to_copy.default"


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


def with_known_offsets(monkeypatch: pytest.MonkeyPatch, batch: ObsBatch) -> None:
    """The only numbers that networks ask a device for are the frames' offsets, once per batch: frames are packed on the host."""
    monkeypatch.setattr(Frames, "host_offsets", batch.frames.host_offsets)


def scene() -> ObsBatch:
    """Ships, rocks and flags, some of them hidden; every kind of action."""
    return Scene([(1, 3, 1), (0, 0, 0), (1, 4, 2)], seed=1, hide=True).batch


NETS: dict[str, Callable[[], RogueNet]] = {
    "plain": lambda: RogueNet(make_config(backend="auto"), SPACE, ACTIONS),
    "nobody": lambda: RogueNet(
        make_config(backend="auto"), SPACE, {**ACTIONS, "pick": SelectEntityActionSpace(nobody=True)}
    ),
    "pooling": lambda: RogueNet(make_config(backend="auto", pooling="meanmax"), SPACE, ACTIONS),
    "relative": lambda: RogueNet(make_config(backend="auto", relpos=RelposConfig(**ALL_OF_RELPOS)), SPACE, ACTIONS),
    "translated": lambda: RogueNet(
        make_config(
            backend="auto",
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
        loss = loss + (log_probs.values + evaluation.entropies[name].values).sum()
    loss.backward()


@pytest.mark.parametrize("name", NETS)
def test_acting_evaluating_and_their_gradients_ask_for_offsets_alone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, batch = NETS[name](), scene()
    actions = net.act(batch).actions
    with_known_offsets(monkeypatch, batch)
    net.to(META)
    there = batch.to(META)
    actions = {n: a.map(lambda tensor: tensor.to(META)) for n, a in actions.items()}
    keys = keyed(7, torch.arange(len(batch), device=META))
    with Crossings() as crossings:
        net.act(there, generator=FrameKeys(keys))
        net.value(there)
        learn(net, there, actions)
        if name != "relative":  # which looks at all pairs, some at a time
            net.update_normalization(there)
    assert set(crossings.names) <= {TO_DEVICE}  # frames packed on the host; meta refuses copies in the other direction
    assert all(parameter.grad is not None for parameter in net.parameters())


def test_global_features_and_actions_cross_with_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
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
    with_known_offsets(monkeypatch, batch)
    with Crossings() as crossings:
        there = batch.to(META)
        assert crossings.names == [TO_DEVICE] * 3
        result = net.act(there, generator=FrameKeys(keyed(7, torch.arange(3, device=META))))
        learn(net, there, result.actions)
    assert set(crossings.names) == {TO_DEVICE}


def test_gathering_all_frames_asks_nothing_of_the_device() -> None:
    there = scene().to(META)
    with Crossings() as crossings:
        there.gather(Gather(torch.arange(3, device=META), all_of_them=True))
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


def test_what_is_joined_to_cross_is_what_was_there() -> None:
    tensors = [torch.arange(5), torch.rand(3, 2), torch.tensor([True, False, True]), torch.zeros(0, 4)]
    tensors += [
        torch.rand(2, 3, 4),
        torch.tensor(3.0),
        torch.rand(2, 3).double(),
        torch.rand(4, 3).t(),
        torch.tensor(7),
    ]
    there = crossing._joined_by_type(tensors, torch.device("cpu"), pinned=False)
    assert len({each.untyped_storage().data_ptr() for each in there}) == len({tensor.dtype for tensor in tensors})
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(there, tensors, strict=True))
    cpu = torch.device("cpu")
    assert all(a is b for a, b in zip(to_device(tensors, cpu), tensors, strict=True))
    assert all((a == b.numpy()).all() for a, b in zip(to_host(tensors), tensors, strict=True))
