"""Worker threads: the same trajectories, errors that arrive, and nothing left behind."""

import gc
import os
import threading
import weakref
from collections.abc import Iterator, Mapping

import pytest

from entity_gym import Action, Observation
from entity_gym.pools import workers
from entity_gym.pools.pool import ThreadedVecEnv
from tests.entity_gym.pools.kinds_of_pools import (
    Counter,
    add,
    pool_threads,
    totals,
)
from tests.worlds import making


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    assert pool_threads() == []
    yield
    assert pool_threads() == []


# --- The same, whoever does the work


class Handshake(Counter):
    """A step ends only when another environment takes one at the same time, as only threads that release the GIL can."""

    meeting = threading.Barrier(2)

    def act(self, actions: Mapping[str, Action]) -> Observation:
        self.meeting.wait(timeout=20)
        return super().act(actions)


def test_environments_that_release_the_gil_are_stepped_at_the_same_time() -> None:
    with ThreadedVecEnv(Handshake, 2, 2) as env:
        env.reset()
        assert totals(env.act(add(1, 2))) == [1, 2]
        env.send(add(1, 1))
        assert totals(env.recv()) == [2, 3]


def test_each_thread_owns_a_slice_and_the_caller_has_the_first() -> None:
    envs = [Counter() for _ in range(5)]
    with ThreadedVecEnv(making(*envs), 5, 2) as env:
        env.reset()
        env.act(add(0, 0, 0, 0, 0))
        assert [sorted(each.threads) for each in envs] == [["MainThread"]] * 2 + [["environments-1"]] * 3


@pytest.mark.parametrize("num_threads", [1, 2])
def test_an_interrupt_is_handed_on_and_the_pool_goes_on(num_threads: int) -> None:
    class Interrupted(Counter):
        def act(self, actions: Mapping[str, Action]) -> Observation:
            if actions["add"].actions[0] == 2:
                raise KeyboardInterrupt
            return super().act(actions)

    with ThreadedVecEnv(Interrupted, 2, num_threads) as env:
        env.reset()
        for amounts in ((2, 1), (1, 2)):
            with pytest.raises(KeyboardInterrupt):
                env.act(add(*amounts))
            env.reset()
        assert totals(env.act(add(1, 0))) == [1, 0]


# --- Nothing is left behind


@pytest.mark.parametrize("under_way", [False, True])
def test_a_pool_that_nobody_holds_any_more_ends_its_threads(under_way: bool) -> None:
    env = ThreadedVecEnv(Counter, 3, 3)
    env.reset()
    if under_way:
        env.send(add(1, 1, 1))
    slots = weakref.ref(env.slots)
    del env
    gc.collect()
    assert pool_threads() == []
    assert slots() is None


class Stuck(Counter):
    """Takes a step that ends when it is told."""

    def __init__(self, go: threading.Event) -> None:
        super().__init__()
        self.begun = threading.Event()
        self.go = go

    def act(self, actions: Mapping[str, Action]) -> Observation:
        self.begun.set()
        self.go.wait()
        return super().act(actions)


def test_closing_does_not_wait_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "PATIENCE", 0.05)
    go = threading.Event()
    envs = [Stuck(go), Stuck(go)]
    env = ThreadedVecEnv(making(*envs), 2, 2)
    env.reset()
    env.send(add(1, 1))
    for each in envs:
        each.begun.wait()
    with pytest.warns(RuntimeWarning, match="environments are still taking a step after"):
        env.close()
    assert [each.closed for each in envs] == [0, 0]  # closing what is in use would be worse
    go.set()
    for thread in pool_threads():
        thread.join()
    env.close()
    assert [each.closed for each in envs] == [1, 1]


def test_a_pool_does_not_survive_a_fork_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadedVecEnv(Counter, 2, 2) as env:
        env.reset()
        with monkeypatch.context() as child:
            child.setattr(os, "getpid", lambda: -1)
            with pytest.raises(ValueError, match="made in another process"):
                env.act(add(1, 1))
