"""The compiled program with chained actions computes what the modules do: acting, log-probs of given actions, and gradients."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from entity_gym import CategoricalActionSpace, SelectEntityActionSpace
from rogue_net import ObsBatch, RogueNet
from tests.rogue_net.backends import Results
from tests.rogue_net.heads.test_chains import (
    AIM,
    CHAINS,
    FIRE,
    FREE_AIM,
    GUARD,
    HELP,
    JOINT,
    MASKS,
    MODE,
    MOVE,
    STEER,
    ships,
    world,
)
from tests.rogue_net.programs import by_modules, by_program, given_for
from tests.rogue_net.worlds import frame_keys, make_net, to_batch

CASES: dict[str, dict[str, Any]] = {
    "everything": CHAINS,
    **{name: actions for name, (actions, _) in JOINT.items()},
    "numbers": {name: CHAINS[name] for name in (STEER, AIM, FIRE, MOVE, MODE)},
    "two at once": {
        HELP: CategoricalActionSpace(["no", "yes"], after=[AIM, MOVE, "actors"]),
        AIM: FREE_AIM,
        MOVE: CategoricalActionSpace(["stay", "left", "right"]),
    },
    "selected after selected": {
        AIM: SelectEntityActionSpace(after=["other"]),
        "other": SelectEntityActionSpace(nobody=True, after="actors"),
    },
}
MASKS_OF = MASKS | {"other": MASKS[GUARD]}


@st.composite
def frames(draw: st.DrawFn, actions: dict[str, Any]) -> ObsBatch:
    """Frames of several sizes, in which some actions are not on offer, and some choices are closed."""
    observations = []
    for seed in range(draw(st.integers(1, 5))):
        count, rocks = draw(st.integers(0, 5)), draw(st.integers(1, 3))
        observation = ships(count, rocks, MOVE, seed=seed)
        offered = draw(st.lists(st.sampled_from(sorted(actions)), unique=True, min_size=1))
        masks = {name: MASKS_OF[name] for name in offered}
        if AIM in masks and draw(st.booleans()):
            is_open = np.random.default_rng(seed).random((count, rocks)) < 0.6
            is_open[:, 0] = True
            masks[AIM] = replace(masks[AIM], mask=is_open)
        observations.append(replace(observation, actions=masks))
    return to_batch(observations, world(**actions))


def assert_near(found: Results, exact: Results) -> None:
    """Compare outputs and gradients, which are measured by the largest of all: those of few actors may nearly cancel."""
    for name, output in exact.outputs.items():
        torch.testing.assert_close(found.outputs[name].double(), output.double(), atol=2e-5, rtol=1e-4, msg=name)
    largest = max(1.0, *(float(each.abs().max()) for each in exact.gradients.values() if each.numel()))
    for name, gradient in exact.gradients.items():
        assert float((found.gradients[name].double() - gradient).abs().max()) < 1e-5 * largest, name


def as_modules(net: RogueNet, dtype: torch.dtype = torch.float32) -> RogueNet:
    twin = copy.deepcopy(net)
    twin._program, twin._has_chosen = None, True
    if dtype == torch.float64:
        twin.double()
        twin._has_chosen = True
    return twin


@pytest.mark.parametrize("case", CASES)
@given(data=st.data(), seed=st.integers(0, 3))
@settings(max_examples=8, deadline=None)
def test_outputs_and_gradients(case: str, data: Any, seed: int) -> None:
    actions = CASES[case]
    batch = data.draw(frames(actions))
    net = make_net(world(**actions), backend="fused", seed=seed)
    given = given_for(as_modules(net), batch, seed)
    exact, found = by_modules(as_modules(net, torch.float64), given), by_program(net, given)
    told = {name for name in exact.gradients if ".told." in name or ".reader." in name or ".taken." in name}
    assert told and set(found.gradients) >= set(exact.gradients)
    assert_near(found, exact)


@pytest.mark.parametrize("case", CASES)
@given(data=st.data(), seed=st.integers(0, 3), greedy=st.booleans())
@settings(max_examples=8, deadline=None)
def test_acting(case: str, data: Any, seed: int, greedy: bool) -> None:
    actions = CASES[case]
    batch = data.draw(frames(actions))
    net = make_net(world(**actions), backend="fused", seed=seed)
    reference, keys = as_modules(net), frame_keys(batch)
    found = net.act(batch, greedy=greedy, generator=keys)
    assert list(found.actions) == list(actions)
    expected = reference.act(batch, greedy=greedy, generator=keys)
    with torch.no_grad():
        judged = reference.evaluate(batch, found.actions)
    for name in actions:
        torch.testing.assert_close(found.actions[name].values, expected.actions[name].values, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(found.log_probs[name].values, judged.log_probs[name].values, atol=5e-5, rtol=1e-4)


def test_choices_that_a_selection_closes() -> None:
    actions: dict[str, Any] = {
        AIM: FREE_AIM,
        FIRE: CategoricalActionSpace(
            ["no", "yes", "both"], after=[AIM, MOVE], allowed={MOVE: np.eye(3, dtype=bool) | True}
        ),
        MOVE: CategoricalActionSpace(["stay", "left", "right"]),
    }
    rng = np.random.default_rng(0)
    observations = []
    for seed, (count, rocks) in enumerate([(3, 2), (1, 3), (4, 2), (2, 1)]):
        after = rng.random((count, rocks, 3)) < 0.5
        after[..., rng.integers(3)] = True
        masks = {name: MASKS[name] for name in actions}
        if seed != 2:
            masks[FIRE] = replace(masks[FIRE], mask_after=after)
        observations.append(replace(ships(count, rocks, MOVE, seed=seed), actions=masks))
    batch = to_batch(observations, world(**actions))
    net = make_net(world(**actions), backend="fused")
    given = given_for(as_modules(net), batch, 0)
    assert_near(by_program(net, given), by_modules(as_modules(net, torch.float64), given))
    keys = frame_keys(batch)
    found, expected = net.act(batch, generator=keys), as_modules(net).act(batch, generator=keys)
    for name in actions:
        assert torch.equal(found.actions[name].values, expected.actions[name].values)
