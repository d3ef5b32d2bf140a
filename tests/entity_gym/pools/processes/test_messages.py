"""Values on their way between processes: frames, saved states, exceptions. Pure functions, without a process."""

import functools
import os
import pickle

import numpy as np
import pytest

from entity_gym.batch.vec_obs import Metric, VecObs
from entity_gym.pools.pool import ListEnv
from entity_gym.pools.processes.pickling import ErrorReport
from entity_gym.pools.processes.slots import merge_states, split_state
from entity_gym.pools.processes.worker import pack_frames, unpack_frames
from tests.entity_gym.pools.kinds_of_pools import content, play_together
from tests.worlds import Zoo


def sent(obs: VecObs, lo: int = 0) -> VecObs:
    """The batch as it arrives at the other end."""
    (kind, *rest), arrays = pack_frames(obs)
    assert kind == "frames"
    return unpack_frames(*pickle.loads(pickle.dumps(rest)), [array.copy() for array in arrays], lo)


@pytest.mark.parametrize("max_entities", [0, 3])
def test_a_batch_is_put_together_as_it_was_with_its_environments_counted_from_the_first(max_entities: int) -> None:
    env = ListEnv(functools.partial(Zoo, max_entities=max_entities), 4, seed=5, final_observations="all")
    seen = play_together(env, 12)
    for obs in seen:
        obs.metrics["left"] = Metric(2, 0.5, 0.0, 0.5)
        assert content(sent(obs)) == content(obs)
    obs = next(obs for obs in seen if obs.final is not None and len(obs.final) < 4)
    moved = sent(obs, 10)
    assert moved.env_id.tolist() == [10, 11, 12, 13]
    assert moved.final is not None and obs.final is not None
    assert moved.final.env_id.tolist() == (obs.final.env_id + 10).tolist()
    assert moved.end_of_episode_info == {i + 10: info for i, info in obs.end_of_episode_info.items()}
    assert obs.env_id.tolist() == [0, 1, 2, 3]  # is left alone


def test_states_are_joined_and_cut_again() -> None:
    parts = [
        {"num_envs": 2, "arrays": {"x": np.array([1, 2])}, "infos": [None, {"a": 1}]},
        {"num_envs": 1, "arrays": {"x": np.array([3])}, "infos": [None]},
    ]
    whole = merge_states(parts)
    assert content(whole) == content(
        {"num_envs": 3, "arrays": {"x": np.array([1, 2, 3])}, "infos": [None, {"a": 1}, None]}
    )
    assert list(map(content, split_state(whole, [range(2), range(2, 3)]))) == list(map(content, parts))
    with pytest.raises(ValueError, match="the saved state has 3 environments; this pool has 4"):
        split_state(whole, [range(2), range(2, 4)])
    with pytest.raises(ValueError, match="the saved state is of another kind of environments"):
        split_state({"seats": []}, [range(2)])


def test_an_exception_that_would_end_a_loop_of_the_caller_becomes_an_error() -> None:
    for error, message in ((StopIteration(), "StopIteration"), (StopIteration("all gone"), "StopIteration: all gone")):
        arrived = pickle.loads(pickle.dumps(ErrorReport.of(error))).exception("worker 3")
        assert (type(arrived), str(arrived)) == (RuntimeError, message)
        assert arrived.__notes__ == ["raised in worker 3:\n" + message]


def test_an_exception_that_cannot_be_put_together_here_is_described() -> None:
    class Local(Exception):
        def __reduce__(self) -> tuple:
            return os.listdir, ("/nowhere",)

    arrived = ErrorReport.of(Local("no words")).exception("worker 0")
    assert (type(arrived), str(arrived)) == (
        RuntimeError,
        f"{test_an_exception_that_cannot_be_put_together_here_is_described.__name__}.<locals>.Local: no words",
    )
