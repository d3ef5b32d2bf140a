"""A worker process as the main process sees it: started, asked, found dead, ended."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.spawn import get_executable
from typing import Any

from entity_gym.pools.processes.arena import Array, Channel, Message, create_arena
from entity_gym.pools.processes.frames import Frames
from entity_gym.pools.processes.pickling import pickled_for_worker
from entity_gym.pools.processes.worker import NOBODY, Answer, Op, Start
from entity_gym.pools.slots import EnvIds

DEATH_GRACE = 3.0  # seconds that a process has to end once it has hung up, for example to write a core dump
CHECK_INTERVAL = 1.0  # seconds between looks at whether a silent worker is alive
MAX_UNANSWERED = 64  # requests in a pipe; more could fill it, and with a worker that waits as well nobody would move

# A worker is a fresh interpreter. Forking would copy locks that threads of this process hold (torch and numba have such
# threads), and the copy would wait for them forever. It is not started through `multiprocessing` either: that would run the
# user's script a second time in every worker, which hangs or fails where the script lacks `if __name__ == "__main__"`,
# and would leave helper processes behind.
PROGRAM = """\
import json, sys
path, *descriptors = json.loads(sys.argv.pop())
sys.path[:] = path
from entity_gym.pools.processes.worker import main
main(*descriptors)
"""

# Workers share the cores among themselves: libraries that start one thread for each core would get in each other's way.
# Besides these, `PYTHONHASHSEED` is set where it is not: an environment that goes through a set of strings then does so in
# the same order in every worker.
ENVIRONMENT_VARIABLES = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
}


class WorkerDied(RuntimeError):  # noqa: N818 - says what happened
    """A worker process is gone: it was killed, crashed, or an environment ended it.

    Attributes:
        worker: its number.
        exit_code: what it exited with; -n if signal n killed it.
        env_id: its environments.
    """

    def __init__(self, message: str, worker: int, exit_code: int | None, env_id: range) -> None:
        super().__init__(message)
        self.worker, self.exit_code, self.env_id = worker, exit_code, env_id

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.worker, self.exit_code, self.env_id)


@dataclass
class Replies:
    """Where the answers to some requests are gathered."""

    frames: deque[Frames] = field(default_factory=deque)
    results: dict[int, Any] = field(default_factory=dict)  # by worker
    errors: list[Exception] = field(default_factory=list)
    lost: list[EnvIds] = field(default_factory=list)  # environments whose frames will not come, for each of the errors
    waiting: int = 0  # requests that are not answered yet, or not completely
    num_frames: int = 0  # in `frames`

    def add(self, frames: Frames) -> None:
        """Gather frames."""
        self.frames.append(frames)
        self.num_frames += frames.num_frames

    def pop(self, num_frames: int) -> list[Frames]:
        """Take out the first `num_frames` frames, or some more where several came together."""
        taken = []
        while num_frames > 0:
            taken.append(self.frames.popleft())
            num_frames -= taken[-1].num_frames
            self.num_frames -= taken[-1].num_frames
        return taken

    def fail(self, error: Exception, ids: EnvIds) -> None:
        """Note an error, and the environments whose frames will therefore not come."""
        self.errors.append(error)
        self.lost.append(ids)


@dataclass
class Request:
    """Something that a worker was asked for."""

    op: Op
    ids: EnvIds  # environments whose frames are still to come
    value: Any
    arrays: Sequence[Array]
    replies: Replies | None  # None: nobody is interested any more


class WorkerProcess:
    """One worker, and what it was asked for.

    Args:
        index: its number.
        start: its environments.

    Raises:
        OSError: if the process cannot be started.
    """

    def __init__(self, index: int, start: Start) -> None:
        self.index = index
        self.start = start
        self.env_id = range(start.lo, start.lo + start.num_envs)
        self.requests: dict[int, Request] = {}  # not completely answered, by number, the oldest first
        self.restarts = 0
        self.restarts_since_seed = 0  # since the environments were seeded
        self.deaths_in_a_row = 0  # without a frame in between
        self._unsent: deque[int] = deque()
        self._next_request = 0
        self.owner = os.getpid()
        self._launch()

    def _launch(self) -> None:
        """Start the process. It is asked for nothing yet."""
        connection, its_connection = socket.socketpair()
        its_arena, our_arena = create_arena(), create_arena()
        self.channel = Channel(connection, our_arena, its_arena)
        given = (its_connection.fileno(), its_arena, our_arena)
        program = json.dumps([[str(entry) for entry in sys.path], *given])
        flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        try:
            with _interrupts_blocked():
                self.process = subprocess.Popen(
                    [os.fsdecode(get_executable()), *flags, "-c", PROGRAM, program],
                    stdin=subprocess.DEVNULL,
                    env={"PYTHONHASHSEED": "0", **os.environ, **ENVIRONMENT_VARIABLES},
                    pass_fds=given,
                )
        except BaseException:
            self.channel.close()
            raise
        finally:
            its_connection.close()

    def __str__(self) -> str:
        first, last = (self.start.first_env + number for number in (self.env_id[0], self.env_id[-1]))
        which = f"environment {first}" if first == last else f"environments {first} to {last}"
        return f"worker {self.index} ({which}, process {self.process.pid})"

    # ---- asking

    def ask(
        self, op: Op, value: Any, replies: Replies | None, ids: EnvIds = NOBODY, arrays: Sequence[Array] = ()
    ) -> None:
        """Send a request. That the worker is gone is found out when the answer is waited for."""
        number, self._next_request = self._next_request, self._next_request + 1
        self.requests[number] = Request(op, ids, value, arrays, replies)
        if replies is not None:
            replies.waiting += 1
        self._unsent.append(number)
        self._send()

    def receive(self) -> tuple[Request, Message]:
        """The next answer, which is there already.

        Raises:
            WorkerDied: if the worker is gone and has left no answer.
        """
        try:
            message = self.channel.receive()
        except (EOFError, OSError) as error:
            raise self.death() from error
        request = self.requests[message.request]
        if message.last:
            del self.requests[message.request]
            self._send()
        return request, message

    def converse(self, op: Op, value: Any, ids: EnvIds = NOBODY) -> Replies:
        """Send a request and wait for the answer, with nothing else under way. Raises what the worker answers."""
        replies = Replies()
        self.ask(op, value, replies, ids)
        while replies.waiting:
            if self._has_answered(CHECK_INTERVAL):
                self.take(*self.receive())
            elif self.process.poll() is not None and not self._has_answered(0):
                raise self.death()
        if replies.errors:
            raise replies.errors.pop(0)
        return replies

    def take(self, request: Request, message: Message) -> None:
        """Put an answer where it is waited for."""
        replies = request.replies
        if replies is None:
            return
        replies.waiting -= message.last
        if message.error is not None:
            message.error.add_note(f"raised while reading what {self} sent")
            count = len(request.ids) if message.last else 1
            replies.fail(message.error, request.ids[:count])
            request.ids = request.ids[count:]
        elif message.kind == Answer.ERROR:
            ids, report = message.value
            replies.fail(report.exception(str(self)), ids)
            request.ids = request.ids[len(ids) :]
        elif message.kind == Answer.FRAMES:
            frames = Frames.put_together(message.value, message.arrays)
            replies.add(frames)
            request.ids = request.ids[frames.num_frames :]
            if request.op == Op.STEP:
                self.deaths_in_a_row = 0
        else:
            replies.results[self.index] = message.value

    def _has_answered(self, seconds: float) -> bool:
        """Whether there is an answer, or the end of all answers, within that time."""
        poll = select.poll()
        poll.register(self.channel.connection, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def _send(self) -> None:
        while self._unsent and len(self.requests) - len(self._unsent) < MAX_UNANSWERED:
            number = self._unsent.popleft()
            request = self.requests[number]
            try:
                # The value of a step is plain, and the faster way will do.
                pickled = pickle.dumps(request.value) if request.op == Op.STEP else pickled_for_worker(request.value)
            except BaseException:  # nothing was asked
                del self.requests[number]
                if request.replies is not None:
                    request.replies.waiting -= 1
                raise
            with contextlib.suppress(OSError):  # it is gone, which is found out when the answer is waited for
                self.channel.send(request.op, number, pickled, request.arrays)

    # ---- ending

    def death(self) -> WorkerDied:
        """What is to be said of a worker that hung up. It is gone for certain afterwards."""
        wait_for([self.process], DEATH_GRACE)
        code = self.process.poll()
        if code is None:  # it closed the pipe and lives on
            self.process.kill()
            code = self.process.wait()
            how = "closed its connection, and was killed"
        elif code < 0:
            how = f"was killed by {_signal_name(-code)}"
        else:
            how = f"exited with code {code}"
        return WorkerDied(f"{self} {how}", self.index, code, self.env_id)

    def relaunch(self, start: Start) -> list[Request]:
        """Put a new process in the place of one that died. Returns what the old one did not answer."""
        self.channel.close()
        lost = list(self.requests.values())
        self.requests.clear()
        self._unsent.clear()
        self.start = start
        self._launch()
        return lost


def wait_for(processes: list[subprocess.Popen[bytes]], seconds: float) -> None:
    """Wait until the processes have ended, at most for `seconds`."""
    deadline = time.monotonic() + seconds
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))


def _signal_name(number: int) -> str:
    try:
        return f"{signal.Signals(number).name} (signal {number})"
    except ValueError:
        return f"signal {number}"


@contextlib.contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """A child that is started meanwhile does not see Ctrl-C, until it is able to ignore it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
