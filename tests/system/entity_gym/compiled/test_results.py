"""Results and actions: the one belong to the caller for ever, the others may come in any memory."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch

from entity_gym.batch.ragged import RaggedBuffer
from entity_gym.compiled.slots import CompiledSlots
from entity_gym.pools.pool import ThreadedVecEnv
from tests.entity_gym.compiled.comparing import (
    Playing,
    actions_in,
    play_pool,
)
from tests.entity_gym.compiled.worlds import Everything
from tests.entity_gym.pools.kinds_of_pools import Streams, content


def memory(value: Any) -> Iterator[np.ndarray]:
    """Yield the arrays of a `VecObs`."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, RaggedBuffer):
        yield value.values
        yield value.offsets
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from memory(item)
    elif isinstance(value, tuple):
        for item in value:
            yield from memory(item)
    elif hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            yield from memory(getattr(value, name))


@pytest.mark.parametrize("period", [1, 3])
def test_parts_that_outlive_their_result_are_not_written_to_either(period: int) -> None:
    """Memory that is dropped is used again; a tensor, a slice or an offset array that somebody keeps is not."""
    kept: list[tuple[Any, bytes]] = []
    with ThreadedVecEnv(Everything, 6, final_observations="all") as pool:
        streams, obs = Streams(pool), pool.reset()
        for step in range(60):
            if step % period == 0:
                arrays = [array for array in memory(obs) if array.size]
                array = arrays[step // period % len(arrays)]
                kept.append((torch.from_numpy(array), array.tobytes()))
                kept.append((array[-1:], array[-1:].tobytes()))
                kept.append((memoryview(array), array.tobytes()))
                del arrays, array
            obs = pool.act(streams.actions(obs))
    for part, expected in kept:
        assert (part.numpy() if isinstance(part, torch.Tensor) else np.asarray(part)).tobytes() == expected


def test_writing_to_a_result_changes_nothing_for_the_environments() -> None:
    expected = play_pool(Everything, steps=20)
    with ThreadedVecEnv(Everything, 6) as pool:
        streams, obs = Streams(pool), pool.reset()
        for step in range(20):
            assert content(obs) == content(expected[step])
            actions = streams.actions(obs)
            for array in memory(obs):
                array.fill(1)
            obs = pool.act(actions)


def test_actions_may_come_in_memory_that_cannot_be_written_to() -> None:
    with ThreadedVecEnv(Everything, 3) as pool, ThreadedVecEnv(Everything, 3) as other:
        streams, obs = Streams(pool), pool.reset()
        other.reset()
        for _ in range(5):
            actions = streams.actions(obs)
            frozen = {name: RaggedBuffer(*read_only(buffer)) for name, buffer in actions.items()}
            obs = pool.act(actions)
            assert content(other.act(frozen)) == content(obs)


def read_only(buffer: RaggedBuffer[np.int64]) -> tuple[np.ndarray, np.ndarray]:
    """Values as they arrive from a file or another process, and every second number of other offsets."""
    values = np.frombuffer(buffer.values.tobytes(), np.int64).reshape(-1, 1)
    offsets = np.repeat(buffer.offsets, 2)[::2]
    offsets.flags.writeable = False
    return values, offsets


def test_a_refusal_does_not_disturb_actions_that_were_accepted_before() -> None:
    one, two = (Playing(CompiledSlots(Everything, 2)) for _ in range(2))
    actions = actions_in(one.obs, [0, 1], one.rngs, one.slots.action_space)
    wrong = {name: RaggedBuffer(buffer.values + 50, buffer.offsets) for name, buffer in actions.items()}
    one.slots.check(actions, one.ids)
    one.slots.step(actions, one.ids, 0, 2)
    two.slots.check(actions, two.ids)
    with pytest.raises(ValueError, match="expected"):
        two.slots.check(wrong, two.ids)
    two.slots.step(actions, two.ids, 0, 2)
    assert content(two.show(two.ids)) == content(one.show(one.ids))
