"""The compiled program selects sets as the modules do: the same sets, log-probs of given sets, entropies, and gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from entity_gym import Entity, Observation, ObsSpace, SelectEntitiesActionMask, SelectEntitiesActionSpace
from entity_gym.batch.vec_obs import VecObs
from rogue_net import ObsBatch, RaggedTensor, RogueNet, RogueNetConfig
from rogue_net.kernels.select import why_no_program
from tests.rogue_net.kernels.test_chained import as_modules, assert_near
from tests.rogue_net.programs import Given, by_modules, by_program
from tests.rogue_net.worlds import World, calm_down, frame_keys, to_obs

PACK = "pack"
SPACE = ObsSpace({"Unit": Entity(["x", "room"]), "Item": Entity(["x", "weight"])}, global_features=["fuel"])
#: Kinds of sets, and the types of which a unit selects.
CASES: dict[str, tuple[SelectEntitiesActionSpace, list[str]]] = {
    "independent": (SelectEntitiesActionSpace(), ["Item"]),
    "independent, of others": (SelectEntitiesActionSpace(exclude_self=True), ["Unit", "Item"]),
    "ordered": (SelectEntitiesActionSpace(ordered=True), ["Item"]),
    "ordered, 2 to 3 of others": (
        SelectEntitiesActionSpace(ordered=True, min=2, max=3, exclude_self=True),
        ["Item", "Unit"],
    ),
    "within a budget": (SelectEntitiesActionSpace(ordered=True, cost="weight", budget="room"), ["Item"]),
    "up to 4 within the budget of the frame": (
        SelectEntitiesActionSpace(ordered=True, max=4, cost="weight", budget="fuel", exclude_self=True),
        ["Unit", "Item"],
    ),
}
EACH_CASE = pytest.mark.parametrize("case", CASES)


def world(case: str) -> World:
    return World(SPACE, {PACK: CASES[case][0]})


def frame(case: str, units: int, items: int, seed: int, *, closes: bool) -> Observation:
    """Units that select. Weights and budgets are multiples of a tenth, so that some budgets are used up exactly."""
    rng = np.random.default_rng(seed)
    ids: dict[str, Any] = {"Unit": range(units), "Item": [f"item {k}" for k in range(items)]}
    actees = [each for name in CASES[case][1] for each in ids[name]]
    mask = rng.random((units, len(actees))) < 0.7 if closes else None
    features = {name: rng.random((len(ids[name]), 2)) for name in ids}
    for rows in features.values():
        rows[:, 1] = rows[:, 1].round(1)
    return Observation(
        features=features,
        ids=ids,
        global_features=[rng.integers(4)],
        actions={PACK: SelectEntitiesActionMask(actor_types=["Unit"], actee_ids=actees, mask=mask)},
    )


@st.composite
def frames(draw: st.DrawFn, case: str, *crowds: int) -> VecObs:
    """Frames without units, without items, and sometimes with so many items."""
    counts = st.tuples(st.integers(0, 4), st.one_of(st.integers(0, 7), *map(st.just, crowds)))
    drawn = draw(st.lists(counts, min_size=1, max_size=5))
    first = draw(st.integers(0, 100))
    observations = [
        frame(case, units, items, first + k, closes=draw(st.booleans())) for k, (units, items) in enumerate(drawn)
    ]
    return to_obs(observations, world(case))


def net_of(case: str, seed: int = 0, d_qk: int = 8) -> RogueNet:
    torch.manual_seed(seed)
    net = RogueNet(RogueNetConfig(d_model=16, n_layer=1, d_qk=d_qk, backend="fused"), SPACE, world(case).action_space)
    with torch.no_grad():  # with 0.2, one case in 200 is steep: float32 of modules and program is 1e-5 from float64
        for parameter in net.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    calm_down(net)
    return net


@EACH_CASE
@given(data=st.data(), seed=st.integers(0, 3), d_qk=st.sampled_from([8, 12]))
@settings(max_examples=12, deadline=None)
def test_outputs_and_gradients_of_any_sets(case: str, data: Any, seed: int, d_qk: int) -> None:
    """Sets that a random policy selects, which knows no budget."""
    obs = data.draw(frames(case, 130))  # more than a tile has room for
    net, batch, offered = net_of(case, seed, d_qk), ObsBatch.from_vec_obs(obs), obs.action_masks[PACK]
    chosen = torch.from_numpy(CASES[case][0].sample(offered, np.random.default_rng(seed)))
    weights = torch.rand(3, len(batch), generator=torch.Generator().manual_seed(seed)) + 0.5
    given = Given(batch, {PACK: RaggedTensor(chosen, torch.from_numpy(offered.pair_offsets))}, weights)
    exact, found = by_modules(as_modules(net, torch.float64), given), by_program(net, given)
    assert set(found.gradients) == set(exact.gradients)
    assert_near(found, exact)


@EACH_CASE
@given(data=st.data(), seed=st.integers(0, 3), greedy=st.booleans())
@settings(max_examples=12, deadline=None)
def test_acting(case: str, data: Any, seed: int, greedy: bool) -> None:
    assert_acts_alike(net_of(case, seed), ObsBatch.from_vec_obs(data.draw(frames(case))), greedy)


@EACH_CASE
def test_acting_among_many(case: str) -> None:
    crowd = [frame(case, 3, 130, 0, closes=False), frame(case, 1, 70, 1, closes=True)]
    assert_acts_alike(net_of(case), ObsBatch.from_vec_obs(to_obs(crowd, world(case))), greedy=False)


def assert_acts_alike(net: RogueNet, batch: ObsBatch, greedy: bool) -> None:
    keys = frame_keys(batch)
    found, expected = (each.act(batch, greedy=greedy, generator=keys) for each in (net, as_modules(net)))
    torch.testing.assert_close(found.actions, expected.actions, atol=0, rtol=0)
    torch.testing.assert_close(found.log_probs, expected.log_probs, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.values, expected.values, atol=1e-5, rtol=1e-5)


def test_sets_of_a_limited_number_that_have_no_order_are_left_to_modules() -> None:
    weight = torch.empty(0)
    for limits in ({"min": 1}, {"max": 2}):
        space = SelectEntitiesActionSpace(**limits)
        reason = why_no_program(RogueNetConfig(), weight, {"share": space})
        assert reason == "the limited sets of the action 'share' have no kernels"
    for case in CASES:
        assert why_no_program(RogueNetConfig(), weight, world(case).action_space) is None


def test_places_that_are_no_set_are_read_without_harm() -> None:
    """Nothing but the places themselves is known of what was given: the picks end where the next place is missing."""
    case, garbage = "ordered", [5, 2**40, -3, 2, 2, 0]
    net, obs = net_of(case), to_obs([frame(case, 1, 6, 0, closes=False)], world(case))
    batch, program = ObsBatch.from_vec_obs(obs), net.program()
    assert program is not None

    def log_prob(places: list[int]) -> Tensor:
        given = RaggedTensor(torch.tensor(places).view(-1, 1), torch.tensor([0, 6]))
        return program.evaluate(batch, {PACK: given})[0][PACK].values

    assert torch.equal(log_prob(garbage), log_prob([0] * 6))
    assert log_prob([1, *garbage[1:]]).isfinite()
