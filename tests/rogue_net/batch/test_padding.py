"""Batches of a fixed size: what fills them up changes nothing."""

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from entity_gym import SelectEntityActionSpace
from entity_gym.batch.vec_obs import VecObs
from rogue_net import FrameKeys, ObsBatch, RaggedTensor, RogueNet, keyed
from rogue_net.batch.crossing import Packing, to_device, views
from rogue_net.batch.masks import ActionMask
from rogue_net.batch.padding import Capacity, PaddedBuffer, fill_up, pad_ragged, padded, pairs_in, room
from tests.rogue_net import backends
from tests.rogue_net.worlds import WORLDS, batches, net_of, to_batch, to_obs, worlds


def filled_up(actions: dict[str, RaggedTensor], capacity: Capacity) -> dict[str, RaggedTensor]:
    return {name: pad_ragged(action, capacity.actors[name], capacity.frames) for name, action in actions.items()}


def check_same_evaluation(net: RogueNet, batch: ObsBatch, capacity: Capacity) -> None:
    """Numbers and gradients of the real frames."""
    actions = net.act(batch).actions
    full = padded(batch, capacity)
    plain, of_full = net.evaluate(batch, actions), net.evaluate(full, filled_up(actions, capacity))
    torch.testing.assert_close(of_full.values[: len(batch)], plain.values, atol=1e-5, rtol=1e-5)
    losses = [plain.values.sum(), of_full.values[: len(batch)].sum()]
    for name, log_probs in plain.log_probs.items():
        count = len(log_probs)
        torch.testing.assert_close(of_full.log_probs[name][:count], log_probs, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(of_full.entropies[name][:count], plain.entropies[name], atol=1e-5, rtol=1e-5)
        losses[0] = losses[0] + (log_probs + plain.entropies[name]).sum()
        # what is real is told by a factor, as in a loss: what fills up has to be finite
        real = fill_up(torch.ones(count), capacity.actors[name])
        losses[1] = losses[1] + ((of_full.log_probs[name] + of_full.entropies[name]) * real).sum()
    gradients = [torch.autograd.grad(loss, list(net.parameters()), allow_unused=True) for loss in losses]
    for expected, given_ in zip(*gradients, strict=True):
        if expected is not None and given_ is not None:
            torch.testing.assert_close(given_, expected, atol=1e-4, rtol=1e-4)


@given(st.data(), worlds)
def test_real_frames_get_the_numbers_and_gradients_that_they_had(data: st.DataObject, world) -> None:  # type: ignore[no-untyped-def]
    batch = to_batch(data.draw(batches(world)), world)
    check_same_evaluation(net_of(world, "reference"), batch, Capacity.of(batch))


@given(st.data(), worlds)
def test_the_room_that_is_left_changes_nothing(data: st.DataObject, world) -> None:  # type: ignore[no-untyped-def]
    batch, larger = (to_batch(data.draw(batches(world)), world) for _ in range(2))
    capacity = Capacity.of(batch).covering(Capacity.of(larger))
    assert capacity.fits(batch) and capacity.fits(larger)
    check_same_evaluation(net_of(world, "reference"), batch, capacity)


def tensors_of(mask: ActionMask) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    mask.map(lambda tensor: found.append(tensor) or tensor)  # type: ignore[func-returns-value]
    return found


def check_buffer(steps: Sequence[VecObs], capacity: Capacity) -> None:
    """Writing one step after the other makes what packing a padded batch makes, and gives the batch back."""
    cpu = torch.device("cpu")
    buffer = PaddedBuffer(ObsBatch.from_vec_obs(steps[0]), capacity, cpu)
    for obs in steps:
        batch = ObsBatch.from_vec_obs(obs)
        places = buffer.write(obs)
        assert (places is not None) == capacity.fits(batch)
        if places is None:
            continue
        tensors = padded(batch, capacity).tensors()
        memory = buffer.to_device()
        assert len(memory) == Packing([tensor.numpy() for tensor in tensors]).num_bytes
        for found, expected in zip(views(memory, tensors), to_device(tensors, cpu), strict=True):
            assert found.dtype == expected.dtype and torch.equal(found, expected)
        check_same_batch(ObsBatch.lying_in(memory, obs, places), batch)


def check_same_batch(real: ObsBatch, batch: ObsBatch) -> None:
    assert len(real) == len(batch) and not real.padded
    assert real.visible.keys() == batch.visible.keys()
    for name, ragged in batch.features.items():
        assert all(torch.equal(a, b) for a, b in zip(real.features[name], ragged, strict=True))
    for name, ragged in batch.visible.items():
        assert all(torch.equal(a, b) for a, b in zip(real.visible[name], ragged, strict=True))
    for name, mask in batch.action_masks.items():
        found_mask = real.action_masks[name]
        assert type(found_mask) is type(mask)
        assert all(torch.equal(a, b) for a, b in zip(tensors_of(found_mask), tensors_of(mask), strict=True))
        assert getattr(found_mask, "num_pairs", None) == getattr(mask, "num_pairs", None)


def check_capacities(*steps: VecObs) -> None:
    first, *others = (Capacity.of(ObsBatch.from_vec_obs(each), token_pairs=True) for each in steps)
    check_buffer(steps, first)  # in which the others may not fit
    largest = reduce(Capacity.covering, others, first)
    check_buffer([*steps, *reversed(steps)], largest)


@given(st.data(), worlds)
def test_steps_are_filled_up_one_after_the_other(data: st.DataObject, world) -> None:  # type: ignore[no-untyped-def]
    check_capacities(*(to_obs(data.draw(batches(world)), world) for _ in range(3)))


@given(backends.scenes(), backends.scenes())
def test_steps_with_hidden_entities_and_all_actions_are_filled_up_one_after_the_other(
    scene: backends.Scene, other: backends.Scene
) -> None:
    check_capacities(scene.obs, other.obs)


def test_a_step_that_has_exactly_the_room_does_not_fit() -> None:
    """One row more than there are has to be left: of entities, actors, actees, pairs, pairs of entities and frames."""
    obs = backends.Scene([(1, 3, 1), (2, 4, 0)], seed=1, hide=True, acting="on one").obs
    batch, few = ObsBatch.from_vec_obs(obs), backends.Scene([(0, 0, 0)], seed=1, acting="nobody").batch
    capacity = Capacity.of(batch, token_pairs=True)
    check_buffer([obs], capacity)
    (pick,) = (mask for mask in batch.action_masks.values() if mask.actees is not None)
    name = next(name for name, mask in batch.action_masks.items() if mask is pick)
    ship, ships = next(iter(batch.features)), len(next(iter(batch.features.values())).values)
    assert capacity.masked and capacity.hiding
    tight = [
        {"frames": len(batch) + 1},
        {"entities": {**capacity.entities, ship: ships}},
        {"actors": {**capacity.actors, name: len(pick.actors.values)}},
        {"actees": {**capacity.actees, name: len(pick.actees.values)}},
        {"pairs": {**capacity.pairs, name: pairs_in(pick)}},
        {"masked": {}},
        {"hiding": frozenset()},
        {"token_pairs": 5 * 5 + 6 * 6},
    ]
    for changes in tight:
        tight_capacity = replace(capacity, **changes)
        assert PaddedBuffer(few, tight_capacity, torch.device("cpu")).write(obs) is None and not tight_capacity.fits(
            batch
        )


@given(backends.scenes())
def test_continuous_actions_and_selections_are_the_same(scene: backends.Scene) -> None:
    net = RogueNet(backends.make_config(backend="reference"), backends.SPACE, backends.ACTIONS)
    check_same_evaluation(net, scene.batch, Capacity.of(scene.batch))


@given(backends.scenes())
def test_selecting_nobody_is_the_same(scene: backends.Scene) -> None:
    actions = {**backends.ACTIONS, backends.PICK: SelectEntityActionSpace(nobody=True)}
    net = RogueNet(backends.make_config(backend="reference"), backends.SPACE, actions)
    check_same_evaluation(net, scene.batch, Capacity.of(scene.batch))


@pytest.mark.parametrize("options", [{"pooling": "mean"}, {"pooling": "meanmax"}, {"relpos": True}])
def test_pooling_and_relative_positions_are_the_same(options: dict[str, object]) -> None:
    if "relpos" in options:
        options = {"relpos": backends.RelposConfig(**backends.ALL_OF_RELPOS)}
    config = backends.make_config(backend="reference", **options)
    net = RogueNet(config, backends.SPACE, backends.ACTIONS)
    batch = backends.even_scene(frames=5, entities=4).batch
    check_same_evaluation(net, batch, Capacity.of(batch))


@pytest.mark.parametrize("world", WORLDS)
def test_keyed_noise_draws_the_same_actions(world) -> None:  # type: ignore[no-untyped-def]
    net = net_of(world, "reference")

    @given(batches(world))
    def check(observations) -> None:  # type: ignore[no-untyped-def]
        batch = to_batch(observations, world)
        capacity = Capacity.of(batch)
        keys = keyed(7, torch.arange(len(batch)))
        plain = net.act(batch, generator=FrameKeys(keys))
        full = net.act(padded(batch, capacity), generator=FrameKeys(fill_up(keys, capacity.frames)))
        for name, action in plain.actions.items():
            assert torch.equal(full.actions[name].values[: len(action.values)], action.values)

    check()


def test_a_batch_that_is_too_large_does_not_fit_and_nothing_is_dropped() -> None:
    small, large = (backends.even_scene(frames=4, entities=n).batch for n in (3, 9))
    capacity = Capacity.of(small)
    assert not capacity.fits(large)
    grown = capacity.covering(Capacity.of(large))
    assert grown.fits(small) and grown.fits(large)
    full = padded(large, grown)
    for name, ragged in large.features.items():
        assert torch.equal(full.features[name].values[: len(ragged.values)], ragged.values)


@given(st.integers(0, 10**7))
def test_there_is_always_a_row_to_spare_and_at_most_an_eighth_or_64_more(count: int) -> None:
    assert count < room(count) <= max(count + 64, (count + 1) * 1.125)
    assert room(room(count) - 1) == room(count)
