"""Frames that equal the one before share its tokens: what a program computes is the same as of frames by themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from entity_gym import CategoricalActionMask, CategoricalActionSpace, Entity, Observation, ObsSpace
from rogue_net import ObsBatch, RaggedTensor, RogueNet, RogueNetConfig
from rogue_net.batch.obs_batch import ActionMask
from rogue_net.batch.ragged import Cat, Gather
from rogue_net.config import RelposConfig
from rogue_net.kernels.cpu.program import Program
from tests.rogue_net.backends import (
    PICK,
    RELPOS_OF_PROGRAM,
    ROCK,
    SHIP,
    Scene,
    assert_near,
    make_config,
    make_net,
    plain_configs,
    scenes,
    twin,
)
from tests.rogue_net.kernels import test_sets
from tests.rogue_net.programs import by_modules, by_program, given_for
from tests.rogue_net.worlds import World, to_obs

SCENE = Scene([(3, 2, 1), (2, 4, 0)], seed=5, hide=True, acting="all")


def repeated(batch: ObsBatch, times: list[int]) -> ObsBatch:
    """Each frame so many times, one after the other."""
    return batch.gather(Gather(torch.arange(len(batch)).repeat_interleave(torch.tensor(times))))


def originals(net: Any, batch: ObsBatch) -> list[int]:
    drawn = net.act(batch, greedy=True)
    log_probs = {name: each.values for name, each in drawn.log_probs.items()}
    found: list[int] = Program(net).columns(batch, drawn.actions, log_probs).originals.tolist()
    return found


@settings(max_examples=12, deadline=None)
@given(config=plain_configs(), scene=scenes(many=True), data=st.data())
def test_outputs_and_gradients(config: RogueNetConfig, scene: Scene, data: st.DataObject) -> None:
    times = data.draw(st.lists(st.sampled_from([1, 2, 3, 40]), min_size=len(scene.counts), max_size=len(scene.counts)))
    net = make_net(config, scene.batch, scene.seed)
    batch = repeated(scene.batch, times)
    given = given_for(twin(net, "reference"), batch, scene.seed)  # copies choose differently
    assert_near(by_program(net, given), by_modules(twin(net, "reference", torch.float64), given))


def test_outputs_and_gradients_with_relative_positions() -> None:
    net = make_net(make_config(relpos=RelposConfig(**RELPOS_OF_PROGRAM)), SCENE.batch, 0)
    given = given_for(twin(net, "reference"), repeated(SCENE.batch, [5, 3]), 1)
    assert_near(by_program(net, given), by_modules(twin(net, "reference", torch.float64), given))


@test_sets.EACH_CASE
@settings(max_examples=6, deadline=None)
@given(data=st.data(), seed=st.integers(0, 3))
def test_outputs_and_gradients_of_sets(case: str, data: Any, seed: int) -> None:
    obs = data.draw(test_sets.frames(case, 130))
    net, batch = test_sets.net_of(case, seed), ObsBatch.from_vec_obs(obs)
    given = given_for(test_sets.as_modules(net), repeated(batch, [6] * len(batch)), seed)
    exact = by_modules(test_sets.as_modules(net, torch.float64), given)
    test_sets.assert_near(by_program(net, given), exact)


def test_equal_frames_are_encoded_once() -> None:
    net = make_net(make_config(), SCENE.batch, 0)
    assert originals(net, repeated(SCENE.batch, [3, 2])) == [0, 0, 0, 3, 3]


CHANGES: dict[str, Callable[[ObsBatch], ObsBatch]] = {
    "a feature": lambda batch: with_rows(batch, lambda rows: rows + 1),
    "not a number": lambda batch: with_rows(batch, lambda rows: rows * torch.nan),
    "a number of entities": lambda batch: ObsBatch.cat(
        [batch, Scene([(3, 3, 1)], 5, acting="all").batch, batch], Cat()
    ),
    "what is hidden": lambda batch: replace(
        batch, visible={SHIP: changed(shown(batch.features[SHIP]), lambda rows: ~rows)}
    ),
    "who may be selected": lambda batch: replace(
        batch, action_masks={**batch.action_masks, PICK: with_actees(batch.action_masks[PICK])}
    ),
}


def changed(ragged: RaggedTensor, change: Callable[[Tensor], Tensor]) -> RaggedTensor:
    """The middle one of three frames is another one."""
    first, end = ragged.offsets[1:3].tolist()
    values = ragged.values.clone()
    values[first:end] = change(values[first:end])
    return ragged._replace(values=values)


def shown(ragged: RaggedTensor) -> RaggedTensor:
    return ragged._replace(values=torch.ones(len(ragged.values), dtype=torch.bool))


def with_rows(batch: ObsBatch, change: Callable[[Tensor], Tensor]) -> ObsBatch:
    return replace(batch, features={**batch.features, ROCK: changed(batch.features[ROCK], change)})


def with_actees(mask: ActionMask) -> ActionMask:
    assert mask.actees is not None
    return replace(mask, actees=changed(mask.actees, lambda rows: rows.flip(0)))


@pytest.mark.parametrize("what", CHANGES)
def test_a_frame_that_differs_is_encoded_itself(what: str) -> None:
    first = Scene([(3, 2, 1)], 5, acting="all").batch
    net = make_net(make_config(), first, 0)
    batch = CHANGES[what](first if what == "a number of entities" else repeated(first, [3]))
    assert originals(net, batch) == [0, 1, 2]


@pytest.mark.parametrize("options", [{"memory": "entity"}, {}])
def test_tokens_that_choices_or_a_memory_change_are_not_shared(options: dict[str, Any]) -> None:
    actions = {"first": CategoricalActionSpace(["a", "b"])}
    if not options:
        actions["second"] = CategoricalActionSpace(["a", "b"], after="first")
    config = RogueNetConfig(d_model=16, n_layer=1, backend="fused", **options)
    net = RogueNet(config, ObsSpace({"Unit": Entity(["x"])}), actions)
    masks = {name: CategoricalActionMask(actor_types=["Unit"]) for name in actions}
    frame = Observation(features={"Unit": [[1.0], [2.0]]}, ids={"Unit": [0, 1]}, actions=masks)
    assert originals(net, ObsBatch.from_vec_obs(to_obs([frame] * 3, World(net.obs_space, actions)))) == [0, 1, 2]
