"""Compiled programs compute what the modules compute in float64, outputs and gradients, whatever the settings."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rogue_net import FrameKeys, RogueNetConfig, keyed
from rogue_net.config import RelposConfig
from tests.rogue_net.backends import (
    ACTIONS,
    RELPOS_OF_PROGRAM,
    Scene,
    assert_near,
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


@settings(max_examples=40, deadline=None)
@given(config=plain_configs(), scene=scenes(many=True))
def test_networks(config: RogueNetConfig, scene: Scene) -> None:
    assert_exact(config, scene)


@settings(max_examples=60, deadline=None)
@given(config=relative_configs(), scene=scenes(many=True))
def test_networks_with_relative_positions(config: RogueNetConfig, scene: Scene) -> None:
    assume(away_from_edges(scene.batch, config.relpos))
    assert_exact(config, scene)


@pytest.mark.parametrize("shape", [(32, 2), (64, 2), (80, 2)])
def test_relative_positions_in_heads_of_other_widths(shape: tuple[int, int]) -> None:
    config = make_config(shape, relpos=RelposConfig(**RELPOS_OF_PROGRAM))
    assert_exact(config, Scene([(5, 6, 1), (0, 0, 0), (1, 0, 0), (17, 20, 0)], seed=1, hide=True))


@pytest.mark.parametrize("more", [{}, {"relpos": RelposConfig(**RELPOS_OF_PROGRAM)}])
def test_a_crowd_of_500_among_frames_of_5_is_computed_as_if_alone(more: dict[str, Any]) -> None:
    batch = Scene([(2, 3, 0)] * 20 + [(200, 300, 0)] + [(2, 3, 0)] * 20, seed=2, hide=True).batch
    net = make_net(make_config((16, 2), **more), batch)
    together = net.act(batch, greedy=True).values
    for frame in (0, 20, 40):
        alone = net.act(batch[torch.tensor([frame])], greedy=True).values
        torch.testing.assert_close(together[frame : frame + 1], alone, atol=1e-6, rtol=1e-6)


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
        torch.testing.assert_close(found.log_probs[name], evaluation.log_probs[name], atol=2e-5, rtol=1e-5)
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
