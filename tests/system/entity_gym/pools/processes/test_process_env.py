"""Worker processes that are processes: their ends, their surroundings, and nothing left behind; threads as well."""

import functools
import os
import signal
import sys
import textwrap
import time
import types
from pathlib import Path

import numpy as np
import pytest

from entity_gym.pools.pool import ThreadedVecEnv
from entity_gym.pools.processes import worker as process_worker
from entity_gym.pools.processes.worker import WorkerDied
from tests.entity_gym.pools.fragile import Fragile, do, luck, processes, steps
from tests.entity_gym.pools.processes.left_behind import little_garbage as little_garbage
from tests.entity_gym.pools.processes.left_behind import nothing_is_left_behind as nothing_is_left_behind
from tests.entity_gym.pools.processes.left_behind import pool as pool
from tests.entity_gym.pools.processes.left_behind import shared_pool as shared_pool
from tests.processes import is_running, run
from tests.worlds import Zoo


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that are stuck are not waited for."""
    monkeypatch.setattr(process_worker, "CLOSE_GRACE", 0.1)


# --- The same, whoever does the work


def test_two_seeds_differ(pool: ThreadedVecEnv) -> None:
    first, again, other = pool.reset(seed=1), pool.reset(seed=1), pool.reset(seed=2)
    assert luck(first) == luck(again)
    assert set(luck(first)).isdisjoint(luck(other))
    assert len(set(processes(first))) == 2  # and they are in different processes indeed
    assert os.getpid() not in processes(first)


# --- Environments that raise


def test_a_worker_that_dies_at_its_start_is_reported() -> None:
    with pytest.raises(WorkerDied, match=r"worker 0 \(environments 0 to 1, process \d+\) exited with code 4"):
        ThreadedVecEnv(functools.partial(os._exit, 4), 2, num_processes=1)


def test_a_module_that_the_worker_cannot_import_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("only_here")
    module.World = type("World", (Zoo,), {"__module__": "only_here"})
    monkeypatch.setitem(sys.modules, "only_here", module)
    with pytest.raises(ModuleNotFoundError, match="No module named 'only_here'"):
        ThreadedVecEnv(module.World, 1, num_processes=1)


# --- Workers that die


def test_a_dead_worker_is_reported_by_name_and_how_it_ended() -> None:
    with ThreadedVecEnv(Fragile, 5, num_processes=2, first_env=10) as env:
        env.reset()
        name = r"worker 1 \(environments 12 to 14, process \d+\)"  # as the larger pool numbers them
        with pytest.raises(WorkerDied, match=f"{name} exited with code 3"):
            env.act(do("live", "live", "live", "exit", "live"))
        with pytest.raises(WorkerDied, match=name):  # it stays dead
            env.reset()


def test_a_worker_that_died_unnoticed_is_found_out() -> None:
    with ThreadedVecEnv(Fragile, 2, num_processes=2, batch_size=1) as env:
        os.kill(processes(env.reset())[1], signal.SIGKILL)
        with pytest.raises(WorkerDied, match=r"environment 1, process \d+\) was killed by SIGKILL \(signal 9\)"):
            for _ in range(100):  # its neighbour may answer first
                env.send(do("live"), [0])
                env.recv()


# --- One slow environment


def test_a_slow_environment_holds_up_only_those_behind_it_in_its_own_worker(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with ThreadedVecEnv(functools.partial(Fragile, str(gate)), 6, num_processes=2, batch_size=2) as env:
        env.reset()
        env.send(do("live", "wait", "live", "live", "live", "live"))
        first, second = env.recv(), env.recv()
        assert sorted(first.env_id.tolist() + second.env_id.tolist()) == [0, 3, 4, 5]
        gate.touch()
        assert env.recv().env_id.tolist() == [1, 2]


# --- The end


def test_the_garbage_collector_closes_a_pool_even_with_steps_under_way() -> None:
    env = ThreadedVecEnv(Fragile, 2, num_processes=1)
    workers = processes(env.reset())
    env.send(do("live", "live"))
    del env
    assert not any(map(is_running, workers))


def test_a_worker_that_is_stuck_in_a_step_does_not_hold_up_the_end(impatient: None) -> None:
    env = ThreadedVecEnv(Fragile, 2, num_processes=2, batch_size=1)
    workers = processes(env.reset())
    env.send(do("hang", "live"))
    assert env.recv().env_id.tolist() == [1]
    env.close()
    assert not any(map(is_running, workers))


def test_a_forked_process_leaves_the_pool_alone(pool: ThreadedVecEnv) -> None:
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


def test_interrupts_are_the_main_processs_business(pool: ThreadedVecEnv) -> None:
    for worker in processes(pool.reset()):
        os.kill(worker, signal.SIGINT)
    assert steps(pool.act(do(*["live"] * 4))) == [1] * 4


class Surroundings(Fragile):
    def render(self) -> np.ndarray:
        names = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "NUMBA_NUM_THREADS")
        return np.array([os.environ.get(name) for name in names])


def test_a_worker_has_one_thread_for_numeric_libraries() -> None:
    before = dict(os.environ)
    with ThreadedVecEnv(Surroundings, 1, num_processes=1) as env:
        env.reset()
        assert env.render([0])[0].tolist() == ["1", "PASSIVE", "1"]
    assert dict(os.environ) == before


SCRIPT = """
    import os, signal, sys
    from entity_gym.pools.pool import ThreadedVecEnv
    from tests.entity_gym.pools.fragile import Fragile, do, processes

    class OwnError(Exception):  # known to this script only
        pass

    class Own(Fragile):
        def act(self, actions):
            if self.steps == 1:
                raise OwnError("mine")
            return super().act(actions)

    env = ThreadedVecEnv(Own, 3, num_processes=2)
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
    ran = run("-W", "always", script, end, timeout=60)
    assert ran.returncode == (-9 if end else 0)
    workers, message = ran.stdout.splitlines()
    assert message == "mine"
    assert ran.stderr == ""
    while any(is_running(int(worker)) for worker in workers.split()):  # a hang is the test's failure
        time.sleep(0.05)


def test_environments_are_closed_in_the_end_even_if_a_forked_process_lives_on(tmp_path: Path) -> None:
    env = ThreadedVecEnv(functools.partial(Tidy, str(tmp_path / "closed")), 2, num_processes=1)
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


# --- Worker threads


@pytest.mark.parametrize(
    "last", ["env.act(add(1, 1, 1))", "env.send(add(1, 1, 1))", "env.async_reset()", "raise SystemExit(0)"]
)
def test_the_interpreter_exits_quietly_whatever_a_pool_was_doing(last: str) -> None:
    script = f"""
        from entity_gym.pools.pool import ThreadedVecEnv
        from tests.entity_gym.pools.kinds_of_pools import Counter, add
        env = ThreadedVecEnv(Counter, 3, 3)
        env.reset()
        {last}
    """
    done = run("-c", textwrap.dedent(script), timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
