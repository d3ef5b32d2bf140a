"""Heads of sets: whatever sets an action allows, they are a distribution, and one that the policy draws from."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from entity_gym import (
    ActionSpace,
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    Observation,
    ObsSpace,
    SelectEntitiesActionMask,
    SelectEntitiesActionSpace,
)
from entity_gym.actions.choices import check_actions
from rogue_net import ObsBatch, RaggedTensor, RogueNet, RogueNetConfig
from rogue_net.rogue_net import ActResult
from rogue_net.transfer import transfer, weight_names
from tests.rogue_net.worlds import World, frame_keys, make_net, to_batch, to_obs

SPACE = ObsSpace({"Bag": Entity(["room", "x"]), "Item": Entity(["weight", "worth"])}, ["time"])
PICK, MOOD, CALL = "pick", "mood", "call"
MOODS = CategoricalActionSpace(["calm", "keen"])
SETS: dict[str, SelectEntitiesActionSpace] = {
    "any": SelectEntitiesActionSpace(),
    "at least one": SelectEntitiesActionSpace(min=1),
    "at most two": SelectEntitiesActionSpace(max=2),
    "one or two": SelectEntitiesActionSpace(min=1, max=2),
    "two": SelectEntitiesActionSpace(min=2, max=2),
    "ordered": SelectEntitiesActionSpace(ordered=True),
    "ordered, one or two": SelectEntitiesActionSpace(ordered=True, min=1, max=2),
    "ordered, all": SelectEntitiesActionSpace(ordered=True, min=9),
    "budget": SelectEntitiesActionSpace(ordered=True, cost="weight", budget="room"),
    "budget, at most two": SelectEntitiesActionSpace(ordered=True, max=2, cost="weight", budget="room"),
}
UNORDERED = [name for name, space in SETS.items() if not space.ordered]
#: Sets with a distribution of their own, whose entropy is estimated on the way to a set.
ON_THE_WAY = [name for name in SETS if name != "any"]


def world_of(space: ActionSpace, others: Mapping[str, ActionSpace] = {}) -> World:
    return World(SPACE, {PICK: space, **others})


def net_of(space: ActionSpace, others: Mapping[str, ActionSpace] = {}, seed: int = 0) -> RogueNet:
    """A network whose sets are neither equally likely nor nearly certain."""
    net = make_net(world_of(space, others), seed=seed, backend="reference")
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if name.startswith("heads.0.") and "told" not in name and "reader" not in name:
                parameter.mul_(0.6)
    return net


def bags(
    count: int = 2, items: int = 4, *, mask: Any = None, weights: Any = None, room: float = 4, seed: int = 0
) -> Observation:
    """Bags 0, 1, ..., each of which picks from items, that weigh 1 to 3."""
    rng = np.random.default_rng(seed)
    weights = rng.integers(1, 4, items) if weights is None else weights
    return Observation(
        features={
            "Bag": np.stack([np.full(count, room), rng.normal(size=count)], 1),
            "Item": np.stack([weights, rng.normal(size=items)], 1),
        },
        ids={"Bag": range(count), "Item": [f"item {i}" for i in range(items)]},
        actions={PICK: SelectEntitiesActionMask(actor_types=["Bag"], actee_types=["Item"], mask=mask)},
        global_features=[0.5],
    )


MASK = np.array([[1, 1, 0, 1], [0, 1, 1, 1]], bool)
#: Two bags; the mask closes one item to each.
FRAMES = {"open": bags(), "masked": bags(mask=MASK, seed=1)}


def every_set(space: SelectEntitiesActionSpace, items: int) -> list[list[int]]:
    """The numbers of every set of so many items, allowed or not: of each item 0, 1, or its place."""
    if not space.ordered:
        return [list(each) for each in itertools.product([0, 1], repeat=items)]
    found = []
    for size in range(items + 1):
        for picks in itertools.permutations(range(items), size):
            found.append([picks.index(item) + 1 if item in picks else 0 for item in range(items)])
    return found


class Enumerated:
    """What a network says of every set of the bags of a frame.

    Attributes:
        sets: (n, 4) int64.
        allowed: (n, bags) bool, whether the set is allowed to a bag, and within its budget.
        log_probs: (n, bags).
        entropies: (n, bags) on the way to the set.
        batch: the frame, n times.
        actions: each set for all bags.
        logits: see `ActResult.logits`.
    """

    def __init__(self, net: RogueNet, observation: Observation, bags: int = 2) -> None:
        space: Any = net.action_space[PICK]
        sets = every_set(space, 4)
        obs = to_obs([observation] * len(sets), World(SPACE, net.action_space))
        self.sets, self.batch = torch.tensor(sets), ObsBatch.from_vec_obs(obs)
        values = self.sets.repeat_interleave(bags, dim=0).reshape(-1, 1)
        self.actions = {PICK: RaggedTensor(values, self.batch.action_masks[PICK].pair_offsets)}
        greedy = net.act(self.batch, greedy=True).actions  # of other actions
        with torch.no_grad():
            found = net.evaluate(self.batch, {**greedy, **self.actions})
        self.log_probs = found.log_probs[PICK].values.view(-1, bags).double()
        self.entropies = found.entropies[PICK].values.view(-1, bags).double()
        self.distribution = found.distributions[PICK]
        self.logits = found.logits[PICK]
        allowed = torch.from_numpy(space.is_allowed(values.numpy(), obs.action_masks[PICK])).view(-1, bags)
        if space.budget:
            weights, rooms = (torch.as_tensor(observation.features[name])[:, 0] for name in ("Item", "Bag"))
            allowed &= ((self.sets > 0) * weights).sum(1, keepdim=True) <= rooms
        self.allowed = allowed

    @property
    def probs(self) -> Tensor:
        """(n, 2) probabilities; 0 for sets that are not allowed."""
        return torch.where(self.allowed, self.log_probs.exp(), 0.0)


def picked(acted: ActResult, items: int = 4) -> Tensor:
    """(bags of all frames, items) the sets, where all frames have as many items."""
    return acted.actions[PICK].values.view(-1, items)


def index_of(sets: Tensor, among: Tensor) -> Tensor:
    """(m,) the row of each of (m, items) sets in (n, items)."""
    same: Tensor = (sets.unsqueeze(1) == among).all(dim=2)
    assert (same.sum(dim=1) == 1).all()
    return same.long().argmax(dim=1)


# --- A distribution over all sets that are allowed, and over no others


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("kind", SETS)
def test_the_probabilities_of_all_allowed_sets_sum_to_1(kind: str, frame: str) -> None:
    found = Enumerated(net_of(SETS[kind]), FRAMES[frame])
    torch.testing.assert_close(found.probs.sum(dim=0), torch.ones(2, dtype=torch.float64), atol=1e-5, rtol=0)
    assert (found.allowed.sum(dim=0) > 1).all() and (found.probs.max(dim=0).values < 0.9).all()


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("kind", [name for name, space in SETS.items() if not space.budget])
def test_a_set_has_probability_0_exactly_where_it_is_not_allowed(kind: str, frame: str) -> None:
    found = Enumerated(net_of(SETS[kind]), FRAMES[frame])
    assert torch.equal(found.log_probs > -math.inf, found.allowed)
    assert found.log_probs.max() <= 0


@pytest.mark.parametrize("kind", SETS)
def test_sets_are_drawn_as_often_as_they_are_likely(kind: str) -> None:
    net, times = net_of(SETS[kind]), 3000
    found = Enumerated(net, FRAMES["masked"])
    many = to_batch([FRAMES["masked"]] * times, world_of(SETS[kind]))
    drawn = index_of(picked(net.act(many, generator=frame_keys(many))), found.sets).view(times, 2)
    for bag in range(2):
        shares = torch.bincount(drawn[:, bag], minlength=len(found.sets)).double() / times
        probs = found.probs[:, bag]
        assert ((shares - probs).abs() <= 4.5 * (probs * (1 - probs) / times).sqrt()).all()


@pytest.mark.parametrize("kind", SETS)
def test_a_generator_draws_the_same_distribution_as_keys(kind: str) -> None:
    net, times = net_of(SETS[kind]), 2000
    many = to_batch([FRAMES["masked"]] * times, world_of(SETS[kind]))
    shares = [
        (picked(net.act(many, generator=source)) > 0).view(times, -1).double().mean(dim=0)
        for source in (frame_keys(many), torch.Generator().manual_seed(0))
    ]
    assert (shares[0] - shares[1]).abs().max() < 0.06


@pytest.mark.parametrize("kind", UNORDERED)
def test_the_greedy_set_is_the_most_likely_one(kind: str) -> None:
    for seed in range(5):
        net, observation = net_of(SETS[kind], seed=seed), bags(mask=MASK, seed=seed)
        found = Enumerated(net, observation)
        greedy = picked(net.act(found.batch[torch.zeros(1, dtype=torch.int64)], greedy=True))
        assert torch.equal(index_of(greedy, found.sets), found.probs.argmax(dim=0))


@pytest.mark.parametrize("kind", [name for name, space in SETS.items() if space.ordered])
def test_each_greedy_pick_is_the_most_likely_one_after_those_before(kind: str) -> None:
    """So what was picked first, last and at all counts for who picks as it does for who judges."""
    net = net_of(SETS[kind])
    with torch.no_grad():
        net.get_parameter("heads.0.picked.weight").mul_(6)
        net.get_parameter("heads.0.stop").mul_(0)
    batch = to_batch([bags(2, 6, room=9, seed=seed) for seed in range(60)], world_of(SETS[kind]))
    acted = net.act(batch, greedy=True)
    rows = net.evaluate(batch, acted.actions).logits[PICK].view(-1, 7).argmax(dim=1)
    picks = [[*(places.argsort()[places.sort().values > 0]).tolist(), 6] for places in picked(acted, 6)]
    assert rows.tolist() == [pick for each in picks for pick in each]
    assert len({tuple(each) for each in picks if len(each) > 2}) > 5


@pytest.mark.parametrize("kind", SETS)
def test_at_a_temperature_near_0_what_is_drawn_is_the_greedy_set(kind: str) -> None:
    net, batch = net_of(SETS[kind]), to_batch([bags(seed=seed) for seed in range(20)], world_of(SETS[kind]))
    cold = net.act(batch, generator=frame_keys(batch), temperature=1e-5)
    assert torch.equal(picked(cold), picked(net.act(batch, greedy=True)))
    hot = net.act(batch, generator=frame_keys(batch), temperature=10)
    assert not torch.equal(picked(hot), picked(cold))


@pytest.mark.parametrize("kind", UNORDERED)
def test_a_temperature_divides_the_log_odds_of_sets(kind: str) -> None:
    net, temperature = net_of(SETS[kind]), 2.5
    found = Enumerated(net, FRAMES["masked"])
    acted = net.act(found.batch, generator=frame_keys(found.batch), temperature=temperature)
    rows = index_of(picked(acted), found.sets).view(-1, 2)
    expected = torch.where(found.allowed, found.log_probs / temperature, -math.inf).log_softmax(dim=0)
    log_probs = acted.log_probs[PICK].values.view(-1, 2).double()
    torch.testing.assert_close(log_probs, expected.gather(0, rows), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", [name for name, space in SETS.items() if space.ordered])
def test_a_temperature_divides_the_log_odds_of_each_pick(kind: str) -> None:
    net, temperature = net_of(SETS[kind]), 2.5
    batch = to_batch([bags(seed=seed) for seed in range(20)], world_of(SETS[kind]))
    acted = net.act(batch, generator=frame_keys(batch), temperature=temperature, logits=True)
    assert acted.logits is not None
    found, plain = (
        rows.view(-1, 5) for rows in (acted.logits[PICK].values, net.evaluate(batch, acted.actions).logits[PICK])
    )
    torch.testing.assert_close(found, (plain / temperature).log_softmax(dim=1), atol=1e-5, rtol=1e-5)


# --- Acting is evaluating, and no frame depends on another


def mixed(space: SelectEntitiesActionSpace) -> ObsBatch:
    """Frames of different sizes; in some nobody picks, or nothing can be picked."""
    rng = np.random.default_rng(0)
    frames = [
        bags(2, 3),
        bags(3, 7, mask=rng.random((3, 7)) < 0.6, seed=1),
        bags(0, 4),
        bags(2, 0),
        replace(bags(1, 2), actions={}),
        bags(1, 1, mask=[[False]]),
        bags(4, 2, seed=2, room=100),
        bags(1, 5, seed=3, room=0),
    ]
    return to_batch(frames, world_of(space))


@pytest.mark.parametrize("how", [{}, {"greedy": True}, {"temperature": 0.5}])
@pytest.mark.parametrize("kind", SETS)
def test_a_set_has_the_log_prob_that_it_had_when_it_was_selected(kind: str, how: dict[str, Any]) -> None:
    net, batch = net_of(SETS[kind]), mixed(SETS[kind])
    acted = net.act(batch, generator=frame_keys(batch), logits=True, **how)
    found = net.evaluate(batch, acted.actions)
    assert acted.logits is not None
    assert acted.log_probs[PICK].offsets.tolist() == [0, 2, 5, 5, 7, 7, 8, 12, 13]
    assert acted.actions[PICK].lengths.tolist() == [6, 21, 0, 0, 0, 1, 8, 5]
    if "temperature" not in how:
        assert torch.equal(acted.log_probs[PICK].values, found.log_probs[PICK].values)
        assert torch.equal(acted.logits[PICK].values, found.logits[PICK])
    assert found.log_probs[PICK].values[[5, 6, 7]].tolist() == [0, 0, 0]  # nothing is open to them
    assert found.entropies[PICK].values[[5, 6, 7]].tolist() == [0, 0, 0]


@pytest.mark.parametrize("kind", SETS)
def test_what_is_selected_is_allowed(kind: str) -> None:
    net, space = net_of(SETS[kind]), SETS[kind]
    rng = np.random.default_rng(0)
    frames = [
        bags(int(rng.integers(4)), int(items), mask=None if seed % 3 else rng.random((0, 0)), seed=seed)
        if seed % 3
        else bags(2, int(items), mask=rng.random((2, int(items))) < 0.5, seed=seed)
        for seed, items in enumerate(rng.integers(0, 7, 150))
    ]
    obs = to_obs(frames, world_of(space))
    batch = ObsBatch.from_vec_obs(obs)
    for how in ({"temperature": 5.0}, {"greedy": True}):
        acted = net.act(batch, generator=frame_keys(batch), **how)  # type: ignore[arg-type]
        check_actions(acted.to_buffers(), obs.action_masks, {PICK: space}, str)


@pytest.mark.parametrize("kind", SETS)
def test_a_frame_alone_selects_as_in_any_batch(kind: str) -> None:
    net, batch = net_of(SETS[kind]), mixed(SETS[kind])
    keys = frame_keys(batch)
    together = net.act(batch, generator=keys, logits=True)
    whole = net.evaluate(batch, together.actions)
    order = torch.tensor([4, 1, 0, 5, 3, 2, 7, 6])
    for chosen in [order, *torch.arange(len(batch)).split(1)]:
        alone = net.act(batch[chosen], generator=type(keys)(keys.keys[chosen]), logits=True)
        part = net.evaluate(batch[chosen], alone.actions)
        assert alone.logits is not None and together.logits is not None
        assert torch.equal(together.actions[PICK].gather(chosen).values, alone.actions[PICK].values)
        for one, other in (
            (together.log_probs, alone.log_probs),
            (together.logits, alone.logits),
            (whole.entropies, part.entropies),
        ):
            expected = one[PICK].gather(chosen)
            torch.testing.assert_close(other[PICK].values, expected.values, atol=1e-5, rtol=1e-5)
            assert torch.equal(other[PICK].offsets, expected.offsets)


@pytest.mark.parametrize("kind", SETS)
def test_the_order_of_entities_does_not_matter(kind: str) -> None:
    net, order = net_of(SETS[kind]), np.array([2, 0, 3, 1])
    plain = FRAMES["masked"]
    mask: Any = plain.actions[PICK]
    shuffled = replace(
        plain,
        features={**plain.features, "Item": np.asarray(plain.features["Item"])[order]},
        ids={**plain.ids, "Item": [f"item {i}" for i in order]},
        actions={PICK: replace(mask, mask=MASK[:, order])},
    )
    found, other = Enumerated(net, plain), Enumerated(net, shuffled)
    same = index_of(found.sets[:, torch.from_numpy(order)], other.sets)  # the row of the same set of items
    assert torch.equal(other.allowed[same], found.allowed)
    torch.testing.assert_close(other.probs[same], found.probs, atol=1e-6, rtol=1e-5)


# --- Entropies and divergences


def test_the_entropy_of_independent_decisions_is_exact_whatever_was_selected() -> None:
    found = Enumerated(net_of(SETS["any"]), FRAMES["masked"])
    exact = -(found.probs * torch.where(found.allowed, found.log_probs, 0.0)).sum(dim=0)
    torch.testing.assert_close(found.entropies, exact.expand_as(found.entropies), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ON_THE_WAY)
def test_the_mean_of_the_entropy_on_the_way_to_a_set_is_that_of_the_distribution(kind: str) -> None:
    found = Enumerated(net_of(SETS[kind]), FRAMES["masked"])
    exact = -(found.probs * torch.where(found.allowed, found.log_probs, 0.0)).sum(dim=0)
    on_the_way = torch.where(found.allowed, found.entropies, 0.0)
    torch.testing.assert_close((found.probs * on_the_way).sum(dim=0), exact, atol=1e-5, rtol=1e-5)
    assert exact.min() > 0.2


@pytest.mark.parametrize("kind", SETS)
def test_the_mean_of_the_divergence_on_the_way_to_a_set_is_that_of_the_distributions(kind: str) -> None:
    """From the sets of p, which is a teacher's."""
    p, q = (Enumerated(net_of(SETS[kind], seed=seed), FRAMES["masked"]) for seed in (0, 1))
    exact = torch.where(p.allowed, p.probs * (p.log_probs - q.log_probs).nan_to_num(), 0.0).sum(dim=0)
    terms = q.distribution.kl(p.logits).double()
    head = net_of(SETS[kind]).head(PICK)
    offsets = head.logit_offsets(p.batch.action_masks[PICK], p.actions[PICK])
    assert int(offsets[-1]) == len(terms)
    for bag in range(2):  # the other bag's sets are the same ones, so its terms are half of each frame's
        rows = terms_of_bag(p, terms, offsets, bag)
        mean = (p.probs[:, bag] * torch.where(p.allowed[:, bag], rows, 0.0)).sum()
        torch.testing.assert_close(mean, exact[bag], atol=1e-5, rtol=1e-4)
    assert exact.min() > 0.01
    torch.testing.assert_close(p.distribution.kl(p.logits), torch.zeros(len(terms)), atol=1e-6, rtol=0)


