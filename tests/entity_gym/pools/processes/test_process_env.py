"""Worker processes: the same trajectories, faults that are reported, and nothing left behind."""

import copy
import dataclasses
import functools
import gc
import os
import pickle
import re
import signal
import subprocess
import sys
import textwrap
import time
import types
from collections.abc import Iterator, Mapping, Sequence
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from entity_gym import ActionSpace, CategoricalActionSpace, Entity, ObsSpace
from entity_gym.batch.ragged import RaggedBufferI64
from entity_gym.batch.vec_obs import Metric, VecObs
from entity_gym.bridges.gymnasium.incoming import gymnasium_worlds
from entity_gym.envs.minesweeper import MineSweeper
from entity_gym.pools.batch_env import BatchActors, BatchEnvironment, BatchObservation, BatchRandom, BatchStep
from entity_gym.pools.pool import ListEnv, ThreadedVecEnv
from entity_gym.pools.processes import env as process_env
from entity_gym.pools.processes import handle as process_handle
from entity_gym.pools.processes import pickling as process_pickling
from entity_gym.pools.processes.env import ProcessVecEnv
from entity_gym.pools.processes.handle import WorkerDied
from tests.entity_gym.envs.minesweeper_python import PythonMineSweeper
from tests.entity_gym.pools.fragile import BrokenWorldError, Fragile, NeverMade, do, luck, processes, steps
from tests.entity_gym.pools.kinds_of_pools import Counter, Streams, add, content, contents, play_together, totals
from tests.entity_gym.pools.processes.thread_workers import threads as threads
from tests.worlds import Zoo, frame

in_threads = pytest.mark.usefixtures("threads")  # where an interpreter of its own makes no difference

big_zoo = functools.partial(Zoo, 8)


