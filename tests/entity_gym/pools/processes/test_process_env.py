"""Worker processes: the same trajectories, faults that are reported, and nothing left behind."""

import dataclasses
import functools
import re
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from entity_gym import ActionSpace, CategoricalActionSpace
from entity_gym.bridges.gymnasium.incoming import gymnasium_worlds
from entity_gym.envs.minesweeper import MineSweeper
from entity_gym.pools.pool import ThreadedVecEnv
from entity_gym.pools.processes import worker
from examples.walks import Walks
from tests.entity_gym.pools.fragile import BrokenWorldError, Fragile, NeverMade, do, steps
from tests.entity_gym.pools.kinds_of_pools import Counter, add, contents, play_together
from tests.entity_gym.pools.processes.left_behind import little_garbage as little_garbage
from tests.entity_gym.pools.processes.left_behind import nothing_is_left_behind as nothing_is_left_behind
from tests.entity_gym.pools.processes.left_behind import pool as pool
from tests.entity_gym.pools.processes.left_behind import shared_pool as shared_pool
from tests.entity_gym.pools.processes.thread_workers import threads as threads
from tests.worlds import Zoo

in_threads = pytest.mark.usefixtures("threads")  # where an interpreter of its own makes no difference

big_zoo = functools.partial(Zoo, 8)


# --- The same, whoever does the work


def test_observations_may_grow_by_orders_of_magnitude(pool: ThreadedVecEnv) -> None:
    for size in (30, 900, 27_000):
        obs = pool.act(do("grow", "live", "live", "live"))
        assert obs.features["It"].size1().tolist() == [size, 1, 1, 1]
    assert steps(pool.act(do(*["live"] * 4))) == [4] * 4


def test_what_is_no_array_comes_along(pool: ThreadedVecEnv) -> None:
    pool.act(do(*["live"] * 4))
    obs = pool.act(do("end", "live", "metric", "live"))
    assert obs.end_of_episode_info.keys() == {0}
    assert obs.end_of_episode_info[0]["path"].tolist() == [0, 1]
    assert obs.end_of_episode_info[0]["of"] is Fragile
    assert (obs.metrics["tenths"].count, obs.metrics["tenths"].sum) == (1, 0.2)
    assert obs.final is not None and obs.final.env_id.tolist() == [0]


FACTORIES = {
    "a Python world's class": Zoo,
    "a function": big_zoo,
    "a compiled world's class": MineSweeper,
    "a compiled world with parameters": MineSweeper(max_steps=6),
    "a world over arrays": Walks,
    "Gymnasium's": gymnasium_worlds("CartPole-v1"),
}


@in_threads
@pytest.mark.parametrize("factory", FACTORIES)
def test_every_factory_that_threads_take_is_taken(factory: str) -> None:
    env: Any = FACTORIES[factory]
    options = {"seed": 3, "final_observations": "all", "compile": False}
    with ThreadedVecEnv(env, 3, **options) as pool:
        expected = contents(play_together(pool, 8))
    with ThreadedVecEnv(env, 3, num_processes=2, **options) as pool:
        assert contents(play_together(pool, 8)) == expected


# --- Environments that raise


def test_an_exception_arrives_as_it_was_with_the_environment_and_the_workers_traceback(pool: ThreadedVecEnv) -> None:
    with pytest.raises(BrokenWorldError) as info:
        pool.act(do("live", "live", "live", "raise"))
    assert (info.value.args, info.value.code) == (("the sky fell", 7), 7)
    assert info.value.__notes__[0] == "raised by Fragile (environment 3) in act()"
    assert re.match(r"raised in worker 1 \(environments 2 to 3, process \d+\):", info.value.__notes__[1])
    assert 'fragile.py", line' in info.value.__notes__[1]
    with pytest.raises(
        ValueError, match=r"what Fragile \(environment 0\) showed last was lost to an error; call reset"
    ):
        pool.act(do(*["live"] * 4))
    assert steps(pool.reset()) == [0] * 4
    assert steps(pool.act(do(*["live"] * 4))) == [1] * 4