def terms_of_bag(found: Enumerated, terms: Tensor, offsets: Tensor, bag: int) -> Tensor:
    """(n,) the sum of one bag's terms in each frame: its rows are the first or the second half of the frame's."""
    halves = []
    for first, last in itertools.pairwise(offsets.tolist()):
        middle = (first + last) // 2
        halves.append(terms[[slice(first, middle), slice(middle, last)][bag]].sum())
    assert len(halves) == len(found.sets)
    return torch.stack(halves)


# --- What is decided afterwards, and where worlds have changed

CALLS = CategoricalActionSpace(["no", "yes"], after=PICK)


def with_calls(observation: Observation) -> Observation:
    """Bags and items call after the bags have picked."""
    return replace(
        observation, actions={**observation.actions, CALL: CategoricalActionMask(actor_types=["Bag", "Item"])}
    )


@pytest.mark.parametrize("kind", ["any", "ordered"])
def test_later_actions_see_the_set_on_its_actor_and_on_the_selected_entities(kind: str) -> None:
    net = net_of(SETS[kind], {CALL: CALLS})
    batch = to_batch([with_calls(bags(2, 4)), with_calls(bags(1, 2))], world_of(SETS[kind], {CALL: CALLS}))
    acted = net.act(batch, generator=frame_keys(batch)).actions

    def calls(*places: list[int]) -> Tensor:
        """The log-probs of no and yes for two bags, four items, and those of the other frame."""
        values = torch.tensor([number for row in places for number in row] + [0, 1]).unsqueeze(1)
        given = {**acted, PICK: acted[PICK]._replace(values=values)}
        with torch.no_grad():
            return net.evaluate(batch, given).logits[CALL]

    before, after = calls([1, 0, 0, 0], [0, 1, 0, 0]), calls([0, 0, 1, 0], [0, 1, 0, 0])
    assert ((before - after).abs() > 1e-5).any(dim=1).tolist() == [True, False, True, False, True, False] + [False] * 3
    # an empty set says nothing, and is another thing than any other
    empty = calls([0, 0, 0, 0], [0, 1, 0, 0])
    assert ((before - empty).abs() > 1e-5).any(dim=1).tolist() == [True, False, True, False, False, False] + [False] * 3
    # a larger set is another one to the bag, and says something to who is new in it
    two = calls([1, 2 if SETS[kind].ordered else 1, 0, 0], [0, 1, 0, 0])
    assert ((before - two).abs() > 1e-5).any(dim=1).tolist() == [True, False, False, True, False, False] + [False] * 3


