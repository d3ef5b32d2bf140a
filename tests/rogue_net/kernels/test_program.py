"""Compiled programs compute what the modules compute in float64, outputs and gradients, whatever the settings."""

from __future__ import annotations

import gc
import math
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from rogue_net import FrameKeys, ObsBatch, RogueNetConfig, keyed
from rogue_net.config import RelposConfig
from tests.rogue_net.backends import (
    ACTIONS,
    FLAG,
    MOVE,
    RELPOS_OF_PROGRAM,
    ROCK,
    SHIP,
    STEER,
    Scene,
    assert_near,
    assert_tensor_near,
    away_from_edges,
    make_config,
    make_net,
    plain_configs,
    relative_configs,
    scenes,
    twin,
)
from tests.rogue_net.programs import by_modules, by_program, given_for


def assert_exact(config: RogueNetConfig, scene: Scene) -> None:
    batch = scene.batch
    net = make_net(config, batch, scene.seed)
    # frames in which much is masked leave little that differs
    given = given_for(twin(net, "reference"), batch, scene.seed)
    exact, found = by_modules(twin(net, "reference", torch.float64), given), by_program(net, given)
    assert set(found.gradients) == set(exact.gradients)
    assert_near(found, exact)


EACH_ACTING = pytest.mark.parametrize("acting", ["some", "nobody", "on one"])


@EACH_ACTING
@settings(max_examples=14, deadline=None)
@given(config=plain_configs(), scene=scenes(many=True))
def test_networks(acting: str, config: RogueNetConfig, scene: Scene) -> None:
    assert_exact(config, scene._replace(acting=acting))


@EACH_ACTING
@settings(max_examples=20, deadline=None)
@given(config=relative_configs(), scene=scenes(many=True))
def test_networks_with_relative_positions(acting: str, config: RogueNetConfig, scene: Scene) -> None:
    assume(away_from_edges(scene.batch, config.relpos))
    assert_exact(config, scene._replace(acting=acting))


@settings(max_examples=30, deadline=None)
@given(config=plain_configs(), scene=scenes(many=True), greedy=st.booleans())
def test_actions_and_their_log_probs(config: RogueNetConfig, scene: Scene, greedy: bool) -> None:
    batch = scene.batch
    net = make_net(config, batch, scene.seed)
    keys = FrameKeys(keyed(3, torch.arange(len(batch))))
    found = net.act(batch, greedy=greedy, generator=keys)
    expected = twin(net, "reference").act(batch, greedy=greedy, generator=keys)
    with torch.no_grad():  # of the actions that were found: near a bound, rounding decides
        evaluation = twin(net, "reference").evaluate(batch, found.actions)
    for name in ACTIONS:
        torch.testing.assert_close(found.actions[name].values, expected.actions[name].values, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(
            found.log_probs[name].values, evaluation.log_probs[name].values, atol=2e-5, rtol=1e-5
        )
    torch.testing.assert_close(found.values, expected.values, atol=1e-5, rtol=1e-5)


def test_the_memory_of_a_program_is_free_as_soon_as_its_network_is_gone() -> None:
    scene = Scene([(2, 3, 1)], seed=1)
    net = make_net(make_config(), scene.batch, scene.seed)
    net.act(scene.batch, greedy=True)
    program = weakref.ref(net._program)
    assert program() is not None
    gc.collect()
    gc.disable()
    try:
        del net
        assert program() is None
    finally:
        gc.enable()


# --- Relative positions where chance does not look: borders of buckets, hidden entities, gates


def with_places(batch: ObsBatch, ships: Tensor, rocks: Tensor) -> ObsBatch:
    """The batch with ships and rocks at these (n, 2) places."""
    changed = {}
    for name, column, places in ((SHIP, 0, ships), (ROCK, 1, rocks)):
        values = batch.features[name].values.clone()
        values[:, column : column + 2] = places
        changed[name] = batch.features[name]._replace(values=values)
    return replace(batch, features=batch.features | changed)


@pytest.mark.parametrize(
    ("kind", "extent"), [("grid", [2, 2]), ("radial", [8]), ("distance", [6]), ("polar", [4, 6])], ids=str
)
def test_things_that_stand_exactly_on_borders_are_in_the_same_buckets_for_modules_and_programs(
    kind: Any, extent: list[int]
) -> None:
    """On a grid nearly everything does: whole numbers, right angles and diagonals, 3-4-5."""
    for scale in (1.0, 2.0, 0.1):
        config = RelposConfig(
            kind=kind, extent=extent, position_features=["x", "y"], scale=scale, exclude_entities=[FLAG]
        )
        cells = torch.cartesian_prod(torch.arange(-2.0, 3), torch.arange(-2.0, 3)) * (scale if scale < 1 else 1)
        scene = Scene([(13, 12, 0)], 0).batch
        batch = with_places(scene, cells[:13], cells[13:])
        net = make_net(make_config(relpos=config), batch)
        expected, given = twin(net, "reference").act(batch, greedy=True), net.act(batch, greedy=True)
        torch.testing.assert_close(given.actions[STEER].values, expected.actions[STEER].values, atol=1e-5, rtol=1e-5)
        assert_tensor_near(given.values, expected.values, f"{kind} {scale}")


@pytest.mark.parametrize("number", [1e4, -3.0, pytest.param(math.nan)])
@pytest.mark.parametrize("relpos", [RelposConfig(), RelposConfig(**RELPOS_OF_PROGRAM)], ids=["plain", "relative"])
def test_a_hidden_entity_changes_no_bit_of_what_visible_ones_decide(relpos: RelposConfig, number: float) -> None:
    batch = Scene([(9, 8, 0)], 3, hide=True, acting="on one").batch
    visible = batch.frames.visible
    assert visible is not None and 0 < int(visible.sum()) < 17
    net = make_net(make_config(relpos=relpos), batch)
    actions, program = net.act(batch, greedy=True).actions, net.program()
    assert program is not None
    before, value = program.evaluate(batch, actions)
    ships = batch.features[SHIP]
    changed = ships.values.clone()
    changed[~visible[: len(changed)]] = number
    shown = replace(batch, features=batch.features | {SHIP: ships._replace(values=changed)})
    after, other_value = program.evaluate(shown, actions)
    assert not torch.equal(other_value, value)
    for name in (MOVE, STEER):
        sees = visible[batch.action_masks[name].actors.values[:, 0]]
        assert sees.any() and not sees.all()
        assert torch.equal(after[name].values[sees], before[name].values[sees])
        assert not torch.equal(after[name].values[~sees], before[name].values[~sees])


def test_a_single_sector_is_all_there_is_at_a_whole_turn_too() -> None:
    config = RelposConfig(
        kind="radial",
        extent=[1],
        position_features=["x", "y"],
        interpolate=True,
        per_entity_values=True,
        exclude_entities=[FLAG],
    )
    places = torch.tensor([[0.0, 0.0], [1.0, -1e-10]])  # 1 - 1e-11 turns are 1
    batch = with_places(Scene([(2, 0, 0)], 0).batch, places, torch.zeros(0, 2))
    net = make_net(make_config(relpos=config), batch)
    positions = net.transformer.relative_positions
    assert positions is not None
    with torch.no_grad():
        positions.values[1] = torch.nan  # of rocks, which are not there
    expected = twin(net, "reference").act(batch, greedy=True).values
    assert expected.isfinite().all()
    torch.testing.assert_close(net.act(batch, greedy=True).values, expected)
