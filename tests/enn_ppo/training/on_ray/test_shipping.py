"""A rollout arrives as it was sent, as arrays that are sent once each."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch

from enn_ppo.rollout import Rollout
from enn_ppo.settings.config import EnvConfig
from enn_ppo.training.on_ray.shipping import as_tensor, load_weights, ship, ship_weights, unship
from rogue_net import RogueNet, RogueNetConfig
from tests.enn_ppo.rows import assert_same
from tests.enn_ppo.training.test_blocks import CPU, WORLDS, of, parts, sampler


def played(world: EnvConfig) -> Rollout:
    with sampler(world, of(6, 3)) as blocks:
        return blocks.collect(9)


def over_the_wire(value: Any) -> tuple[Any, list[pickle.PickleBuffer]]:
    """What arrives, and the arrays that need not be copied on the way."""
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    return pickle.loads(data, buffers=[bytes(buffer.raw()) for buffer in buffers]), buffers


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.id)
def test_a_rollout_arrives_as_it_was_sent_in_memory_that_is_not_copied(world: EnvConfig) -> None:
    rollout = played(world)
    sent = ship(rollout)
    assert np.shares_memory(sent.frames.rewards, rollout.frames.rewards.numpy())  # type: ignore[arg-type]
    shipped, buffers = over_the_wire(sent)
    num_bytes = sum(tensor.nbytes for tensor in [*rollout.frames.tensors(), rollout.last_values])
    assert sum(buffer.raw().nbytes for buffer in buffers) == num_bytes  # arrays that are there twice are sent once
    arrived = unship(shipped, CPU)
    assert arrived.frames.rewards.data_ptr() == shipped.frames.rewards.ctypes.data
    assert_same(parts(arrived, range(6)), parts(rollout, range(6)))
    assert vars(arrived.stats) == vars(rollout.stats)
    assert arrived.by_step("env_id")[0].tolist() == [0, 1, 2, 3, 4, 5]


def test_weights_arrive_with_the_statistics_that_belong_to_them() -> None:
    with sampler(WORLDS[0], of(4, None)) as blocks:
        spaces = blocks.obs_space(), blocks.action_space()
        one, other = (RogueNet(RogueNetConfig(d_model=8, n_layer=1, n_head=1), *spaces) for _ in range(2))
        batch = blocks.collect(8).frames.obs
    torch.nn.init.ones_(one.value_head.project.weight)
    one.update_normalization(batch)
    assert not torch.equal(one.value(batch), other.value(batch))
    weights, _ = over_the_wire(ship_weights(one))
    load_weights(other, weights)
    assert torch.equal(one.value(batch), other.value(batch))


def test_memory_that_must_not_be_written_to_gives_no_warning(recwarn: pytest.WarningsRecorder) -> None:
    values = np.arange(3.0)
    values.flags.writeable = False
    assert as_tensor(values).tolist() == [0.0, 1.0, 2.0]
    assert not recwarn.list
