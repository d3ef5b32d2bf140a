"""Some of the frames of a batch."""

import numpy as np
import pytest

from entity_gym.pools.pool import ListEnv
from tests.entity_gym.pools.kinds_of_pools import play_together
from tests.worlds import Zoo, frame


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
