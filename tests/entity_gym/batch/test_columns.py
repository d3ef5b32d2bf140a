"""A batch as a tree of columns: what is cut, joined or sent comes back the same."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from entity_gym import Entity, Observation, ObsSpace
from entity_gym.batch import columns
from entity_gym.batch.batching import batch_frames
from entity_gym.batch.frame import EntityNumbers, FrameReader
from entity_gym.batch.ragged import RaggedBuffer
from entity_gym.batch.vec_obs import PLAYER_REWARD, VecObs
from entity_gym.pools.pool import ListEnv
from tests.entity_gym.pools.kinds_of_pools import content
from tests.worlds import Zoo


def zoo(num_envs: int, seed: int) -> VecObs:
    pool = ListEnv(Zoo, num_envs, seed=seed, final_observations="all")
    obs = pool.reset()
    obs.arrays["obs"] = np.arange(2 * num_envs).reshape(num_envs, 2)
    obs.arrays[PLAYER_REWARD] = RaggedBuffer(np.arange(num_envs, dtype=np.float32), np.arange(num_envs + 1))
    return obs


@given(seed=st.integers(0, 2**32), sizes=st.lists(st.integers(0, 3), min_size=1, max_size=4))
def test_what_is_split_and_joined_again_is_what_it_was(seed: int, sizes: list[int]) -> None:
    sizes = [*sizes, 1]
    tree = zoo(sum(sizes), seed).columns()
    joined: Any = columns.cat(
        [columns.part(tree, end - size, end) for size, end in zip(sizes, np.cumsum(sizes), strict=True)]
    )
    assert content(VecObs.from_columns(joined)) == content(VecObs.from_columns(tree))


def test_trees_with_different_columns_cannot_be_joined() -> None:
    with pytest.raises(ValueError, match=r"different columns: \[\['a'\], \['a', 'b'\]\]"):
        columns.cat([{"a": np.zeros(1)}, {"a": np.zeros(1), "b": np.zeros(1)}])


def test_entities_keep_their_number_for_the_whole_episode() -> None:
    reader = FrameReader(ObsSpace({"Cat": Entity(["x"]), "Wall": Entity([]), "Dog": Entity([])}), {})
    numbers = EntityNumbers()

    def shown(cats: list[str], dogs: list[str]) -> VecObs:
        features = {"Cat": np.zeros((len(cats), 1)), "Wall": np.zeros((1, 0)), "Dog": np.zeros((len(dogs), 0))}
        obs = Observation(features=features, ids={"Cat": cats, "Dog": dogs})
        frame = reader.read(obs, 0, numbers=numbers)
        return batch_frames([frame], [obs], np.zeros(1, np.int64), np.zeros(1, np.int64), reader)

    first, second = shown(["tom", "kit"], ["rex"]), shown(["kit", "new"], ["rex"])
    assert {name: ids.to_list() for name, ids in first.ids.items()} == {
        "Cat": [[[0], [1]]],
        "Dog": [[[2]]],
    }
    assert {name: ids.to_list() for name, ids in second.ids.items()} == {
        "Cat": [[[1], [3]]],
        "Dog": [[[2]]],
    }
    nobody = shown([], [])
    nobody.ids, nobody.features = {}, {**nobody.features, "Cat": RaggedBuffer.from_array([[[1.0]]])}
    assert VecObs.cat([nobody, first]).ids["Cat"].to_list() == [[[-1]], [[0], [1]]]
    both = VecObs.cat([first, second])
    assert both.gather(np.array([1])).ids["Cat"].to_list() == [[[1], [3]]]