def test_later_actions_see_the_mean_over_the_set() -> None:
    """Two items that look the same say together what one says, and one among others less than alone."""
    net = net_of(SETS["any"], {CALL: CALLS})
    frame = with_calls(bags(1, 3))
    items = np.asarray(frame.features["Item"])[[0, 0, 1]]
    batch = to_batch(
        [replace(frame, features={**frame.features, "Item": items})] * 3, world_of(SETS["any"], {CALL: CALLS})
    )
    acted = net.act(batch, greedy=True).actions
    values = torch.tensor([1, 0, 0, 1, 1, 0, 1, 1, 1]).unsqueeze(1)
    with torch.no_grad():
        found = net.evaluate(batch, {**acted, PICK: acted[PICK]._replace(values=values)}).logits[CALL].view(3, 4, 2)
    one, both, all_ = found[:, 0]  # of the bag
    torch.testing.assert_close(one, both)
    assert (one - all_).abs().max() > 1e-3


def test_the_probabilities_of_all_sets_and_of_all_that_is_decided_after_them_sum_to_1() -> None:
    for kind in ("one or two", "budget"):
        net = net_of(SETS[kind], {CALL: CALLS})
        observation = bags(1)
        calls = CategoricalActionMask(actor_ids=[0])
        found = Enumerated(net, replace(observation, actions={**observation.actions, CALL: calls}), bags=1)
        total = 0.0
        for call in (0, 1):
            given = found.batch.action_masks[CALL].actors
            given = given._replace(values=torch.full_like(given.values, call))
            with torch.no_grad():
                of_calls = net.evaluate(found.batch, {**found.actions, CALL: given}).log_probs[CALL].values.double()
            total += float((found.probs[:, 0] * of_calls.exp()).sum())
        assert total == pytest.approx(1, abs=1e-5)
        assert of_calls.max() - of_calls.min() > 0.01


