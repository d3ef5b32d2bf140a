"""Worker processes: the same trajectories, faults that are reported, and nothing left behind."""

import functools
import gc
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
import types
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from entity_gym.pools.processes import env as process_env
from entity_gym.pools.processes import handle as process_handle
from entity_gym.pools.processes.env import ProcessVecEnv
from entity_gym.pools.processes.handle import WorkerDied
from tests.entity_gym.pools.fragile import Fragile, do, luck, processes, steps
from tests.entity_gym.pools.processes.thread_workers import threads as threads
from tests.worlds import Zoo


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


def test_two_seeds_differ(pool: ProcessVecEnv) -> None:
    first, again, other = pool.reset(seed=1), pool.reset(seed=1), pool.reset(seed=2)
    assert luck(first) == luck(again)
    assert set(luck(first)).isdisjoint(luck(other))
    assert len(set(processes(first))) == 2  # and they are in different processes indeed
    assert os.getpid() not in processes(first)


# --- Environments that raise


def test_a_worker_that_dies_at_its_start_is_reported() -> None:
    with pytest.raises(WorkerDied, match=r"worker 0 \(environments 0 to 1, process \d+\) exited with code 4"):
        ProcessVecEnv(functools.partial(os._exit, 4), 2, 1)


def test_a_module_that_the_worker_cannot_import_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("only_here")
    module.World = type("World", (Zoo,), {"__module__": "only_here"})
    monkeypatch.setitem(sys.modules, "only_here", module)
    with pytest.raises(ModuleNotFoundError, match="No module named 'only_here'"):
        ProcessVecEnv(module.World, 1, 1)


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
    root = Path(__file__).parents[5]
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