def test_an_exception_that_cannot_travel_is_described(pool: ThreadedVecEnv) -> None:
    with pytest.raises(RuntimeError, match="OddError: no words for it") as info:
        pool.act(do("live", "raise odd", "live", "live"))
    assert info.value.__notes__[0] == "raised by Fragile (environment 1) in act()"


def test_a_value_that_cannot_travel_is_described(pool: ThreadedVecEnv) -> None:
    with pytest.raises(TypeError, match="cannot pickle '_thread.lock' object") as info:
        pool.act(do("strange info"), [1])
    assert info.value.__notes__[0] == "raised while sending the reports of environments [1] to the main process"
    assert steps(pool.reset()) == [0] * 4


@in_threads
def test_a_start_that_fails_is_reported_and_no_hang() -> None:
    with pytest.raises(BrokenWorldError, match="no room") as info:
        ThreadedVecEnv(NeverMade, 2, num_processes=2)
    assert "in __init__" in info.value.__notes__[-1]
    with pytest.raises(ValueError, match="create_env returned dict; it must return an entity_gym.Environment"):
        ThreadedVecEnv(dict, 2, num_processes=1)


class Other(Counter):
    """Every object has other actions; two workers that are threads of one process make two of them."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        Other.made += 1
        self.number = Other.made

    def action_space(self) -> Mapping[str, ActionSpace]:
        return {"add": CategoricalActionSpace([str(k) for k in range(self.number)])}


@in_threads
def test_workers_whose_environments_differ_in_their_spaces_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"Other \(environment 1\): action_space\(\) returned .* in worker 1, and that of"
    ):
        ThreadedVecEnv(Other, 2, num_processes=2)


class Unreadable(Fragile):
    """Reports something that can be pickled, and not be put together again."""

    def act(self, actions: Mapping[str, Any]) -> Any:
        return dataclasses.replace(super().act(actions), done=True, end_of_episode_info={"number": NoNumber()})


class NoNumber:
    def __reduce__(self) -> tuple:
        return int, ("no number",)


@in_threads
def test_an_answer_that_cannot_be_put_together_leaves_the_conversation_intact() -> None:
    with ThreadedVecEnv(Unreadable, 2, num_processes=1) as env:
        env.reset()
        with pytest.raises(ValueError, match="invalid literal for int.*'no number'") as info:
            env.act(do("live", "live"))
        assert re.match("raised while reading an answer of worker 0", info.value.__notes__[0])
        assert steps(env.reset()) == [0, 0]


def test_what_cannot_be_sent_is_named() -> None:
    with pytest.raises(ValueError, match="Zoo.* cannot be sent to a worker process: cannot pickle '_thread.lock'"):
        ThreadedVecEnv(functools.partial(Zoo, threading.Lock()), 2, num_processes=1)


# --- Ctrl-C


def interrupted(*arguments: Any) -> Any:
    raise KeyboardInterrupt


def test_ctrl_c_before_an_answer_leaves_a_pool_that_can_be_reset(
    pool: ThreadedVecEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in pool.slots._workers:
        with monkeypatch.context() as patched:
            patched.setattr(each, "_has_answered", interrupted)
            with pytest.raises(KeyboardInterrupt):
                pool.act(do(*["live"] * 4))
        assert steps(pool.reset()) == [0] * 4
        assert steps(pool.act(do(*["live"] * 4))) == [1] * 4


@in_threads
def test_ctrl_c_in_the_middle_of_an_answer_ends_the_pool_with_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadedVecEnv(Counter, 2, num_processes=2) as env:
        env.reset()
        with monkeypatch.context() as patched:
            here, receive = threading.current_thread(), worker.receive
            patched.setattr(
                worker, "receive", lambda end: (interrupted if threading.current_thread() is here else receive)(end)
            )
            with pytest.raises(KeyboardInterrupt):
                env.act(add(1, 1))
        with pytest.raises(RuntimeError, match="interrupted in the middle of a message: close it and make a new one"):
            env.reset()


@in_threads
def test_functions_without_a_name_travel_by_value() -> None:
    size = 7
    with ThreadedVecEnv(lambda: Zoo(size), 2, 1, num_processes=1, seed=1) as env:
        assert contents([env.reset()]) == contents([ThreadedVecEnv(lambda: Zoo(7), 2, seed=1).reset()])