def children() -> set[int]:
    """Processes that this one has started, dead ones that nobody waited for included."""
    return {int(child) for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def shared_memory(process: int | str = "self") -> list[str]:
    """What is mapped under a name that tells of shared memory."""
    mapped = [line.split(maxsplit=5)[-1] for line in Path(f"/proc/{process}/maps").read_text().splitlines()]
    return [name for name in mapped if "entity_gym (" in name or name.startswith("/dev/shm")]


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture(autouse=True, scope="module")
def little_garbage() -> Iterator[None]:
    """Collecting garbage after every test is quick where it need not look at the modules."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    before = children(), shared_memory(), descriptors()
    yield
    gc.collect()
    assert (children(), shared_memory(), descriptors()) == before


@pytest.fixture(scope="module")
def shared_pool() -> Iterator[ProcessVecEnv]:
    with ProcessVecEnv(Fragile, 4, 2, batch_size=1) as env:
        yield env


@pytest.fixture
def pool(shared_pool: ProcessVecEnv) -> ProcessVecEnv:
    """Four fragile environments in two processes, just reset. Not for tests in which a worker dies."""
    shared_pool.reset(seed=0, env_info={"size": [1] * 4})
    return shared_pool


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that are stuck are not waited for."""
    monkeypatch.setattr(process_handle, "CLOSE_GRACE", 0.1)


# --- The same, whoever does the work


@in_threads
@pytest.mark.parametrize(("create_env", "num_processes"), [(big_zoo, 1), (big_zoo, 3), (PythonMineSweeper, 2)])
def test_trajectories_do_not_depend_on_the_number_of_processes(create_env: object, num_processes: int) -> None:
    expected = contents(play_together(ListEnv(create_env, 7, seed=3, final_observations="all"), 15))
    with ProcessVecEnv(create_env, 7, num_processes, seed=3, final_observations="all") as env:
        assert contents(play_together(env, 15)) == expected
        assert contents(play_together(env, 15)) != expected  # random numbers go on
        streams = Streams(env)
        seen = [env.reset(seed=3)]
        for _ in range(15):  # in order, without waiting
            env.send(streams.actions(seen[-1]))
            seen.append(env.recv())
        assert contents(seen) == expected


def trajectories(env: object, num_steps: int) -> list[list[dict]]:
    """What each environment shows, however it comes in."""
    streams = Streams(env)
    seen: list[list[dict]] = [[] for _ in range(len(env))]
    env.async_reset()
    while min(map(len, seen)) <= num_steps:
        obs = env.recv()
        assert len(obs) == env.batch_size
        assert obs.env_id.tolist() == sorted(obs.env_id.tolist())
        for k, i in enumerate(obs.env_id):
            seen[i].append({**frame(obs, k), "elapsed_step": int(obs.elapsed_step[k])})
        env.send(streams.actions(obs), obs.env_id)
    return [frames[: num_steps + 1] for frames in seen]


@in_threads
@pytest.mark.parametrize(("num_processes", "batch_size"), [(2, 1), (3, 4)])
def test_asynchronously_every_environment_goes_its_way(num_processes: int, batch_size: int) -> None:
    expected = trajectories(ListEnv(Zoo, 5, seed=4), 12)
    with ProcessVecEnv(Zoo, 5, num_processes, batch_size, seed=4) as env:
        assert trajectories(env, 12) == expected


@in_threads
def test_some_of_the_environments_are_stepped_in_the_order_asked_for() -> None:
    serial = ListEnv(Zoo, 6, seed=1, final_observations="all")
    with ProcessVecEnv(Zoo, 6, 2, seed=1, final_observations="all") as env:
        obs, expected = env.reset(), serial.reset()
        streams, same = Streams(env), Streams(serial)
        for ids in ([4, 1, 0, 5], [2], [5, 4, 3, 2, 1, 0], [], [3, 2]) * 4:
            rows = {int(i): k for k, i in enumerate(obs.env_id)}
            if not set(ids) <= rows.keys():
                obs, expected = env.reset(), serial.reset()
                rows = {int(i): k for k, i in enumerate(obs.env_id)}
            actions = {name: buffer[[rows[i] for i in ids]] for name, buffer in streams.actions(obs).items()}
            same.actions(expected)
            obs, expected = env.act(actions, ids), serial.act(actions, ids)
            assert obs.env_id.tolist() == ids
            assert content(obs) == content(expected)
            if len(ids) < 6:
                obs, expected = env.reset(), serial.reset()


@in_threads
def test_compiled_environments_play_the_same_in_processes() -> None:
    description = MineSweeper(orbital_cannon=True, max_steps=6)
    kwargs = {"seed": 3, "final_observations": "all", "compile": False}
    with ThreadedVecEnv(description, 5, 1, **kwargs) as env:
        expected = contents(play_together(env, 15))
        state = env.state()
        expected_later = content(env.load_state(state))
    with ProcessVecEnv(description, 5, 2, **kwargs) as env:
        assert contents(play_together(env, 15)) == expected
        assert content(env.load_state(state)) == expected_later
        assert content(env.state()) == content(state)


def test_two_seeds_differ(pool: ProcessVecEnv) -> None:
    first, again, other = pool.reset(seed=1), pool.reset(seed=1), pool.reset(seed=2)
    assert luck(first) == luck(again)
    assert set(luck(first)).isdisjoint(luck(other))
    assert len(set(processes(first))) == 2  # and they are in different processes indeed
    assert os.getpid() not in processes(first)


@in_threads
def test_a_part_of_a_larger_pool_plays_the_same() -> None:
    whole = ListEnv(Zoo, 5, seed=1).reset()
    with ProcessVecEnv(Zoo, 3, 2, seed=1, first_env=2) as env:
        part = env.reset()
    assert [frame(part, i)["features"] for i in range(3)] == [frame(whole, i)["features"] for i in range(2, 5)]
    assert part.env_id.tolist() == [0, 1, 2]


@in_threads
def test_no_array_that_was_returned_is_written_to_again() -> None:
    with ProcessVecEnv(Zoo, 4, 2, seed=1, final_observations="all") as env:
        seen = play_together(env, 6)
        before = copy.deepcopy(contents(seen))
        play_together(env, 6)
        assert contents(seen) == before
    assert contents(seen) == before  # and it outlives the pool
    seen[0].reward[:] = 1  # they are writable


def test_observations_may_grow_by_orders_of_magnitude(pool: ProcessVecEnv) -> None:
    for size in (30, 900, 27_000):
        obs = pool.act(do("grow", "live", "live", "live"))
        assert obs.features["It"].size1().tolist() == [size, 1, 1, 1]
    assert steps(pool.act(do(*["live"] * 4))) == [4] * 4


def test_what_is_no_array_comes_along(pool: ProcessVecEnv) -> None:
    pool.act(do(*["live"] * 4))
    obs = pool.act(do("end", "live", "metric", "live"))
    assert obs.end_of_episode_info.keys() == {0}
    assert obs.end_of_episode_info[0]["path"].tolist() == [0, 1]
    assert obs.end_of_episode_info[0]["of"] is Fragile
    assert (obs.metrics["tenths"].count, obs.metrics["tenths"].sum) == (1, 0.2)
    assert obs.final is not None and obs.final.env_id.tolist() == [0]


# --- Saving, parameters, drawing


@in_threads
def test_a_saved_pool_goes_on_exactly_with_any_number_of_processes_and_with_none() -> None:
    def go_on(env: object, obs: VecObs) -> list:
        streams = Streams(env, seed=2)
        seen = [obs]
        for _ in range(8):
            seen.append(env.act(streams.actions(seen[-1])))
        return contents(seen)

    with ProcessVecEnv(Zoo, 5, 2, seed=1) as env, ProcessVecEnv(Zoo, 5, 3, seed=8) as other:
        play_together(env, 5)
        state = pickle.loads(pickle.dumps(env.state()))
        assert env.can_save
        with env.clone() as twin:
            expected = go_on(env, env.load_state(state))
            assert go_on(twin, twin.load_state(twin.state())) == expected
        assert go_on(other, other.load_state(state)) == expected
        serial = ListEnv(Zoo, 5, seed=9)
        assert go_on(serial, serial.load_state(state)) == expected
        with pytest.raises(ValueError, match="the saved state has 5 environments; this pool has 4"):
            ListEnv(Zoo, 4).load_state(state)


@in_threads
def test_a_pool_saved_with_steps_under_way_has_taken_them() -> None:
    with ProcessVecEnv(Counter, 4, 2, batch_size=2) as env:
        env.reset()
        env.send(add(1, 2, 0, 1))
        state = env.state()
        with env.clone() as twin:
            for each in (env, twin):  # both still have them under way
                received = [each.recv(), each.recv()]
                assert sorted(i for obs in received for i in obs.env_id.tolist()) == [0, 1, 2, 3]
                assert totals(each.act(add(1, 1, 1, 1))) == [2, 3, 1, 2]
        assert totals(env.load_state(state)) == [1, 2, 0, 1]


@in_threads
def test_what_cannot_be_saved_says_so() -> None:
    with ProcessVecEnv(Fragile, 2, 2) as env:
        assert not env.can_save
        with pytest.raises(ValueError, match="state was called before reset"):
            env.state()
        env.reset()
        with pytest.raises(NotImplementedError, match=r"Fragile does not implement state\(\)"):
            env.state()
        with pytest.raises(ValueError, match="a copy needs environments that can be saved; Fragile does not"):
            env.clone()
        assert steps(env.act(do("live", "live"))) == [1, 1]


class Reporter(BatchEnvironment):
    """Vectorised by hand. Reports a number at the end of an episode, and with every step a metric that few ever have."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.number = np.zeros(num_envs, np.int64)
        self.rare = np.full(num_envs, np.nan)

    def obs_space(self) -> ObsSpace:
        return ObsSpace({"It": Entity(["number"])})

    def action_space(self) -> Mapping[str, ActionSpace]:
        return {"end": CategoricalActionSpace(["no", "yes"])}

    def configure(self, ids: np.ndarray, env_info: Sequence[Mapping[str, Any]]) -> None:
        self.number[ids] = [info["number"] for info in env_info]
        self.rare[ids] = [info["rare"] for info in env_info]

    def reset(self, ids: np.ndarray, rng: BatchRandom) -> None:
        pass

    def step(self, ids: np.ndarray, actions: Mapping[str, RaggedBufferI64], rng: BatchRandom) -> BatchStep:
        ended = actions["end"].values[:, 0] == 1
        metrics = {"number": self.number[ids]}
        if not np.isnan(self.rare[ids]).all():
            metrics["rare"] = self.rare[ids]
        return BatchStep(np.ones(len(ids)), ended, np.zeros(len(ids), np.bool_), {"number": self.number[ids]}, metrics)

    def observe(self, ids: np.ndarray) -> BatchObservation:
        return BatchObservation(
            features={"It": self.number[ids][:, None, None]}, actions={"end": BatchActors(actors="It")}
        )

    def arrays(self) -> Mapping[str, np.ndarray]:
        return {"number": self.number, "rare": self.rare}


@in_threads
@pytest.mark.parametrize("rare", [[7, nan, nan, nan], [nan, nan, 7, nan]], ids=["first worker", "second worker"])
def test_reports_of_vectorised_worlds_are_saved_with_their_environments(rare: list[float]) -> None:
    with ProcessVecEnv(Reporter, 4, 2) as env, ProcessVecEnv(Reporter, 4, 3) as other:
        env.reset(env_info={"number": [10, 20, 30, 40], "rare": rare})
        obs = env.act({"end": RaggedBufferI64.from_array(np.array([0, 1, 0, 1]).reshape(4, 1, 1))})
        assert obs.end_of_episode_info == {1: {"number": 20}, 3: {"number": 40}}
        assert obs.metrics == {"number": Metric(4, 100.0, 10.0, 40.0), "rare": Metric(1, 7.0, 7.0, 7.0)}
        state = pickle.loads(pickle.dumps(env.state()))
        for pool in (env, other, ThreadedVecEnv(Reporter, 4)):
            assert content(pool.load_state(state)) == content(obs)
            assert content(pool.state()) == content(state)


FACTORIES = {
    "a Python world's class": Zoo,
    "a function": big_zoo,
    "a compiled world's class": MineSweeper,
    "a compiled world with parameters": MineSweeper(max_steps=6),
    "a world that is vectorised by hand": Reporter,
    "Gymnasium's": gymnasium_worlds("CartPole-v1"),
}


@in_threads
@pytest.mark.parametrize("factory", FACTORIES)
def test_every_factory_that_threads_take_is_taken(factory: str) -> None:
    env: Any = FACTORIES[factory]
    options = {"seed": 3, "final_observations": "all", "compile": False}
    with ThreadedVecEnv(env, 3, **options) as pool:
        expected = contents(play_together(pool, 8))
    with ProcessVecEnv(env, 3, 2, **options) as pool:
        assert contents(play_together(pool, 8)) == expected


def test_episodes_can_differ_in_their_parameters(pool: ProcessVecEnv) -> None:
    sizes = [{"size": 2}, {}, {"size": 3}, {}]
    assert pool.reset(env_info=sizes).features["It"].size1().tolist() == [2, 1, 3, 1]
    assert pool.reset(env_info={"size": [1, 2, 1, 1]}).features["It"].size1().tolist() == [1, 2, 1, 1]
    with pytest.raises(ValueError, match="unknown parameters") as info:
        pool.reset(env_info=[{}, {}, {"colour": "red"}, {}])
    assert info.value.__notes__[0] == "raised by Fragile (environment 2) in configure()"
    with pytest.raises(ValueError, match="env_info has 1 entries for 4 environments"):
        pool.reset(env_info=[{}])
    assert pool.reset().features["It"].size1().tolist() == [1, 2, 1, 1]


def test_some_environments_are_drawn(pool: ProcessVecEnv) -> None:
    pool.act(do("live"), [2])
    images = pool.render([2, 0, 2])
    assert [image[0, 0, 0] for image in images] == [1, 0, 1]
    assert images[0].shape == (2, 2, 3) and images[0].dtype == np.uint8
    with pytest.raises(ValueError, match="env_id names environment 4; there are 0 to 3"):
        pool.render([4])


# --- Mistakes


@in_threads
def test_actions_are_checked_before_any_worker_steps() -> None:
    with ProcessVecEnv(Counter, 3, 3) as env:
        with pytest.raises(ValueError, match="act was called before reset"):
            env.act(add(1, 1, 1))
        env.reset()
        refused = r"Counter \(environment 2\): action 'add' of entity 0 is 3; expected a choice below 3"
        with pytest.raises(ValueError, match=refused):
            env.act(add(1, 1, 3))
        with pytest.raises(ValueError, match=refused):
            env.send(add(1, 3), [0, 2])
        with pytest.raises(ValueError, match="action 'add' is missing"):
            env.act({})
        with pytest.raises(ValueError, match="env_id names environment 3; there are 0 to 2"):
            env.act(add(1), [3])
        assert totals(env.act(add(1, 1), [0, 2])) == [1, 1]
        assert totals(env.act(add(1, 1, 1))) == [2, 1, 2]


@in_threads
def test_waiting_for_more_than_is_under_way_is_a_mistake_and_no_hang() -> None:
    with ProcessVecEnv(Counter, 4, 2, batch_size=3) as env:
        env.reset()
        with pytest.raises(ValueError, match="recv returns batch_size=3 environments, and 0 are under way: send them"):
            env.recv()
        env.send(add(1, 1), [0, 3])
        with pytest.raises(ValueError, match="batch_size=3 environments, and 2 are under way"):
            env.recv()
        with pytest.raises(ValueError, match=r"act: Counter \(environment 3\) is under way; recv it first"):
            env.act(add(1, 1), [2, 3])
        assert totals(env.act(add(2), [2])) == [2]
        env.send(add(1), [1])
        assert totals(env.recv()) == [1, 1, 1]


def test_a_reset_forgets_what_was_under_way(pool: ProcessVecEnv) -> None:
    pool.send(do("live", "raise", "live", "live"))
    assert steps(pool.reset()) == [0] * 4
    with pytest.raises(ValueError, match="0 are under way"):
        pool.recv()
    pool.async_reset()
    pool.async_reset()
    assert sorted(i for _ in range(4) for i in pool.recv().env_id.tolist()) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_envs": 0}, "num_envs is 0; it must be at least 1"),
        ({"num_processes": 0}, "num_processes is 0; it must be a whole number, at least 1"),
        ({"batch_size": 4}, "batch_size is 4; it must be a whole number from 1 to num_envs=3"),
        ({"seed": -1}, "seed is -1; it must not be negative"),
        ({"on_crash": "ignore"}, "on_crash is 'ignore'; allowed: ('raise', 'restart')"),
        ({"final_observations": "some"}, "final_observations is 'some'; allowed: ('truncated', 'all', 'none')"),
    ],
)
def test_arguments_that_cannot_be_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError) as info:
        ProcessVecEnv(**{"env": Fragile, "num_envs": 3, "num_processes": 2, **arguments})
    assert message in str(info.value)


@in_threads
def test_more_processes_than_environments_are_not_started() -> None:
    with ProcessVecEnv(Counter, 2, 5) as env:
        assert env.num_processes == 2
        assert totals(env.reset()) == [0, 0]


# --- Environments that raise


def test_an_exception_arrives_as_it_was_with_the_environment_and_the_workers_traceback(pool: ProcessVecEnv) -> None:
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


def test_asynchronously_the_others_go_on(pool: ProcessVecEnv) -> None:
    pool.send(do("live", "raise", "live", "live"))
    seen = []
    with pytest.raises(BrokenWorldError) as info:
        while True:
            seen += pool.recv().env_id.tolist()
    assert info.value.__notes__[0] == "raised by Fragile (environment 1) in act()"
    while len(seen) < 3:
        seen += pool.recv().env_id.tolist()
    assert sorted(seen) == [0, 2, 3]
    assert steps(pool.act(do("live", "live"), [0, 3])) == [2, 2]
    with pytest.raises(ValueError, match=r"Fragile \(environment 1\) showed last was lost to an error"):
        pool.send(do("live"), [1])


def test_an_exception_that_cannot_travel_is_described(pool: ProcessVecEnv) -> None:
    with pytest.raises(RuntimeError, match="OddError: no words for it") as info:
        pool.act(do("live", "raise odd", "live", "live"))
    assert info.value.__notes__[0] == "raised by Fragile (environment 1) in act()"


def test_a_world_that_raises_stop_iteration_raises_an_error_here(pool: ProcessVecEnv) -> None:
    with pytest.raises(RuntimeError, match=r"Fragile \(environment 1\) raised StopIteration\(\) in act\(\)"):
        list(map(pool.act, [do("live", "raise StopIteration", "live", "live")]))
    assert steps(pool.reset()) == [0] * 4


def test_a_value_that_cannot_travel_is_described(pool: ProcessVecEnv) -> None:
    with pytest.raises(TypeError, match="cannot pickle '_thread.lock' object") as info:
        pool.act(do("strange info"), [1])
    assert info.value.__notes__[0] == "raised while sending the reports of environments [1] to the main process"
    assert steps(pool.reset()) == [0] * 4


@in_threads
def test_a_start_that_fails_is_reported_and_no_hang() -> None:
    with pytest.raises(BrokenWorldError, match="no room") as info:
        ProcessVecEnv(NeverMade, 2, 2)
    assert "in __init__" in info.value.__notes__[-1]
    with pytest.raises(ValueError, match="create_env returned dict; it must return an entity_gym.Environment"):
        ProcessVecEnv(dict, 2, 1)


def test_a_worker_that_dies_at_its_start_is_reported() -> None:
    with pytest.raises(WorkerDied, match=r"worker 0 \(environments 0 to 1, process \d+\) exited with code 4"):
        ProcessVecEnv(functools.partial(os._exit, 4), 2, 1)


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
        ProcessVecEnv(Other, 2, 2)


class Unreadable(Fragile):
    """Reports something that can be pickled, and not be put together again."""

    def act(self, actions: Mapping[str, Any]) -> Any:
        return dataclasses.replace(super().act(actions), done=True, end_of_episode_info={"number": NoNumber()})


class NoNumber:
    def __reduce__(self) -> tuple:
        return int, ("no number",)


@in_threads
def test_an_answer_that_cannot_be_put_together_leaves_the_conversation_intact() -> None:
    with ProcessVecEnv(Unreadable, 2, 1) as env:
        env.reset()
        with pytest.raises(ValueError, match="invalid literal for int.*'no number'") as info:
            env.act(do("live", "live"))
        assert re.match("raised while reading an answer of worker 0", info.value.__notes__[0])
        assert steps(env.reset()) == [0, 0]


@in_threads
@pytest.mark.parametrize("env", [Zoo, MineSweeper], ids=["Python", "compiled"])
def test_entities_keep_their_numbers_as_in_other_pools(env: Any) -> None:
    options = {"seed": 3, "final_observations": "all", "compile": False, "entity_ids": True}
    expected = play_together(ListEnv(env, 5, **options), 8)
    with ProcessVecEnv(env, 5, 2, **options) as pool:
        seen = play_together(pool, 8)
    assert contents(seen) == contents(expected)
    assert seen[0].ids.keys() == expected[0].ids.keys() != set()


def test_a_module_that_the_worker_cannot_import_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("only_here")
    module.World = type("World", (Zoo,), {"__module__": "only_here"})
    monkeypatch.setitem(sys.modules, "only_here", module)
    with pytest.raises(ModuleNotFoundError, match="No module named 'only_here'"):
        ProcessVecEnv(module.World, 1, 1)


@in_threads
def test_functions_without_a_name_travel_by_value() -> None:
    size = 7
    with ProcessVecEnv(lambda: Zoo(size), 2, 1, seed=1) as env:
        assert content(env.reset()) == content(ListEnv(lambda: Zoo(7), 2, seed=1).reset())


def test_without_cloudpickle_what_cannot_be_sent_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    monkeypatch.setattr(process_pickling, "_by_value", process_pickling._by_value.__wrapped__)
    with pytest.raises(ValueError, match="<lambda>.* cannot be sent to a worker process: .*or install cloudpickle"):
        ProcessVecEnv(lambda: Zoo(7), 2, 1)
    in_script = type("World", (Zoo,), {"__module__": "__main__"})
    with pytest.raises(ValueError, match=r"World is defined in the script itself \(__main__\); move it into a module"):
        ProcessVecEnv(in_script, 2, 1)


# --- Workers that die


def test_a_dead_worker_is_reported_by_name_and_how_it_ended() -> None:
    with ProcessVecEnv(Fragile, 5, 2, first_env=10) as env:
        env.reset()
        name = r"worker 1 \(environments 12 to 14, process \d+\)"  # as the larger pool numbers them
        with pytest.raises(WorkerDied, match=f"{name} exited with code 3") as info:
            env.act(do("live", "live", "live", "exit", "live"))
        assert (info.value.worker, info.value.exit_code, info.value.env_id) == (1, 3, range(2, 5))  # here
        with pytest.raises(WorkerDied, match=name):  # it stays dead
            env.reset()
        again = pickle.loads(pickle.dumps(info.value))
        assert (str(again), again.worker) == (str(info.value), 1)


def test_a_worker_that_died_unnoticed_is_found_out() -> None:
    with ProcessVecEnv(Fragile, 2, 2, batch_size=1) as env:
        os.kill(processes(env.reset())[1], signal.SIGKILL)
        with pytest.raises(
            WorkerDied, match=r"environment 1, process \d+\) was killed by SIGKILL \(signal 9\)"
        ) as info:
            for _ in range(100):  # its neighbour may answer first
                env.send(do("live"), [0])
                env.recv()
        assert info.value.exit_code == -9


def test_a_restarted_worker_shows_new_episodes_that_are_marked() -> None:
    with ProcessVecEnv(Fragile, 5, 2, seed=1, on_crash="restart") as env:
        first = env.reset()
        env.act(do(*["live"] * 5))
        obs = env.act(do("live", "live", "live", "kill", "live"))
        assert steps(obs) == [2, 2, 0, 0, 0]
        assert obs.elapsed_step.tolist() == [2, 2, 0, 0, 0]
        assert obs.done.tolist() == obs.truncated.tolist() == [False, False, True, True, True]
        assert obs.reward.tolist() == [1, 1, 0, 0, 0]
        assert obs.end_of_episode_info == {i: {"crashed": True} for i in (2, 3, 4)}
        assert set(luck(obs)[2:]).isdisjoint(luck(first))
        assert processes(obs)[2] != processes(first)[2]
        # what they showed last is there to bootstrap from, and offers nothing
        assert obs.final is not None
        assert (obs.final.env_id.tolist(), steps(obs.final)) == ([2, 3, 4], [1, 1, 1])
        assert obs.final.truncated.tolist() == [True] * 3
        assert obs.final.action_masks["do"].actors.to_list() == [[], [], []]
        after = env.act(do(*["live"] * 5))
        assert (steps(after), after.done.any(), env.num_restarts) == ([3, 3, 1, 1, 1], False, 1)


def test_what_comes_after_a_crash_is_deterministic_and_no_repetition() -> None:
    def episodes(env: ProcessVecEnv) -> list[list[int]]:
        return [luck(env.reset(seed=5)), *(luck(env.act(do("kill", "live"))) for _ in range(2)), luck(env.reset())]

    with ProcessVecEnv(Fragile, 2, 2, on_crash="restart") as env:
        seen = episodes(env)
        assert len({first for first, _ in seen}) == 4
        assert seen[0][1] == seen[2][1]  # the other worker went on
        assert episodes(env) == seen


def test_asynchronously_frames_that_were_waited_for_and_those_still_to_be_acted_on_are_marked() -> None:
    with ProcessVecEnv(Fragile, 4, 2, batch_size=1, on_crash="restart", final_observations="none") as env:
        first = env.reset()
        env.send(do("live", "kill"), [2, 3])
        obs = [env.recv(), env.recv()]
        # 2 took its step before the worker died; 3 did not
        assert [(o.env_id.tolist(), o.done.tolist(), steps(o)) for o in obs] == [
            ([2], [False], [1]),
            ([3], [True], [0]),
        ]
        assert obs[1].final is None
        env.send(do("live", "live"), [2, 3])
        obs = sorted([env.recv(), env.recv()], key=lambda o: o.env_id[0])
        # nobody can act on what 2 showed before its worker died
        assert [(o.done.tolist(), steps(o), o.reward.tolist()) for o in obs] == [
            ([True], [0], [0]),
            ([False], [1], [1]),
        ]
        assert obs[0].end_of_episode_info == {2: {"crashed": True}}
        assert steps(env.act(do("live", "live"), [0, 2])) == [1, 1]
        assert processes(env.act(do("live"), [0])) == processes(first)[:1]


def test_a_crash_during_a_reset_is_no_end_of_an_episode() -> None:
    with ProcessVecEnv(Fragile, 2, 2, on_crash="restart") as env:
        os.kill(processes(env.reset(env_info=[{"size": 2}, {"size": 3}]))[1], signal.SIGKILL)
        obs = env.reset(seed=3)
        assert (obs.done.tolist(), steps(obs)) == ([False, False], [0, 0])
        assert obs.features["It"].size1().tolist() == [2, 3]  # parameters are kept
        assert steps(env.act(do("live", "live"))) == [1, 1]


def test_two_workers_may_die_together() -> None:
    with ProcessVecEnv(Fragile, 3, 3, on_crash="restart") as env:
        first = env.reset()
        for worker in processes(first)[:2]:
            os.kill(worker, signal.SIGKILL)
        obs = env.act(do("live", "live", "live"))
        assert (steps(obs), obs.done.tolist(), env.num_restarts) == ([0, 0, 1], [True, True, False], 2)
        assert steps(env.act(do("live", "live", "live"))) == [1, 1, 2]


class DiesAtOnce(Fragile):
    def reset(self):
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_that_dies_again_and_again_is_not_restarted_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_env, "MAX_DEATHS_IN_A_ROW", 1)
    with ProcessVecEnv(Fragile, 2, 1, on_crash="restart") as env:
        env.reset()
        with pytest.raises(WorkerDied, match="was killed by SIGKILL"):
            for _ in range(100):
                env.act(do("live", "kill"))
        assert env.num_restarts == 1
    with ProcessVecEnv(DiesAtOnce, 2, 1, on_crash="restart") as env, pytest.raises(WorkerDied, match="was killed"):
        env.reset()


# --- One slow environment


def test_a_slow_environment_holds_up_only_those_behind_it_in_its_own_worker(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with ProcessVecEnv(functools.partial(Fragile, str(gate)), 6, 2, batch_size=2) as env:
        env.reset()
        env.send(do("live", "wait", "live", "live", "live", "live"))
        first, second = env.recv(), env.recv()
        assert sorted(first.env_id.tolist() + second.env_id.tolist()) == [0, 3, 4, 5]
        gate.touch()
        assert env.recv().env_id.tolist() == [1, 2]


@in_threads
def test_many_requests_can_be_under_way() -> None:
    # more than a socket holds in both directions: neither side may block the other
    with ProcessVecEnv(Counter, 600, 1, batch_size=599) as env:
        env.reset()
        for i in range(600):
            env.send(add(1), [i])
        assert totals(env.recv()) == [1] * 599


# --- The end


def test_closing_twice_is_allowed_and_then_nothing_works() -> None:
    env = ProcessVecEnv(Fragile, 2, 1)
    workers = processes(env.reset())
    env.close()
    env.close()
    assert not any(map(is_running, workers))
    for call in (env.reset, env.recv, env.async_reset, env.state, env.clone, lambda: env.render([0])):
        with pytest.raises(ValueError, match="the pool is closed"):
            call()


def test_the_garbage_collector_closes_a_pool_even_with_steps_under_way() -> None:
    env = ProcessVecEnv(Fragile, 2, 1)
    workers = processes(env.reset())
    env.send(do("live", "live"))
    del env
    assert not any(map(is_running, workers))


def test_a_worker_that_is_stuck_in_a_step_does_not_hold_up_the_end(impatient: None) -> None:
    env = ProcessVecEnv(Fragile, 2, 2, batch_size=1)
    workers = processes(env.reset())
    env.send(do("hang", "live"))
    assert env.recv().env_id.tolist() == [1]
    env.close()
    assert not any(map(is_running, workers))


def test_a_forked_process_leaves_the_pool_alone(pool: ProcessVecEnv) -> None:
    child = os.fork()
    if child == 0:
        try:
            pool.act(do(*["live"] * 4))
        except ValueError as error:
            pool.close()
            os._exit(0 if "made in another process" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert steps(pool.act(do(*["live"] * 4))) == [1] * 4


def test_interrupts_are_the_main_processs_business(pool: ProcessVecEnv) -> None:
    for worker in processes(pool.reset()):
        os.kill(worker, signal.SIGINT)
    assert steps(pool.act(do(*["live"] * 4))) == [1] * 4


class Surroundings(Fragile):
    def render(self) -> np.ndarray:
        names = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "NUMBA_NUM_THREADS")
        return np.array([os.environ.get(name) for name in names])


def test_a_worker_has_one_thread_for_numeric_libraries_and_shared_memory_without_a_name() -> None:
    before = dict(os.environ)
    others = set(shared_memory())  # of libraries in this process, such as a deleted semaphore
    with ProcessVecEnv(Surroundings, 1, 1) as env:
        (worker,) = processes(env.reset())
        assert env.render([0])[0].tolist() == ["1", "PASSIVE", "1"]
        assert set(shared_memory()) - others <= {"/memfd:entity_gym (deleted)"}
        assert "/memfd:entity_gym (deleted)" in shared_memory()
        assert shared_memory(worker) == ["/memfd:entity_gym (deleted)"] * 2  # one in each direction
    assert dict(os.environ) == before


SCRIPT = """
    import os, signal, sys
    from entity_gym.pools.processes.env import ProcessVecEnv
    from tests.entity_gym.pools.fragile import Fragile, do, processes

    class OwnError(Exception):  # known to this script only
        pass

    class Own(Fragile):
        def act(self, actions):
            if self.steps == 1:
                raise OwnError("mine")
            return super().act(actions)

    env = ProcessVecEnv(Own, 3, 2)
    print(*processes(env.reset()), flush=True)
    env.act(do("live", "live", "live"))
    try:
        env.act(do("live", "live", "live"))
    except OwnError as error:
        print(error, flush=True)
    if sys.argv[1] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if sys.argv[1] == "stuck":
        env.reset()
        env.send(do("hang", "live", "live"))
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("end", ["", "killed", "stuck"])
def test_nothing_outlives_the_interpreter_and_a_script_needs_no_precautions(
    end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # no `if __name__ == "__main__"`, environments and exceptions of the script itself, no close
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    root = Path(__file__).parents[4]
    command = [sys.executable, "-W", "always", str(script), end]
    ran = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(root)}, capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == (-9 if end else 0)
    workers, message = ran.stdout.splitlines()
    assert message == "mine"
    assert ran.stderr == ""
    while any(is_running(int(worker)) for worker in workers.split()):  # a hang is the test's failure
        time.sleep(0.05)


def test_environments_are_closed_in_the_end_even_if_a_forked_process_lives_on(tmp_path: Path) -> None:
    env = ProcessVecEnv(functools.partial(Tidy, str(tmp_path / "closed")), 2, 1)
    child = os.fork()
    if child == 0:
        signal.pause()
    env.close()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert (tmp_path / "closed").read_text() == "closed" * 2


class Tidy(Fragile):
    def close(self) -> None:
        with self.gate.open("a") as file:
            file.write("closed")
