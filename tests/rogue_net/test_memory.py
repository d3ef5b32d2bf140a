"""Memory belongs to entities: it is found by their ids, and stepping one by one is the same as whole sequences."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from entity_gym import CategoricalActionSpace, Entity, GlobalCategoricalActionSpace, ObsSpace, SelectEntityActionSpace
from entity_gym.spaces import GLOBAL_ENTITY
from rogue_net import ObsBatch, RaggedTensor, RogueNet, RogueNetConfig
from rogue_net.batch.obs_batch import ActionMask
from rogue_net.memory import Memory
from rogue_net.transfer import transfer

SPACE = ObsSpace({"Unit": Entity(["x"]), "Rock": Entity(["x"])}, global_features=["time"])
ACTIONS = {"Move": CategoricalActionSpace(("a", "b")), "Pick": SelectEntityActionSpace()}
KINDS = ("entity", "frame", "both")


class Step(NamedTuple):
    """One frame: ids of its units and rocks, and what they show."""

    units: list[int]
    rocks: list[int]
    shown: list[float]  # of units, then of rocks, then of the frame


def ragged(rows: list[list[Any]], dtype: torch.dtype) -> RaggedTensor:
    offsets = torch.tensor([0, *np.cumsum([len(row) for row in rows])])
    return RaggedTensor(torch.tensor([[each] for row in rows for each in row], dtype=dtype).reshape(-1, 1), offsets)


def batch_of(steps: list[Step]) -> ObsBatch:
    """The frames of several steps. Units act, and pick rocks and units."""
    units, rocks = [step.units for step in steps], [step.rocks for step in steps]
    counts = [len(each) for each in units]
    features = {
        "Unit": ragged([step.shown[:n] for step, n in zip(steps, counts, strict=True)], torch.float32),
        "Rock": ragged([step.shown[n:-1] for step, n in zip(steps, counts, strict=True)], torch.float32),
        GLOBAL_ENTITY: ragged([step.shown[-1:] for step in steps], torch.float32),
    }
    actors = ragged([list(range(n)) for n in counts], torch.int64)
    actees = ragged([list(range(len(step.units) + len(step.rocks))) for step in steps], torch.int64)
    masks = {"Move": ActionMask(actors), "Pick": ActionMask(actors, actees)}
    ids = {"Unit": ragged(units, torch.int64), "Rock": ragged(rocks, torch.int64)}
    return ObsBatch(len(steps), features, masks, ids=ids)


@st.composite
def episodes(draw: st.DrawFn) -> list[Step]:
    """Entities that come, go and change places; units and rocks may have the same ids."""
    steps = []
    for _ in range(draw(st.integers(1, 6))):
        units, rocks = (draw(st.lists(st.integers(0, 4), unique=True, max_size=4)) for _ in range(2))
        size = len(units) + len(rocks) + 1
        steps.append(Step(units, rocks, draw(st.lists(st.floats(-2, 2, width=32), min_size=size, max_size=size))))
    return steps


def net_of(memory: Any, seed: int = 0, **options: Any) -> RogueNet:
    torch.manual_seed(seed)
    net = RogueNet(RogueNetConfig(**{"d_model": 16, "n_layer": 2, "memory": memory} | options), SPACE, ACTIONS)
    with torch.no_grad():  # as after some training, since a new layer adds little
        for parameter in net.transformer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return net.eval()


def one_by_one(net: RogueNet, steps: list[Step], state: Any = None) -> tuple[list[dict[str, Tensor]], Any]:
    """Logits and values of each step, where the state is carried from one to the next; and the last state."""
    found = []
    for step in steps:
        acted = net.act(batch_of([step]), state, greedy=True, logits=True)
        assert acted.logits is not None
        found.append({name: each.values for name, each in acted.logits.items()} | {"value": acted.values})
        state = acted.state
    return found, state


def as_sequences(net: RogueNet, sequences: list[list[Step]], state: Any = None) -> dict[str, Tensor]:
    """Logits and values of whole sequences in one pass."""
    steps = [step for sequence in sequences for step in sequence]
    batch = batch_of(steps)
    follows = torch.tensor([k > 0 for sequence in sequences for k in range(len(sequence))])
    actions = net.act(batch, greedy=True).actions
    found = net.evaluate(batch, actions, state, follows)
    return {**found.logits, "value": found.values}


@pytest.mark.parametrize("memory", KINDS)
@given(st.lists(episodes(), min_size=1, max_size=3))
@settings(max_examples=15, deadline=None)
def test_stepping_one_by_one_is_the_same_as_whole_sequences(memory: str, sequences: list[list[Step]]) -> None:
    net = net_of(memory)
    stepped = [each for sequence in sequences for each in one_by_one(net, sequence)[0]]
    whole = as_sequences(net, sequences)
    for name in whole:
        torch.testing.assert_close(torch.cat([each[name] for each in stepped]), whole[name], atol=1e-5, rtol=1e-5)


@given(episodes(), st.integers(0, 6))
@settings(max_examples=15, deadline=None)
def test_a_sequence_goes_on_from_the_state_that_was_kept_before_it(steps: list[Step], cut: int) -> None:
    net = net_of("both")
    expected, _ = one_by_one(net, steps)
    _, state = one_by_one(net, steps[:cut])
    rest = steps[cut:]
    if rest and state is not None:
        blank = [RaggedTensor(each.values[:0], torch.zeros(len(rest), dtype=torch.int64)) for each in state.values()]
        padded = {
            name: RaggedTensor(each.values, torch.cat([each.offsets, each.offsets[-1] + none.offsets[1:]]))
            for (name, each), none in zip(state.items(), blank, strict=True)
        }
        found = as_sequences(net, [rest], padded)
        for name in found:
            torch.testing.assert_close(
                torch.cat([each[name] for each in expected[cut:]]), found[name], atol=1e-5, rtol=1e-5
            )


def hidden_of(net: RogueNet, steps: list[Step]) -> dict[tuple[int, int], Tensor]:
    """(Number of the type, id) -> what is remembered after the last step."""
    state = one_by_one(net, steps)[1]
    keys = zip(state["types"].values[:, 0].tolist(), state["ids"].values[:, 0].tolist(), strict=True)
    return dict(zip(keys, state["hidden"].values, strict=True))


def test_who_takes_the_place_of_another_one_knows_nothing_of_what_that_one_knew() -> None:
    net = net_of("entity", n_head=1)
    for block in net.transformer.blocks:  # entities see only themselves, so that nothing but memory could leak
        torch.nn.init.zeros_(block.project.weight)  # type: ignore[union-attr, arg-type]
    now = Step([7], [], [0.5, 0.0])
    for before in ([3], [7]):
        seen = [hidden_of(net, [Step(before, [], [shown, 0.0]), now])[0, 7] for shown in (-1.0, 1.0)]
        assert torch.equal(*seen) == (before == [3])
    returned = [Step([7], [], [1.0, 0.0]), Step([], [], [0.0]), now]
    assert torch.equal(hidden_of(net, returned)[0, 7], hidden_of(net, [now])[0, 7]), "gone for a step is forgotten"


def test_a_unit_and_a_rock_with_the_same_id_are_two() -> None:
    net = net_of("entity")
    known = hidden_of(net, [Step([1], [1], [0.3, -0.4, 0.0])])
    assert set(known) == {(0, 1), (1, 1)} and not torch.equal(known[0, 1], known[1, 1])
    assert hidden_of(net, [Step([1], [], [0.3, 0.0]), Step([], [1], [0.1, 0.0])]).keys() == {(1, 1)}


def test_the_order_of_entities_changes_nothing() -> None:
    net = net_of("both")
    first = Step([1, 2, 3], [5], [0.1, 0.2, 0.3, 0.4, 0.5])
    for order in ([1, 2, 3], [3, 1, 2]):
        then = Step(order, [5], [*({1: 0.0, 2: 0.5, 3: -0.5}[k] for k in order), 0.9, 0.1])
        known = hidden_of(net, [first, then])
        if order == [1, 2, 3]:
            expected = known
        for key, each in known.items():
            torch.testing.assert_close(each, expected[key], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("memory, remembered", [("entity", {0, 1}), ("frame", {2}), ("both", {0, 1, 2})])
def test_who_remembers(memory: str, remembered: set[int]) -> None:
    assert {kind for kind, _ in hidden_of(net_of(memory), [Step([1], [2], [0.0] * 3)])} == remembered


def test_types_can_be_left_out() -> None:
    assert {kind for kind, _ in hidden_of(net_of("both", memory_types=["Rock"]), [Step([1], [2], [0.0] * 3)])} == {1, 2}


def test_entities_without_an_id_remember_nothing() -> None:
    assert hidden_of(net_of("entity"), [Step([-1, 4], [], [0.0] * 3)]).keys() == {(0, 4)}


def test_a_golden_step() -> None:
    """D = 2, two steps of one entity, worked out by hand: norm(x) is ±1 in each, gates are 1/2 and 1/4."""
    layer = Memory("entity", 2, ["Unit"])
    with torch.no_grad():
        layer.gates.weight.copy_(torch.cat([torch.zeros(2, 2), 4 * torch.eye(2)]))
        layer.gates.bias.copy_(torch.tensor([0.0, -np.log(3.0), 0.0, 0.0]))  # z = 1/2, 1/4
        layer.first.fill_(8.0)
        layer.out.weight.copy_(torch.eye(2))
    unit = {"Unit": ragged([[0.0], [0.0]], torch.float32)}
    actors = ragged([[0], [0]], torch.int64)
    batch = ObsBatch(2, unit, {"Move": ActionMask(actors)}, ids={"Unit": ragged([[9], [9]], torch.int64)})
    tokens = torch.tensor([[100.0, -100.0], [-100.0, 100.0]])
    found, state = layer(tokens, batch, None, torch.tensor([False, True]))
    # candidates (4, -4) and (-4, 4); h1 = (8 + 4) / 2, (24 - 4) / 4; h2 = (6 - 4) / 2, (15 + 4) / 4
    torch.testing.assert_close(state["hidden"].values, torch.tensor([[6.0, 5.0], [1.0, 4.75]]), atol=1e-4, rtol=0)
    torch.testing.assert_close(found - tokens, torch.tensor([[1.0, -1.0], [-1.0, 1.0]]), atol=1e-3, rtol=0)


def test_gradients_of_sequences_are_those_of_finite_differences() -> None:
    torch.manual_seed(0)
    layer = Memory("both", 4, ["Unit", "Rock", GLOBAL_ENTITY]).double()
    known = hidden_of(net_of("both"), [Step([1], [], [0.0, 0.0])])
    steps = [
        Step([1, 2], [1], [0.0] * 4),
        Step([2, 1], [], [0.0] * 3),
        Step([1], [1], [0.0] * 3),
        Step([1], [], [0.0] * 2),
    ]
    batch, follows = batch_of(steps), torch.tensor([False, True, True, False])
    offsets = torch.tensor([0, len(known), len(known), len(known), len(known) + 1])  # the last frame begins, too
    columns = {name: [key[k] for key in [*known, (0, 1)]] for k, name in enumerate(("types", "ids"))}
    state = {name: RaggedTensor(torch.tensor(each)[:, None], offsets) for name, each in columns.items()}
    inputs = [torch.randn(n, 4, dtype=torch.float64, requires_grad=True) for n in (batch.num_tokens, len(known) + 1)]

    def results(tokens: Tensor, hidden: Tensor, *parameters: Tensor) -> tuple[Tensor, Tensor]:
        named = dict(zip(dict(layer.named_parameters()), parameters, strict=True))
        given = (tokens, batch, state | {"hidden": RaggedTensor(hidden, offsets)}, follows)
        out, after = torch.func.functional_call(layer, named, given)
        return out, after["hidden"].values

    assert torch.autograd.gradcheck(results, (*inputs, *layer.parameters()))


# --- Mistakes


def test_memory_without_ids_is_refused() -> None:
    batch = batch_of([Step([1], [2], [0.0] * 3)])
    with pytest.raises(ValueError, match="'Rock', 'Unit' have none: give `ids` in the observation"):
        net_of("both").act(ObsBatch(1, batch.features, batch.action_masks))
    nobody = batch_of([Step([], [], [0.0])])
    net_of("both").act(ObsBatch(1, nobody.features, nobody.action_masks))  # there is nobody to know


def test_a_frame_that_is_no_entity_cannot_remember() -> None:
    space = ObsSpace({"Unit": Entity(["x"])})
    with pytest.raises(ValueError, match="net.memory=frame: the frame's memory is that of its global entity"):
        RogueNet(RogueNetConfig(memory="frame"), space, {"Move": ACTIONS["Move"]})
    RogueNet(RogueNetConfig(memory="frame"), space, {"Go": GlobalCategoricalActionSpace(("a",))})


def test_types_that_nobody_knows_are_refused() -> None:
    with pytest.raises(ValueError, match=r"net.memory_types names the unknown entity type 'Unite'.*'Unit'"):
        net_of("entity", memory_types=["Unite"])
    with pytest.raises(ValueError, match="net.memory_types needs net.memory=entity or both, got net.memory=frame"):
        RogueNetConfig(memory="frame", memory_types=["Unit"])
    with pytest.raises(ValueError, match="no entity type is left to remember"):
        net_of("entity", memory_types=[])


def test_first_states_are_matched_by_the_names_of_types() -> None:
    saved = net_of("both", seed=1)
    space = ObsSpace({"Tree": Entity(["x"]), "Rock": Entity(["x"]), "Unit": Entity(["x"])}, global_features=["time"])
    net = RogueNet(saved.config, space, ACTIONS)
    transfer(saved, net)
    before, now = (each.transformer.memory.first for each in (saved, net))  # type: ignore[union-attr]
    assert torch.equal(now[[2, 1, 3]], before) and torch.equal(now[0], torch.zeros(16))
