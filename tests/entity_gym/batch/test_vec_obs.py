"""Batches are joined, and cut into some of their frames."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from entity_gym.actions.choices import random_actions
from entity_gym.batch.vec_obs import VecObs
from entity_gym.pools.pool import ListEnv
from tests.entity_gym.pools.kinds_of_pools import content, play_together
from tests.worlds import Zoo, frame, frames


def renumbered(obs: VecObs, first_env: int) -> VecObs:
    """`obs` as the part of a pool that begins with this environment."""
    infos = {i + first_env: info for i, info in obs.end_of_episode_info.items()}
    final = None if obs.final is None else renumbered(obs.final, first_env)
    return replace(obs, env_id=obs.env_id + first_env, end_of_episode_info=infos, final=final)


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32), sizes=st.lists(st.integers(1, 3), min_size=1, max_size=4))
def test_pools_one_after_another_are_one_large_pool(seed: int, sizes: list[int]) -> None:
    starts = np.cumsum([0, *sizes]).tolist()
    whole = ListEnv(Zoo, starts[-1], seed=seed, final_observations="all")
    pools = [
        ListEnv(Zoo, size, seed=seed, first_env=first, final_observations="all")
        for first, size in zip(starts, sizes, strict=False)
    ]
    rng = np.random.default_rng(seed)
    obs, parts = whole.reset(), [pool.reset() for pool in pools]
    for _ in range(5):
        actions = random_actions(obs, rng, whole.action_space())
        obs = whole.act(actions)
        parts = [
            pool.act({name: buffer[first : first + len(pool)] for name, buffer in actions.items()})
            for pool, first in zip(pools, starts, strict=False)
        ]
        joined = VecObs.cat([renumbered(part, first) for part, first in zip(parts, starts, strict=False)])
        assert frames(joined) == frames(obs)
        assert (joined.metrics, joined.end_of_episode_info) == (obs.metrics, obs.end_of_episode_info)
        assert joined.elapsed_step.tolist() == obs.elapsed_step.tolist()
        assert joined.env_id.tolist() == obs.env_id.tolist()
        assert (joined.final is None) == (obs.final is None)
        if joined.final is not None and obs.final is not None:
            assert frames(joined.final) == frames(obs.final)
            assert joined.final.env_id.tolist() == obs.final.env_id.tolist()


def test_one_part_is_itself_and_no_part_is_a_mistake() -> None:
    obs = ListEnv(Zoo, 2).reset()
    assert content(VecObs.cat([obs])) == content(obs)
    with pytest.raises(ValueError, match="VecObs.cat was given no parts"):
        VecObs.cat([])


@pytest.mark.parametrize("rows", [[0, 1, 2, 3, 4], [3], [4, 0, 2], []])
def test_frames_are_taken_with_everything_that_belongs_to_them(rows: list[int]) -> None:
    for obs in play_together(ListEnv(Zoo, 5, seed=2, final_observations="all"), 10):
        taken = obs.gather(np.array(rows, np.int64))
        assert [frame(taken, k) for k in range(len(rows))] == [frame(obs, i) for i in rows]
        assert taken.env_id.tolist() == rows
        assert taken.elapsed_step.tolist() == obs.elapsed_step[rows].tolist()
        ended = [i for i in rows if obs.done[i]]
        assert (taken.final is None) == (not ended)
        if taken.final is not None and obs.final is not None:
            assert taken.final.env_id.tolist() == ended
            row_of = obs.final.env_id.tolist().index
            assert [frame(taken.final, k) for k in range(len(ended))] == [frame(obs.final, row_of(i)) for i in ended]
        assert not any(buffer.values.all() for buffer in taken.visible.values())


def test_metrics_are_of_all_frames_or_left_out() -> None:
    obs = play_together(ListEnv(Zoo, 3, seed=2), 1)[-1]
    assert obs.gather(np.array([2, 0, 1])).metrics == obs.metrics != {}
    assert obs.gather(np.array([2, 0])).metrics == {}
