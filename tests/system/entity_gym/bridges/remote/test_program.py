"""Worlds of another program: what a pool of them shows, and what is said when the program misbehaves."""

from __future__ import annotations

import socket
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from entity_gym.bridges.remote import ProgramError, ProgramWorlds
from entity_gym.bridges.remote.program import Program
from entity_gym.pools.pool import ListEnv, ThreadedVecEnv
from entity_gym.pools.slots import SlotOptions
from entity_gym.pools.vec_env import VecEnv
from tests.entity_gym.bridges.remote.counting import PROGRAM, both_add, counters, counting, pool
from tests.processes import is_running, run


def fails(fault: str, why: str, **settings: Any) -> str:
    """The message of the error with which two worlds of such a program end."""
    with pytest.raises(ProgramError, match=why) as raised:
        with pool(2, fault, **settings) as env:
            env.reset(seed=0)
    return str(raised.value)


def test_a_seed_determines_the_episodes_and_neither_processes_nor_threads_do() -> None:
    def played(env: Any) -> list[list[float]]:
        with env:
            shown = [counters(env.reset(seed=11))]
            for _ in range(4):
                shown.append(counters(env.act(both_add(0, 1, 2, 0))))
            return shown

    alone = played(ThreadedVecEnv(counting(), 4))
    assert played(ThreadedVecEnv(counting(), 4, num_threads=3)) == alone
    assert played(ThreadedVecEnv(counting(), 4, num_processes=2)) == alone
    assert len(set(alone[0])) > 1


@pytest.mark.parametrize("make_pool", [ListEnv, ThreadedVecEnv])
def test_a_pool_has_one_program_for_all_its_environments(make_pool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []

    class Counted(Program):
        def __init__(self, settings: ProgramWorlds, num_worlds: int) -> None:
            started.append(num_worlds)
            super().__init__(settings, num_worlds)

    monkeypatch.setattr("entity_gym.bridges.remote.program.Program", Counted)
    with closing(make_pool(counting(), 8)):
        assert started == [8]


def test_worlds_that_can_be_saved_continue_exactly() -> None:
    with pool(2, "can save") as env, pool(2, "can save") as other:
        env.reset(seed=3)
        env.act(both_add(1, 2))
        other.load_state(env.state())
        for _ in range(4):
            expected, got = env.act(both_add(2, 1)), other.act(both_add(2, 1))
            assert counters(got) == counters(expected)
            assert got.done.tolist() == expected.done.tolist()


def test_a_program_is_gone_when_its_world_is_closed_even_if_it_does_not_end_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("entity_gym.bridges.remote.program.GRACE", 0.1)
    env = counting("stays").as_environment()
    process = env._program._process
    assert process is not None and process.poll() is None
    env.close()
    assert process.returncode == -9


def test_a_program_that_was_started_dies_with_the_trainer(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys\n"
        "from entity_gym.bridges.remote import ProgramWorlds\n"
        f"env = ProgramWorlds(command=[{sys.executable!r}, {str(PROGRAM)!r}]).as_environment()\n"
        "print(env._program._process.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    pid = int(run("-c", script, timeout=60).stdout)
    for _ in range(100):
        if not is_running(pid):
            return
        time.sleep(0.1)
    raise AssertionError("the program is still running 10 seconds after the trainer was killed")


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("dies at once", r"is gone while the greeting was not answered: it ended with exit code 1"),
        ("other version", "speaks version 2 of the protocol; this is version 1"),
        ("other parts", "offers no worlds that can be: .* has no part 'parameter'; .*did you mean 'parameters'"),
        ("another answer", "answered 'saved' where 'observation' was due, of world 0"),
        ("refuses", "reported an error: this is the server edition"),
        ("fails", "Counting .* reported an error of world 1: IndexError: no room for a counter"),
        ("ends", "is gone while 'reset' of world 0, 'reset' of world 1 was not answered: it ended with exit code 3"),
        ("prints", "begins with the text 'rese': was something printed where messages go"),
        ("another env", "sent 'observation' of world 7, which was not asked anything"),
        ("cannot be", "sent an invalid observation of world 0: features of 'Counter' are"),
    ],
)
def test_a_program_that_misbehaves_is_named_with_what_it_did(fault: str, why: str) -> None:
    message = fails(fault, why)
    assert str(PROGRAM) in message


def test_a_program_that_hangs_is_given_up_after_its_time() -> None:
    fails("hangs", "has not answered 'reset' of world 1 within answer_seconds=0.5", answer_seconds=0.5)


def test_a_message_beyond_the_limit_is_not_read() -> None:
    fails("too long", "sent a message of 5,.* bytes; at most 4,096 are read", max_message_bytes=4096)


def test_after_an_error_every_further_request_says_what_it_was() -> None:
    env = pool(2, "fails")
    for _ in range(2):
        with pytest.raises(ProgramError, match="no room for a counter"):
            env.reset(seed=0)
    env.close()


def at_the_end_of_an_episode(env: VecEnv) -> None:
    """Play until world 0 ends its episode with an observation that does not fit; the next one has been asked for then."""
    env.reset(seed=1)
    for _ in range(2):
        env.act(both_add(0, 0))
    with pytest.raises(ValueError, match=r"features of 'Counter' have shape \(1, 2\)"):
        env.act(both_add(0, 0))


def test_a_reset_after_an_error_plays_the_seed_and_the_parameters_that_it_was_given() -> None:
    with pool(2) as env:
        expected = counters(env.reset(seed=7))
    slots = counting("ends badly").make_slots(2, SlotOptions(final_observations="all"))
    with VecEnv(slots) as env:
        at_the_end_of_an_episode(env)
        assert counters(env.reset(seed=7)) == expected
        at_the_end_of_an_episode(env)
        assert counters(env.reset(env_info=[{"start": 3}, {"start": 4}])) == [3, 4]


def test_a_wait_that_was_interrupted_does_not_keep_a_world_from_being_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    def press(*_: object) -> None:
        raise KeyboardInterrupt

    with pool(2) as env:
        expected = counters(env.reset(seed=7))
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Program, "answer", press)
            env.act(both_add(1, 2))
        assert counters(env.reset(seed=7)) == expected


def test_a_program_that_does_not_connect_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(ProgramError, match="has not connected within start_seconds=0.2"):
        ProgramWorlds(listen=f"127.0.0.1:{port}", start_seconds=0.2).as_environment()


def test_a_program_that_is_killed_has_said_why(capfd: pytest.CaptureFixture[str]) -> None:
    fails("is killed", "it was killed by SIGKILL")
    assert "about to use far too much memory" in capfd.readouterr().err


def test_a_running_program_connects_to_where_it_is_listened_for(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    def connect() -> None:
        for _ in range(200):  # until somebody listens
            time.sleep(0.05)
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    serve_nothing(probe)
                    return

    thread = threading.Thread(target=connect)
    thread.start()
    with pytest.raises(
        ProgramError, match=f"program at 127.0.0.1:{port} is gone while the greeting .* closed the connection"
    ):
        ProgramWorlds(listen=f"127.0.0.1:{port}").as_environment()
    thread.join()
    assert (
        f"waiting for a program to connect to 127.0.0.1:{port} for 1 world, with a connection"
        in capsys.readouterr().err
    )


def serve_nothing(connection: socket.socket) -> None:
    """Read the greeting and hang up."""
    connection.recv(2**16)
