"""Values on their way between processes: saved states and exceptions. Pure functions, without a process."""

import os
import pickle

import numpy as np
import pytest

from entity_gym.pools.processes.pickling import ErrorReport
from entity_gym.pools.processes.slots import merge_states, split_state
from tests.entity_gym.pools.kinds_of_pools import content


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