@pytest.mark.parametrize("kind", SETS)
def test_every_weight_of_a_head_belongs_to_its_action(kind: str) -> None:
    parts = {"query.weight", "query.bias", "key.weight", "key.bias"}
    parts |= {"stop", "picked.weight", "picked.bias"} if SETS[kind].ordered else set()
    parts |= {"left.weight", "left.bias"} if SETS[kind].budget else set()
    weights = weight_names(net_of(SETS[kind], {MOOD: MOODS})).values()
    assert {weight.part for weight in weights if weight.name == PICK and weight.owner == "action"} == parts


@pytest.mark.parametrize("kind", ["any", "ordered", "budget"])
def test_a_policy_goes_on_where_its_sets_have_other_limits_and_another_action_selects_sets(kind: str) -> None:
    new = {CALL: SelectEntitiesActionSpace(min=1), PICK: replace(SETS[kind], max=2)}
    old = net_of(SETS[kind])
    torch.manual_seed(1)
    net = RogueNet(old.config, SPACE, new)
    news = transfer(old, net).news
    assert news == ("action 'call' is new: untrained", "action 'pick' now selects 0 to 2 entities")
    found, before = Enumerated(net, FRAMES["masked"]), Enumerated(old, FRAMES["masked"])
    one = (found.sets > 0).sum(dim=1) == 1
    # the odds of the first pick, and those of small sets, are what they were
    odds = [each.log_probs[one][each.allowed[one][:, 0]][:, 0] for each in (found, before)]
    torch.testing.assert_close(odds[0] - odds[0][0], odds[1] - odds[1][0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("before", "now", "message"),
    [
        ("ordered", "budget", "the action 'pick' has another cost or budget now: 'weight', 'room'"),
        ("budget", "ordered", "the action 'pick' has another cost or budget now: None, None"),
        ("any", "ordered", "the action 'pick' selects ordered sets now"),
        ("ordered", "any", "the action 'pick' selects unordered sets now"),
    ],
)
def test_a_policy_of_other_sets_is_refused(before: str, now: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        transfer(net_of(SETS[before]), net_of(SETS[now]))


# --- Limits and budgets


@pytest.mark.parametrize("kind", ["two", "one or two", "ordered, one or two", "ordered, all"])
def test_who_finds_fewer_open_than_the_least_selects_all_of_them(kind: str) -> None:
    """The first bag finds one item open, the second none."""
    space = replace(SETS[kind], min=3, max=None if kind.endswith("all") else 3)
    net = net_of(space)
    batch = to_batch([bags(mask=[[False, False, True, False], [False] * 4])], world_of(space))
    for how in ({"greedy": True}, {"temperature": 50.0}, {}):
        acted = net.act(batch, **how)  # type: ignore[arg-type]
        assert picked(acted).tolist() == [[0, 0, 1, 0], [0, 0, 0, 0]]
        assert acted.log_probs[PICK].values.tolist() == [0, 0]


@pytest.mark.parametrize("kind", ["budget", "budget, at most two"])
def test_what_is_picked_is_within_the_budget(kind: str) -> None:
    net, sums = net_of(SETS[kind]), set()
    observations = [bags(3, 6, room=room, seed=seed) for seed, room in enumerate([0, 1, 3, 4.5, 5] * 20)]
    batch = to_batch(observations, world_of(SETS[kind]))
    for how in ({"greedy": True}, {"temperature": 20.0}):
        places = picked(net.act(batch, generator=frame_keys(batch), **how), 6).view(-1, 3, 6)  # type: ignore[arg-type]
        for observation, chosen in zip(observations, places, strict=True):
            features: Any = observation.features
            spent = ((chosen > 0) * torch.from_numpy(features["Item"][:, 0])).sum(dim=1)
            assert (spent <= features["Bag"][0, 0]).all()
            sums |= set(spent.tolist())
    assert sums == {0, 1, 2, 3, 4, 5}


@pytest.mark.parametrize("kind", ["budget", "budget, at most two"])
def test_a_set_beyond_the_budget_is_judged_as_if_it_had_been_within(kind: str) -> None:
    """Others than the policy select such sets: their log-probs are finite, and so are the gradients."""
    for room, seed in itertools.product((4.0, 0.0, -1.0), range(3)):
        net = net_of(SETS[kind], seed=seed)
        found = Enumerated(net, bags(room=room))
        possible = (found.sets > 0).sum(dim=1) <= (SETS[kind].max or 4)
        assert not found.allowed[possible].all()
        assert torch.equal(found.log_probs[:, 0] > -math.inf, possible)
        assert found.log_probs[possible].min() > -60, "no gradient explodes"
    frames = possible.nonzero()[:, 0]
    batch, actions = found.batch[frames], {PICK: found.actions[PICK].gather(frames)}
    net.evaluate(batch, actions).log_probs[PICK].values.sum().backward()
    assert all(torch.isfinite(each.grad).all() for each in net.parameters() if each.grad is not None)


def test_costs_that_add_up_to_the_budget_are_within_it_whoever_adds_them_up() -> None:
    """In float32, 0.1 + 0.2 + 0.3 depends on the order. What is open is the same for who picks and for who judges."""
    rng, space = np.random.default_rng(0), SETS["budget"]
    net = net_of(space)
    weights = rng.random((300, 5)).astype(np.float32)
    observations = [bags(1, 5, weights=each, room=float(each[:3].sum()), seed=k) for k, each in enumerate(weights)]
    batch = to_batch(observations, world_of(space))
    acted = net.act(batch, generator=frame_keys(batch), temperature=20, logits=True)
    assert acted.logits is not None
    last = 0
    for frame, chosen in enumerate(picked(acted, 5)):
        costs = batch.features["Item"].values[5 * frame : 5 * frame + 5, 0].double()
        room = batch.features["Bag"].values[frame, 0].double()
        rows, offsets = acted.logits[PICK]
        of_picks = rows[offsets[frame] : offsets[frame + 1]].view(-1, 6) > -math.inf
        for pick, is_open in enumerate(of_picks, start=1):
            spent = costs[(chosen > 0) & (chosen < pick)].sum()
            assert torch.equal(is_open[:5], ((chosen == 0) | (chosen >= pick)) & (costs <= room - spent))
        last += int((costs[chosen > 0].sum() - room).abs() < 1e-7)
    assert last > 3, "some have used up all"


@pytest.mark.parametrize(
    ("cost", "budget", "free"),
    [
        ("weight", "time", "nothing"),  # the whole frame's
        ("weight", "worth", "nothing"),  # bags have no such feature: theirs is 0
        ("room", "time", "everything"),  # items have no such feature: they cost 0
    ],
)
def test_a_budget_may_be_of_the_whole_frame_and_a_type_without_the_feature_has_0(
    cost: str, budget: str, free: str
) -> None:
    space = SelectEntitiesActionSpace(ordered=True, cost=cost, budget=budget)
    net = net_of(space)
    batch = to_batch([replace(bags(seed=seed), global_features=[0.9]) for seed in range(50)], world_of(space))
    places = picked(net.act(batch, generator=frame_keys(batch)))
    assert bool((places > 0).any()) == (free == "everything")
    if budget == "time":
        rich = to_batch([replace(bags(seed=seed), global_features=[3.0]) for seed in range(50)], world_of(space))
        assert (picked(net.act(rich, generator=frame_keys(rich))) > 0).any()


def test_a_budget_holds_after_other_choices() -> None:
    space = replace(SETS["budget"], after=(MOOD,))
    net = net_of(space, {MOOD: MOODS})
    frames = [
        replace(each, actions={**each.actions, MOOD: CategoricalActionMask(actor_types=["Bag"])})
        for each in (bags(3, 6, room=2, seed=seed) for seed in range(30))
    ]
    batch = to_batch(frames, world_of(space, {MOOD: MOODS}))
    places = picked(net.act(batch, generator=frame_keys(batch), temperature=10), 6)
    weights = batch.features["Item"].values[:, 0].view(-1, 1, 6).expand(-1, 3, 6).reshape(-1, 6)
    spent = ((places > 0) * weights).sum(dim=1)
    assert spent.max() == 2
    # and the mood matters
    acted = net.act(batch, generator=frame_keys(batch)).actions
    other = {**acted, MOOD: acted[MOOD]._replace(values=1 - acted[MOOD].values)}
    before, after = (net.evaluate(batch, each).log_probs[PICK].values for each in (acted, other))
    assert not torch.allclose(before, after)


def test_a_cost_that_nothing_shows_is_refused() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"cost": "wight"}, "action 'pick': cost='wight' is no feature; .*; did you mean 'weight'"),
        ({"budget": "rom"}, "action 'pick': budget='rom' is no feature; .*; did you mean 'room'"),
        ({"cost": "time"}, "action 'pick': cost='time' is no feature"),  # of the whole frame: all would cost the same
    ]
    for changes, message in wrong:
        with pytest.raises(ValueError, match=message):
            RogueNet(RogueNetConfig(d_model=16), SPACE, {PICK: replace(SETS["budget"], **changes)})


