"""The network's results must not depend on what does not matter: other frames, their order, padding, equals' order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from entity_gym import Observation
from rogue_net import ObsBatch
from rogue_net.config import Backend
from tests.rogue_net.worlds import (
    ENTITIES,
    PICK,
    World,
    assert_same,
    batches,
    evaluate_frames,
    frame_keys,
    frames,
    gather,
    net_of,
    to_batch,
    worlds,
)

EACH = pytest.mark.parametrize("backend", ["fused", "reference"])
FEW = settings(max_examples=40)


@EACH
@FEW
@given(data=st.data(), world=worlds)
def test_a_frame_evaluates_alone_as_it_does_among_others(backend: Backend, data: st.DataObject, world: World) -> None:
    observations = data.draw(batches(world))
    net, batch = net_of(world, backend), to_batch(observations, world)
    actions = net.act(batch, generator=frame_keys(batch)).actions
    together = evaluate_frames(net, batch, actions)
    for b, observation in enumerate(observations):
        [alone] = evaluate_frames(net, to_batch([observation], world), gather(actions, torch.tensor([b])))
        assert_same(together[b], alone)


@FEW
@given(data=st.data(), world=worlds)
def test_gathering_frames_equals_batching_only_those(data: st.DataObject, world: World) -> None:
    observations = data.draw(batches(world))
    chosen = data.draw(st.lists(st.integers(0, len(observations) - 1), min_size=1, max_size=6))
    gathered = to_batch(observations, world)[torch.tensor(chosen)]
    assert_same_batch(gathered, to_batch([observations[b] for b in chosen], world))


@FEW
@given(data=st.data(), world=worlds)
def test_concatenating_single_frames_equals_the_batch(data: st.DataObject, world: World) -> None:
    observations = data.draw(batches(world))
    assert_same_batch(ObsBatch.cat([to_batch([obs], world) for obs in observations]), to_batch(observations, world))


@EACH
@FEW
@given(data=st.data(), world=worlds)
def test_a_permuted_type_permutes_the_results_and_nothing_else(
    backend: Backend, data: st.DataObject, world: World
) -> None:
    """Actors and actees are listed by id and in the same order, so every result of an actor or a pair stays its own."""
    observation = data.draw(frames(world))
    orders = {name: data.draw(st.permutations(range(len(rows)))) for name, rows in observation.features.items()}
    permuted = replace(
        observation,
        features={name: np.asarray(rows)[orders[name]] for name, rows in observation.features.items()},
        ids={name: [ids[i] for i in orders[name]] for name, ids in observation.ids.items()},
        visible={name: [flags[i] for i in orders[name]] for name, flags in observation.visible.items()},
    )
    net = net_of(world, backend)
    batch, permuted_batch = to_batch([observation], world), to_batch([permuted], world)
    actions = net.act(batch, generator=frame_keys(batch)).actions
    # a selected entity keeps its id and gets another index
    new_index = index_of_ids(permuted)
    selected = [new_index[ids_by_index(observation)[i]] if i >= 0 else -1 for i in actions[PICK].values[:, 0].tolist()]
    moved = actions | {PICK: actions[PICK]._replace(values=torch.tensor(selected, dtype=torch.int64).reshape(-1, 1))}
    [before], [after] = evaluate_frames(net, batch, actions), evaluate_frames(net, permuted_batch, moved)
    assert_same(after, before)


@EACH
@FEW
@given(data=st.data(), world=worlds)
def test_acting_and_evaluating_agree_to_the_last_bit(backend: Backend, data: st.DataObject, world: World) -> None:
    net, batch = net_of(world, backend), to_batch(data.draw(batches(world)), world)
    result = net.act(batch, generator=frame_keys(batch))
    evaluations = evaluate_frames(net, batch, result.actions)
    assert torch.equal(result.values, torch.stack([each.value for each in evaluations]))
    if backend == "reference":
        assert torch.equal(net.value(batch), result.values)
    for name in world.action_space:
        assert torch.equal(result.log_probs[name].values, torch.cat([each.log_probs[name] for each in evaluations]))


@EACH
@FEW
@given(data=st.data(), world=worlds)
def test_only_what_was_offered_is_chosen(backend: Backend, data: st.DataObject, world: World) -> None:
    observations = data.draw(batches(world))
    net, batch = net_of(world, backend), to_batch(observations, world)
    greedy = data.draw(st.booleans())
    actions = net.act(batch, greedy=greedy, generator=frame_keys(batch)).to_buffers()
    for b, observation in enumerate(observations):
        index_of = index_of_ids(observation)
        for name in world.action_space:
            values = np.asarray(actions[name].to_list()[b], dtype=np.int64).reshape(-1).tolist()
            offered = observation.actions.get(name)
            if offered is None:
                assert values == []
            elif name == PICK:
                actees = [index_of[id_] for id_ in offered.actee_ids] if offered.actor_ids else []
                rows = offered.mask if offered.mask is not None else [[True] * len(actees)] * len(values)
                for value, row in zip(values, rows, strict=True):
                    allowed = [actee for actee, is_open in zip(actees, row, strict=True) if is_open]
                    assert value in (allowed or [-1])
            elif offered.mask is not None:
                assert all(row[value] for value, row in zip(values, offered.mask, strict=True))


def index_of_ids(observation: Observation) -> dict[object, int]:
    return {id_: index for index, id_ in enumerate(ids_by_index(observation))}


def ids_by_index(observation: Observation) -> list[object]:
    return [id_ for name in ENTITIES for id_ in observation.ids.get(name, [])]


def assert_same_batch(given_batch: ObsBatch, expected: ObsBatch) -> None:
    """Frames, features, actors, actees, open choices and visibility; "nothing is masked" may be said in two ways."""
    assert len(given_batch) == len(expected)
    assert given_batch.features.keys() == expected.features.keys()
    for name, ragged in expected.features.items():
        assert_same_ragged(given_batch.features[name], ragged)
    for name, mask in expected.action_masks.items():
        other = given_batch.action_masks[name]
        assert_same_ragged(other.actors, mask.actors)
        if mask.actees is not None:
            assert_same_ragged(other.actees, mask.actees)
            assert torch.equal(open_pairs(other), open_pairs(mask))
        elif other.mask is None or mask.mask is None:
            assert all(m.mask is None or bool(m.mask.values.all()) for m in (other, mask))
        else:
            assert torch.equal(other.mask.values, mask.mask.values)
    shown = [
        torch.ones(b.num_tokens, dtype=torch.bool) if b.frames.visible is None else b.frames.visible
        for b in (given_batch, expected)
    ]
    assert torch.equal(*shown)
    assert torch.equal(given_batch.frames.offsets, expected.frames.offsets)
    assert torch.equal(given_batch.frames.of_token, expected.frames.of_token)


def open_pairs(mask: object) -> torch.Tensor:
    pairs = int((mask.actors.lengths * mask.actees.lengths).sum())
    return torch.ones(pairs, dtype=torch.bool) if mask.mask is None else mask.mask.values[:, 0]


def assert_same_ragged(given_ragged: object, expected: object) -> None:
    assert torch.equal(given_ragged.values, expected.values)
    assert torch.equal(given_ragged.offsets, expected.offsets)
