"""Heads: several for the same actors, nobody as a choice, temperature, logits on request, and no cost of padding."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from entity_gym import (
    ActionSpace,
    CategoricalActionMask,
    CategoricalActionSpace,
    ContinuousActionMask,
    ContinuousActionSpace,
    Entity,
    Observation,
    ObsSpace,
    SelectEntityActionMask,
    SelectEntityActionSpace,
)
from rogue_net import RaggedTensor, RogueNet, RogueNetConfig
from rogue_net.batch.obs_batch import ActionMask
from rogue_net.config import Backend
from rogue_net.heads import pairs
from rogue_net.heads.heads import SelectEntityHead
from rogue_net.heads.pairs import pair_products, pairs_of
from tests.rogue_net.worlds import World, frame_keys, make_net, to_batch

MOVE, AIM, STEER, THRUST, HELP = "move.to", "aim", "steer", "thrust", "help"
ACTIONS: dict[str, ActionSpace] = {
    MOVE: CategoricalActionSpace(["stay", "left", "right"]),
    AIM: SelectEntityActionSpace(exclude_self=True),
    STEER: ContinuousActionSpace([-1, 0, -math.inf], [1, math.inf, math.inf]),
    THRUST: CategoricalActionSpace(["on", "off"]),
    HELP: SelectEntityActionSpace(nobody=True),
}
WORLD = World(ObsSpace({"Ship": Entity(["x", "y"]), "Rock": Entity(["x"])}), ACTIONS)


def ships(count: int, rocks: int = 1, actions: dict[str, Any] | None = None, seed: int = 0) -> Observation:
    """Ships 0, 1, ... and as many rocks; by default every ship does everything, to ships and rocks."""
    rng = np.random.default_rng(seed)
    everything = {
        MOVE: CategoricalActionMask(actor_types=["Ship"]),
        AIM: SelectEntityActionMask(actor_types=["Ship"]),
        STEER: ContinuousActionMask(actor_types=["Ship"]),
        THRUST: CategoricalActionMask(actor_types=["Ship"]),
        HELP: SelectEntityActionMask(actor_types=["Ship"], actee_types=["Ship"]),
    }
    return Observation(
        features={"Ship": rng.normal(size=(count, 2)), "Rock": rng.normal(size=(rocks, 1))},
        ids={"Ship": range(count), "Rock": [f"rock {i}" for i in range(rocks)]},
        actions=everything if actions is None else actions,
    )


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# --- Several heads


def test_every_actor_has_one_decision_of_every_action() -> None:
    net, batch = make_net(WORLD), to_batch([ships(3), ships(0), ships(2)], WORLD)
    result = net.act(batch, generator=generator())
    assert list(result.actions) == list(ACTIONS)
    for name, (values, offsets) in result.actions.items():
        assert offsets.tolist() == [0, 3, 3, 5]
        assert values.shape == (5, 3 if name == STEER else 1)
        assert values.dtype == (torch.float32 if name == STEER else torch.int64)
        assert result.log_probs[name].values.shape == (5,)
    buffers = result.to_buffers()
    assert buffers[STEER].values.dtype == np.float32
    assert buffers[MOVE].values.dtype == np.int64


def test_an_action_that_some_actors_take_is_decided_by_their_tokens_alone() -> None:
    only_b = {
        MOVE: CategoricalActionMask(actor_ids=[1]),
        STEER: ContinuousActionMask(actor_ids=[2, 0]),
        THRUST: CategoricalActionMask(actor_ids=[]),
    }
    net = make_net(WORLD)
    everyone, some = to_batch([ships(3)], WORLD), to_batch([ships(3), ships(3, actions=only_b)], WORLD)
    with torch.no_grad():
        logits = net.evaluate(everyone, net.act(everyone).actions).logits
        of_some = net.evaluate(some, net.act(some).actions).logits
    torch.testing.assert_close(of_some[MOVE][3:], logits[MOVE][[1]])
    torch.testing.assert_close(of_some[STEER][3:], logits[STEER][[2, 0]])
    assert len(of_some[THRUST]) == 3


@pytest.mark.parametrize("backend", ["reference", "fused"])
@pytest.mark.parametrize("greedy", [False, True])
def test_what_is_stored_has_the_log_prob_that_it_had_when_it_was_played(greedy: bool, backend: Backend) -> None:
    net, batch = make_net(WORLD, backend=backend), to_batch([ships(n % 5, seed=n) for n in range(60)], WORLD)
    result, program = net.act(batch, greedy=greedy, generator=frame_keys(batch)), net.program()
    chosen = torch.tensor([7, 3, 59, 3])
    part = {name: action.gather(chosen) for name, action in result.actions.items()}
    if program is None:
        log_probs, of_part = net.evaluate(batch, result.actions).log_probs, net.evaluate(batch[chosen], part).log_probs
    else:
        log_probs, of_part = program.evaluate(batch, result.actions)[0], program.evaluate(batch[chosen], part)[0]
    for name in ACTIONS:
        assert torch.equal(log_probs[name].values, result.log_probs[name].values)
        expected = result.log_probs[name].gather(chosen).values
        torch.testing.assert_close(of_part[name].values, expected, atol=1e-5 if program is None else 0, rtol=0)


def test_every_weight_gets_a_gradient_also_where_nobody_takes_the_action() -> None:
    net, batch = (
        make_net(WORLD),
        to_batch([ships(2, actions={MOVE: CategoricalActionMask(actor_types=["Ship"])})], WORLD),
    )
    evaluation = net.evaluate(batch, net.act(batch).actions)
    of_actors = (*evaluation.log_probs.values(), *evaluation.entropies.values())
    terms = [*(each.values for each in of_actors), evaluation.values]
    torch.cat(terms).sum().backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None and torch.isfinite(parameter.grad).all(), name
    assert net.heads[0].project.weight.grad.abs().sum() > 0
    assert net.heads[2].project.weight.grad.abs().sum() == 0


# --- Temperature and logits


def test_logits_are_ragged_and_what_was_drawn_from() -> None:
    net, batch = make_net(WORLD), to_batch([ships(3), ships(0), ships(2, rocks=2)], WORLD)
    result = net.act(batch, logits=True)
    evaluation = net.evaluate(batch, result.actions)
    assert net.act(batch).logits is None
    assert result.logits is not None
    # ships aim at any entity, themselves included, though masked; they help a ship or nobody
    expected = {
        MOVE: [0, 3, 3, 5],
        AIM: [0, 12, 12, 20],
        STEER: [0, 3, 3, 5],
        THRUST: [0, 3, 3, 5],
        HELP: [0, 12, 12, 18],
    }
    widths = {MOVE: 3, AIM: 1, STEER: 6, THRUST: 2, HELP: 1}
    for name, (values, offsets) in result.logits.items():
        assert offsets.tolist() == expected[name]
        assert values.shape == (offsets[-1], widths[name])
        torch.testing.assert_close(values.flatten(), evaluation.logits[name].flatten())
    torch.testing.assert_close(result.logits[MOVE].values.exp().sum(1), torch.ones(5))
    torch.testing.assert_close(result.logits[AIM].values[:12].view(3, 4).exp().sum(1), torch.ones(3))
    assert (result.logits[AIM].values[:12].view(3, 4).diagonal() == -math.inf).all()


def test_a_temperature_divides_logits_and_multiplies_standard_deviations() -> None:
    net, batch = make_net(WORLD), to_batch([ships(3), ships(2)], WORLD)
    plain, hot = net.act(batch, logits=True).logits, net.act(batch, logits=True, temperature=2.5).logits
    assert plain is not None and hot is not None
    torch.testing.assert_close(hot[MOVE].values, (plain[MOVE].values / 2.5).log_softmax(1))
    torch.testing.assert_close(
        hot[AIM].values[:12].view(3, 4), (plain[AIM].values[:12].view(3, 4) / 2.5).log_softmax(1)
    )
    torch.testing.assert_close(
        hot[HELP].values[:12].view(3, 4), (plain[HELP].values[:12].view(3, 4) / 2.5).log_softmax(1)
    )
    torch.testing.assert_close(hot[STEER].values[:, :3], plain[STEER].values[:, :3])
    torch.testing.assert_close(hot[STEER].values[:, 3:], plain[STEER].values[:, 3:] + math.log(2.5))


# --- Other numbers about frames


def test_regression_heads_are_zero_at_first_and_learn_of_every_entity() -> None:
    torch.manual_seed(0)
    net = RogueNet(RogueNetConfig(n_layer=0), WORLD.obs_space, ACTIONS, {"enemy.hp": 2, "winner": 1})
    batch = to_batch([ships(2), Observation(), ships(1)], WORLD)
    actions = net.act(batch).actions
    regressions = net.evaluate(batch, actions).regressions
    assert {name: tensor.tolist() for name, tensor in regressions.items()} == {
        "enemy.hp": [[0, 0]] * 3,
        "winner": [[0]] * 3,
    }
    (regressions["enemy.hp"][:, 1].sum() + regressions["winner"].sum()).backward()
    with torch.no_grad():
        for parameter in net.regression_heads.parameters():
            parameter -= parameter.grad
    learned = net.evaluate(batch, actions).regressions
    tokens = net.embedding(batch)
    means = torch.stack([tokens[:3].mean(0), torch.zeros(32), tokens[3:].mean(0)])
    torch.testing.assert_close(learned["winner"], -(means @ means.sum(0, keepdim=True).T) - 3)
    assert (learned["enemy.hp"][:, 0] == 0).all()
    assert net.evaluate(batch, actions).values.tolist() == [0, 0, 0]


# --- Nobody, and actors to whom nobody is open


def test_nobody_is_the_last_choice_of_every_actor_and_has_the_value_minus_1() -> None:
    net, batch = make_net(WORLD), to_batch([ships(3)] * 400, WORLD)
    result = net.act(batch, logits=True, generator=generator())
    assert result.logits is not None
    probabilities = result.logits[HELP].values[:12].view(3, 4).exp().tolist()
    helped = result.actions[HELP].values.view(400, 3)
    for actor, row in enumerate(probabilities):
        for value, probability in zip([0, 1, 2, -1], row, strict=True):
            frequency = float((helped[:, actor] == value).double().mean())
            assert abs(frequency - probability) < 4 * math.sqrt(probability * (1 - probability) / 400)
        assert 0.01 < row[3] < 0.99


def test_nobody_can_be_selected_whatever_the_mask_closes() -> None:
    closed = SelectEntityActionMask(actor_ids=[0, 1], actee_ids=[1, 2], mask=[[False, False], [True, False]])
    no_actees = SelectEntityActionMask(actor_ids=[0], actee_ids=[])
    frames = [ships(3, actions={HELP: mask}) for mask in (closed, no_actees)]
    net, batch = make_net(WORLD), to_batch(frames + [ships(2)], WORLD)
    result = net.act(batch, logits=True, generator=generator())
    assert result.logits is not None
    open_ = (result.logits[HELP].values[:, 0] > -math.inf).tolist()
    assert open_ == [False, False, True] + [True, False, True] + [True] + [True] * 6
    assert result.actions[HELP].values[0] == result.actions[HELP].values[2] == -1
    assert result.log_probs[HELP].values[[0, 2]].tolist() == [0, 0]
    evaluation = net.evaluate(batch, result.actions)
    assert evaluation.entropies[HELP].values[[0, 2]].tolist() == [0, 0]
    assert (evaluation.entropies[HELP].values[[1, 3, 4]] > 0).all()


def test_an_actor_with_itself_alone_selects_nobody_for_certain_where_it_may_not_select_itself() -> None:
    alone = ships(1, rocks=0)
    net, batch = make_net(WORLD), to_batch([alone, ships(2), alone], WORLD)
    for seed in range(10):
        result = net.act(batch, generator=generator(seed))
        assert (result.actions[AIM].values[:, 0] == -1).tolist() == [True, False, False, True]
        assert result.log_probs[AIM].values[[0, 3]].tolist() == [0, 0]
    evaluation = net.evaluate(batch, result.actions)
    assert evaluation.entropies[AIM].values[[0, 3]].tolist() == [0, 0]
    (evaluation.log_probs[AIM].values.sum() + evaluation.entropies[AIM].values.sum()).backward()
    head = net.heads[list(ACTIONS).index(AIM)]
    assert all(torch.isfinite(parameter.grad).all() for parameter in head.parameters())


# --- Pairs, and what they cost


def mask_of(sizes: list[tuple[int, int]]) -> ActionMask:
    """Frames of so many actors and actees."""

    def ragged(counts: list[int]) -> RaggedTensor:
        values = torch.cat([torch.arange(count) for count in counts] or [torch.zeros(0, dtype=torch.int64)])
        return RaggedTensor(values.unsqueeze(1), torch.tensor([0, *counts]).cumsum(0))

    return ActionMask(ragged([actors for actors, _ in sizes]), ragged([actees for _, actees in sizes]))


@settings(max_examples=60)
@given(
    sizes=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=6),
    nobody=st.booleans(),
    at_once=st.sampled_from([1, 7, 10_000]),
)
def test_products_of_pairs_and_their_gradients_are_those_of_dense_matrices(
    sizes: list[tuple[int, int]], nobody: bool, at_once: int
) -> None:
    mask = mask_of(sizes)
    torch.manual_seed(0)
    numbers: dict[str, Any] = {"dtype": torch.float64, "requires_grad": True}
    queries = torch.randn(len(mask.actors.values), 3, **numbers)
    keys = torch.randn(len(mask.actees.values) + nobody, 3, **numbers)
    dense, first_actor, first_actee = [], 0, 0
    for actors, actees in sizes:
        of_frame = [*range(first_actee, first_actee + actees), *([len(keys) - 1] if nobody else [])]
        dense.append((queries[first_actor : first_actor + actors] @ keys[of_frame].T).flatten())
        first_actor, first_actee = first_actor + actors, first_actee + actees
    expected = torch.cat(dense)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairs, "NUMBERS_AT_ONCE", at_once)
        found = pairs_of(mask, nobody)
        products = pair_products(queries, keys, found)
        weights = torch.randn(len(expected), dtype=numbers["dtype"])
        gradients = torch.autograd.grad((products * weights).sum(), [queries, keys])
    torch.testing.assert_close(products, expected)
    torch.testing.assert_close(gradients, torch.autograd.grad((expected * weights).sum(), [queries, keys]))
    counts = [actors * (actees + nobody) for actors, actees in sizes]
    assert (
        SelectEntityHead(1, 1, nobody).logit_offsets(mask, mask.actors).tolist()
        == torch.tensor([0, *counts]).cumsum(0).tolist()
    )