# --- Gradients, and many entities


@pytest.mark.parametrize("kind", SETS)
def test_gradients_are_those_of_finite_differences(kind: str) -> None:
    net, batch = net_of(SETS[kind]), mixed(SETS[kind])
    actions = net.act(batch, generator=frame_keys(batch)).actions

    def total() -> Tensor:
        found = net.evaluate(batch, actions)
        return found.log_probs[PICK].values.double().sum() + 0.5 * found.entropies[PICK].values.double().sum()

    total().backward()
    rng = np.random.default_rng(0)
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None or "value" in name, name
        if not name.startswith("heads.0."):
            continue
        assert parameter.grad is not None and torch.isfinite(parameter.grad).all()
        for _ in range(3):
            place = tuple(rng.integers(parameter.shape))
            with torch.no_grad():
                kept, found = parameter[place].item(), []
                for step in (1e-2, -1e-2):
                    parameter[place] = kept + step
                    found.append(float(total()))
                parameter[place] = kept
            assert parameter.grad[place].item() == pytest.approx((found[0] - found[1]) / 2e-2, rel=3e-2, abs=5e-3), name


@pytest.mark.parametrize("kind", SETS)
def test_five_hundred_entities_are_no_trouble(kind: str) -> None:
    net = net_of(replace(SETS[kind], max=SETS[kind].max and 300))
    batch = to_batch([bags(1, 500, room=200), bags(2, 3)], World(SPACE, net.action_space))
    acted = net.act(batch, generator=frame_keys(batch))
    assert (acted.actions[PICK].values[:500] > 0).sum() > 0 or kind.startswith("ordered, one")
    found = net.evaluate(batch, acted.actions)
    assert torch.equal(found.log_probs[PICK].values, acted.log_probs[PICK].values)
    (found.log_probs[PICK].values.sum() + found.entropies[PICK].values.sum()).backward()
    assert torch.isfinite(found.log_probs[PICK].values).all()
    assert all(torch.isfinite(each.grad).all() for each in net.parameters() if each.grad is not None)
