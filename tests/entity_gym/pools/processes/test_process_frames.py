"""Batches taken apart, joined, and put together again."""

import functools
from collections.abc import Sequence

import numpy as np
import pytest

from entity_gym.batch.ragged import RaggedArray
from entity_gym.batch.vec_obs import Metric, VecObs
from entity_gym.pools.pool import ListEnv
from entity_gym.pools.processes.frames import Frames, flatten, joined, rebuilt
from tests.entity_gym.pools.kinds_of_pools import Counter, content, play_together
from tests.worlds import Zoo


def batches(**kwargs: int) -> list[VecObs]:
    return play_together(ListEnv(functools.partial(Zoo, **kwargs), 4, seed=5, final_observations="all"), 12)


def sent(frames: Frames) -> Frames:
    """What arrives at the other end."""
    return Frames.put_together(frames.without_arrays(), frames.all_arrays())


@pytest.mark.parametrize("max_entities", [0, 3])
def test_a_batch_is_put_together_as_it_was(max_entities: int) -> None:
    for obs in batches(max_entities=max_entities):
        frames = sent(flatten(obs))
        assert content(rebuilt(frames)) == content(obs)
        assert content(joined([frames])) == content(obs)
        assert (frames.num_frames, frames.env_id.tolist()) == (4, [0, 1, 2, 3])


def test_environments_are_counted_from_the_first_one_on() -> None:
    obs = next(obs for obs in batches() if obs.final is not None and len(obs.final) < 4)
    moved = rebuilt(flatten(obs, first_env=10))
    assert moved.env_id.tolist() == [10, 11, 12, 13]
    assert moved.final is not None and obs.final is not None
    assert moved.final.env_id.tolist() == (obs.final.env_id + 10).tolist()
    assert moved.end_of_episode_info == {i + 10: info for i, info in obs.end_of_episode_info.items()}


def parts_of(obs: VecObs, borders: Sequence[int]) -> list[VecObs]:
    """Slices, with the metrics that each would have."""
    parts = [obs.gather(np.arange(lo, hi)) for lo, hi in zip(borders[:-1], borders[1:], strict=True)]
    for number, part in enumerate(parts):
        part.metrics = {} if number == 1 else {"left": Metric(number + 1, 0.5, -number, number)}
    return parts


@pytest.mark.parametrize("borders", [[0, 2, 4], [0, 1, 4], [0, 1, 2, 3, 4], [0, 0, 4]])
def test_parts_are_joined_as_vec_obs_cat_joins_them(borders: list[int]) -> None:
    same_layout = 0
    for obs in batches():
        parts = parts_of(obs, borders)
        frames = [flatten(part) for part in parts]
        same_layout += all(part.layout == frames[0].layout for part in frames)
        assert content(joined(frames)) == content(VecObs.cat(parts))
    assert same_layout < 13  # some are masked or hidden in one part only; see below for those that are not


def test_parts_of_one_layout_are_joined_array_by_array() -> None:
    seen = play_together(ListEnv(Counter, 5), 8)
    for obs in seen:
        obs.arrays = {
            "obs": np.arange(10).reshape(5, 2),
            "obs:players": RaggedArray(np.arange(8).reshape(4, 2), np.array([0, 1, 1, 3, 3, 4])),
        }
        parts = [obs.gather(np.array(rows)) for rows in ([0, 1], [2], [3, 4])]
        frames = [flatten(part) for part in parts]
        assert len({part.layout for part in frames}) == 1
        together = joined(frames)
        assert content(together) == content(VecObs.cat(parts)) == content(obs)
        together.reward[:] = 7  # nothing is shared with the parts
        assert not any((part.reward == 7).any() for part in parts)
