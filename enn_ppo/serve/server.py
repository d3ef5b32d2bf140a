"""Connections of the policy server. Requests are answered in batches; what a client does wrong ends its own connection alone.

One thread moves bytes for all clients. Three others do the work, and clients take turns at each of them (`turns.py`): one reads
messages, one fits the policy to new spaces, one runs the policy. Requests that arrive during inference form the next batch.

Memory is bounded whatever clients send: a client's messages are read only while few of its requests are unanswered, messages are
read only while few requests of all clients wait for the policy, and long messages are received a few at a time.
"""

from __future__ import annotations

import asyncio
import hmac
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch

from enn_ppo.serve.policy import Request, ServedPolicies, ServedPolicy
from enn_ppo.serve.turns import FairQueue
from enn_ppo.settings.serving import ServeConfig
from entity_gym.bridges.remote.messages import PROTOCOL, Message, MessageReader, ProtocolError, decode, encode
from entity_gym.errors import check_parts
from entity_gym.pools.processes.heap import return_memory, share_memory

_CHUNK = 2**14  # bytes that are received at once, and that are read in one turn
_MOST_UNANSWERED = 256  # requests of one client; reading pauses at this limit
_MOST_LONG = 16  # messages above `_CHUNK` that are received at the same time
# Times `max_entities`: while requests that cost more wait for the policy, clients with some among them pause.
_MOST_QUEUED = 4
# Lists and objects of a message, which take twenty times their text in memory: of each entity, and in any case.
_BRACKETS_PER_ENTITY, _BRACKETS = 16, 2**15
_MOST_UNREAD = 8  # times `max_message_bytes` that all clients together leave unread
_MOST_TOLD = 64  # connections above twice `max_clients` that may still be told why they are dropped
_QUIET = 1.0  # seconds without data after which a dropped client's connection is closed
_HASTE = 1.0  # seconds after which a client that has not greeted makes room for another one
_RETURNING = 0.05  # seconds between two times that memory is returned to the system, after clients have left
_MOST_WORDS = 2000  # characters of a reason

Fault = Literal["refused", "slow", "broken"]


class Served(NamedTuple):
    """Counters of a server."""

    decisions: int
    batches: int
    clients: int
    refused: int  # clients that were turned away, or whose greeting was
    slow: int  # clients that took too long to send or to read
    broken: int  # clients that sent something invalid, or whose connection broke

    def __str__(self) -> str:
        return (
            f"served {self.decisions:,} decisions in {self.batches:,} batches to {self.clients:,} clients; refused "
            f"{self.refused:,}, dropped {self.slow:,} slow and {self.broken:,} broken ones"
        )


class _Dropped(Exception):  # noqa: N818 - reads as a sentence
    """A client is dropped, with this reason.

    One that is raised is never kept: its traceback leads to the frames that raised it, and these to the client's messages, which
    would stay in memory until the garbage collector finds the cycle. `anew` is what to raise, or to keep.
    """

    def __init__(self, fault: Fault, reason: str) -> None:
        super().__init__(reason)
        self.fault = fault

    def anew(self) -> _Dropped:
        """Return the same without a traceback."""
        return _Dropped(self.fault, str(self))


@dataclass(eq=False)
class _Client:
    name: str
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    messages: MessageReader
    came: float  # on the clock of the event loop
    policy: ServedPolicy | None = None  # None until it has been greeted
    has_sent_greeting: bool = False
    unanswered: int = 0
    has_been_answered: asyncio.Event = field(default_factory=asyncio.Event)
    decisions: int = 0
    dropped: _Dropped | None = None  # set by another task that drops the client
    timeout: asyncio.Timeout | None = None  # while the server waits for its data
    has_long_message: bool = False  # it has one of `_long_messages`


class _Reading(NamedTuple):
    """Messages of a client that are to be read."""

    bodies: Sequence[bytes]
    policy: ServedPolicy | None
    read: asyncio.Future[list[Message | Request | _Dropped]]  # nothing follows a _Dropped


class _Fitting(NamedTuple):
    """Spaces of a client that the policy is to be fitted to."""

    spaces: object
    fitted: asyncio.Future[ServedPolicy | _Dropped]


class _Deciding(NamedTuple):
    """A request that is to be answered."""

    policy: ServedPolicy
    request: Request


class PolicyServer:
    """Answers clients until it is stopped.

    Args:
        config: settings of the server.
        policies: the policy, for the spaces of each client.
        say: prints a line.
    """

    def __init__(self, config: ServeConfig, policies: ServedPolicies, say: Callable[[str], None]) -> None:
        self._config, self._policies, self._say = config, policies, say
        self._generator = torch.Generator(device=policies.device).manual_seed(config.seed)
        self._clients: dict[_Client, asyncio.Task[None]] = {}
        self._num_connections = 0  # with those of dropped clients that are told the reason
        self._reading: FairQueue[_Client, _Reading] = FairQueue()  # cost: bytes
        self._fitting: FairQueue[_Client, _Fitting] = FairQueue()  # cost: bytes
        self._deciding: FairQueue[_Client, _Deciding] = FairQueue()  # cost: `Request.cost`
        self._most_queued = _MOST_QUEUED * config.max_entities
        self._long_messages = asyncio.Semaphore(_MOST_LONG)
        self._faults: Counter[Fault] = Counter()
        self._decisions = self._batches = self._num_clients = 0
        self._has_left = asyncio.Event()
        self._started = time.monotonic()
        self._is_ending = False

    async def run(self, stop: asyncio.Event, started: Callable[[int], None]) -> Served:
        """Serve until `stop` is set; then answer the requests that have come, and end.

        Args:
            stop: ends the server when set.
            started: called with the port when clients can connect.

        Raises:
            ValueError: the address cannot be used.
        """
        config = self._config
        try:
            listener = await asyncio.start_server(self._welcome, config.host, config.port, limit=_CHUNK, backlog=1024)
        except OSError as error:
            reason = error.strerror or error
            raise ValueError(f"host={config.host} port={config.port} cannot be listened on: {reason}") from None
        share_memory()
        started(listener.sockets[0].getsockname()[1])
        with ThreadPoolExecutor(4, thread_name_prefix="serve") as threads:
            forever = self._read_forever, self._fit_forever, self._decide_forever, self._return_memory_forever
            work = [asyncio.create_task(each(threads)) for each in forever]
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait([*work, stopping], return_when=asyncio.FIRST_COMPLETED)
            listener.close()
            self._is_ending = True
            for client in self._clients:
                with suppress(RuntimeError):  # it has just expired
                    if client.timeout is not None:
                        client.timeout.reschedule(0)  # nothing more is received
            if self._clients:
                await asyncio.wait(self._clients.values(), timeout=config.read_seconds)
            tasks = [stopping, *work, *self._clients.values()]
            for task in tasks:
                task.cancel()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(result, Exception):
                    raise result
        return self._served()

    def _served(self) -> Served:
        faults = (self._faults[fault] for fault in ("refused", "slow", "broken"))
        return Served(self._decisions, self._batches, self._num_clients, *faults)

    # ---- one client

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._num_connections += 1
        host, port = (writer.get_extra_info("peername") or ("somewhere", 0))[:2]  # None if it has hung up already
        now = asyncio.get_running_loop().time()
        client = _Client(f"{host}:{port}", reader, writer, MessageReader(self._config.max_message_bytes), now)
        writer.transport.set_write_buffer_limits(0)  # `drain` waits until everything is sent
        try:
            if dropped := self._make_room() or await self._serve(client):
                await self._hang_up(client, dropped)
            else:
                self._say(f"client {client.name} left after {client.decisions:,} decisions")
                if self._is_ending:
                    self._send(client, encode({"type": "error", "message": "the server is ending"}))
                with suppress(OSError, TimeoutError):
                    await asyncio.wait_for(client.writer.drain(), self._config.read_seconds)
                if self._is_ending:
                    await self._await_close(client)
        except asyncio.CancelledError:  # the server is ending
            pass
        finally:
            self._num_connections -= 1
            self._has_left.set()
            if error := client.reader.exception():  # which asyncio keeps, and raises again and again
                error.__traceback__ = None
            if client.writer.transport.get_write_buffer_size():
                client.writer.transport.abort()  # `close` would wait until the client has read everything
            client.writer.close()

    def _make_room(self) -> _Dropped | None:
        """Make room for a new client. Returns why it is refused, if nobody can be dropped for it."""
        if len(self._clients) < self._config.max_clients:
            return None
        before = asyncio.get_running_loop().time() - _HASTE
        for client in self._clients:
            if not client.has_sent_greeting and not client.dropped and client.came < before:
                self._drop(client, _Dropped("slow", "the server is full, and it has not greeted"))
                return None
        return _Dropped("refused", f"the server is full: max_clients={self._config.max_clients}")

    async def _serve(self, client: _Client) -> _Dropped | None:
        """Serve a client until it leaves. Returns why it is to be dropped; None if it has left."""
        task = asyncio.current_task()
        assert task is not None
        self._clients[client] = task
        self._num_clients += 1
        try:
            await self._talk(client)
        except _Dropped as dropped:
            return dropped.anew()
        except ValueError as error:
            return _Dropped("broken", str(error))
        except ConnectionError as error:
            return _Dropped("broken", f"the connection broke: {error.strerror or error}")
        except asyncio.CancelledError:
            if client.dropped is None:
                raise
            task.uncancel()
            return client.dropped
        except Exception as error:  # a bug: the other clients are still served
            traceback.print_exception(error)
            return _Dropped("broken", f"the server failed: {type(error).__name__}: {error}")
        finally:
            del self._clients[client]  # stops answers to the client
            self._reading.forget(client)
            self._fitting.forget(client)
            self._deciding.forget(client)
            client.messages = MessageReader()  # a part of a long message would stay until the connection is closed
            self._end_long_message(client)
        return None

    async def _talk(self, client: _Client) -> None:
        """Read a client's messages, and queue its requests, until it leaves and all of them are answered.

        Raises:
            ProtocolError: the client breaks the protocol.
            _Dropped: the greeting is refused, or the client is too slow.
        """
        is_open = True
        while is_open and (bodies := await self._receive(client)):
            is_open = await self._take(client, bodies)
            bodies = []  # not to be kept while the client says nothing
            # A client that waits for no answer goes on however many requests of others wait.
            while client.unanswered >= _MOST_UNANSWERED or (
                client.unanswered and self._deciding.cost > self._most_queued
            ):
                await self._wait_for_an_answer(client)
            if client.writer.transport.get_write_buffer_size() > _CHUNK:
                await self._wait_until_read(client)
        while client.unanswered:  # it may have said everything and still read
            await self._wait_for_an_answer(client)

    async def _take(self, client: _Client, bodies: Sequence[bytes]) -> bool:
        """Read messages of a client: queue the requests among them, and answer the others. Returns whether the client goes on.

        Raises:
            ProtocolError: the client breaks the protocol.
            _Dropped: the greeting is refused.
        """
        read = asyncio.get_running_loop().create_future()
        self._reading.put(client, _Reading(bodies, client.policy, read), _cost(bodies))
        for message in await read:
            if isinstance(message, _Dropped):
                raise message.anew()
            if isinstance(message, Request):
                assert client.policy is not None
                client.unanswered += 1
                self._deciding.put(client, _Deciding(client.policy, message), message.cost)
            elif not await self._answer_other(client, message, _cost(bodies)):
                return False
        self._end_long_message(client)
        return True

    async def _wait_for_an_answer(self, client: _Client) -> None:
        client.has_been_answered.clear()
        await client.has_been_answered.wait()

    async def _wait_until_read(self, client: _Client) -> None:
        """Wait until a client has read its answers."""
        seconds = self._config.read_seconds
        try:
            await asyncio.wait_for(client.writer.drain(), seconds)
        except TimeoutError:
            raise _Dropped("slow", f"it has not read its answers within read_seconds={seconds:g}") from None

    async def _receive(self, client: _Client) -> list[bytes]:
        """Wait for messages of a client. Returns those that have come, without headers; nothing if the client says no more.

        Raises:
            ProtocolError: a message is too long, or ends in its middle.
            _Dropped: the client is too slow.
        """
        clock = asyncio.get_running_loop().time
        seconds, idle_seconds = self._config.read_seconds, self._config.idle_seconds
        waits_since = clock()
        while not (bodies := _complete(client)):
            if self._is_ending:
                return []
            is_in_message = client.messages.is_in_message
            if is_in_message and not client.has_long_message and (client.messages.next_length() or 0) > _CHUNK:
                asked = clock()
                await self._long_messages.acquire()
                client.has_long_message = True
                waits_since = clock()
                client.came += waits_since - asked
            if client.policy is None:
                deadline, late = client.came + seconds, f"it has not greeted within read_seconds={seconds:g}"
            elif is_in_message:
                deadline = waits_since + seconds
                late = f"it has not ended the message that it began within read_seconds={seconds:g}"
            else:
                deadline, late = waits_since + idle_seconds, f"it has sent nothing for idle_seconds={idle_seconds:g}"
            try:
                async with asyncio.timeout_at(deadline) as client.timeout:
                    data = await client.reader.read(_CHUNK)
            except TimeoutError:
                if not self._is_ending and (is_in_message or not client.unanswered):
                    raise _Dropped("slow", late) from None
                waits_since = clock()
                continue
            finally:
                client.timeout = None
            if not data:
                if is_in_message:
                    raise ProtocolError("it hung up in the middle of a message")
                return []
            if not is_in_message:
                waits_since = clock()
            client.messages.feed(data)
        return bodies

    def _end_long_message(self, client: _Client) -> None:
        if client.has_long_message:
            client.has_long_message = False
            self._long_messages.release()

    async def _answer_other(self, client: _Client, message: Message, cost: float) -> bool:
        """Answer a message that is no request. Returns whether the client goes on.

        Raises:
            ProtocolError: the client breaks the protocol.
            _Dropped: the greeting is refused.
        """
        kind = message["type"]
        if kind == "error":
            self._say(f"client {client.name} reported an error: {message.get('message')!r:.1000}")
        if kind in ("error", "close"):
            return False
        if kind == "health":
            check_parts(message, ("type", "token"), "'health'")
            if client.policy is None:
                self._check_token(message)
            self._send(client, encode(self._health()))
        elif client.policy is None:
            await self._greet(client, message, cost)
        else:
            raise ProtocolError(f"a message of the type {kind!r:.200}; allowed: 'act', 'health', 'close', 'error'")
        return True

    async def _greet(self, client: _Client, greeting: Message, cost: float) -> None:
        if greeting["type"] != "hello":
            raise ProtocolError(f"the first message is {greeting['type']!r:.200}; it must be 'hello' or 'health'")
        if type(greeting.get("protocol")) is not int or greeting["protocol"] != PROTOCOL:
            version = f"version {greeting.get('protocol')!r:.200} of the protocol; this is version {PROTOCOL}"
            raise _Dropped("refused", version)
        self._check_token(greeting)
        check_parts(greeting, ("type", "protocol", "token", "spaces"), "'hello'")
        client.has_sent_greeting = True
        if greeting.get("spaces") is None:
            policy = self._policies.trained
        else:
            fitting = _Fitting(greeting["spaces"], asyncio.get_running_loop().create_future())
            self._fitting.put(client, fitting, cost)
            fitted = await fitting.fitted
            if isinstance(fitted, _Dropped):
                raise fitted.anew()
            policy = fitted
        client.policy = policy
        told = {"checkpoint": str(self._policies.path), "spaces": policy.spaces, "news": policy.news}
        limits = {"max_message_bytes": self._config.max_message_bytes, "max_entities": self._config.max_entities}
        self._send(client, encode({"type": "policy", "protocol": PROTOCOL, **told, **limits}))
        news = f"; its spaces differ from training: {policy.news:.{_MOST_WORDS}}" if policy.news else ""
        self._say(f"client {client.name} came{news}")

    def _check_token(self, message: Message) -> None:
        token, given = self._config.token, message.get("token")
        if token is None:
            return
        if not isinstance(given, str) or not hmac.compare_digest(given.encode(), token.encode()):
            raise _Dropped("refused", "the token is missing or wrong")

    def _health(self) -> Message:
        served = self._served()._asdict()
        about = {"protocol": PROTOCOL, "checkpoint": str(self._policies.path)}
        now = {"seconds": round(time.monotonic() - self._started, 3), "connected": len(self._clients)}
        return {"type": "health", **about, **now, **served}

    async def _hang_up(self, client: _Client, dropped: _Dropped) -> None:
        """Send a client the reason, and close the connection."""
        self._faults[dropped.fault] += 1
        reason = f"{dropped}"[:_MOST_WORDS]
        self._say(f"{'refused' if dropped.fault == 'refused' else 'dropped'} client {client.name}: {reason}")
        self._send(client, encode({"type": "error", "message": reason}))
        if client.writer.is_closing() or self._num_connections > 2 * self._config.max_clients + _MOST_TOLD:
            return
        await self._await_close(client)

    async def _await_close(self, client: _Client) -> None:
        """Read what still comes until the client closes or is silent.

        Closing with unread data would reset the connection, and the client might not receive what was sent last.
        """
        with suppress(OSError, TimeoutError, RuntimeError):
            client.writer.write_eof()
            async with asyncio.timeout(self._config.read_seconds):
                while await asyncio.wait_for(client.reader.read(_CHUNK), _QUIET):
                    pass

    def _send(self, client: _Client, message: bytes) -> None:
        """Send a message. If clients leave too much unread, the one that has left the most is dropped."""
        if client.writer.is_closing():
            return
        client.writer.write(message)
        if client.writer.transport.get_write_buffer_size() <= _CHUNK:
            return
        unread = {each: each.writer.transport.get_write_buffer_size() for each in self._clients}
        if sum(unread.values()) > _MOST_UNREAD * self._config.max_message_bytes:
            most = max(unread, key=lambda each: unread[each])
            self._drop(most, _Dropped("slow", "it does not read its answers"))
            most.writer.transport.abort()  # `close` would wait until the client has read everything

    def _drop(self, client: _Client, dropped: _Dropped) -> None:
        """Let the client's own task disconnect it, without answering its requests."""
        if client in self._clients and client.dropped is None:
            client.dropped = dropped
            self._clients[client].cancel()

    # ---- work of all clients

    async def _read_forever(self, threads: ThreadPoolExecutor) -> None:
        while True:
            turns = await self._reading.take(_MOST_UNANSWERED, _CHUNK)
            jobs = [job for _, job in turns]
            results = await asyncio.get_running_loop().run_in_executor(threads, self._read, jobs)
            for job, messages in zip(jobs, results, strict=True):
                if not job.read.done():  # the client is still there
                    job.read.set_result(messages)
            del turns, jobs, results, job, messages  # or they would stay until somebody sends more

    def _read(self, jobs: Sequence[_Reading]) -> list[list[Message | Request | _Dropped]]:
        """Decode the messages of each job, and check the requests among them. Runs in a thread."""
        return [self._read_one(job) for job in jobs]

    def _read_one(self, job: _Reading) -> list[Message | Request | _Dropped]:
        read: list[Message | Request | _Dropped] = []
        for body in job.bodies:
            try:
                brackets = body.count(b"[") + body.count(b"{")
                if brackets > (most := max(_BRACKETS, _BRACKETS_PER_ENTITY * self._config.max_entities)):
                    raise ProtocolError(f"a message of {brackets:,} lists and objects; at most {most:,} are taken")
                message = decode(body)
                is_request = job.policy is not None and message["type"] == "act"
                read.append(job.policy.read(message) if job.policy and is_request else message)
            except ValueError as error:  # whose text alone is kept: it holds the message, which may be long
                read.append(_Dropped("broken", str(error)))
                break
            except Exception as error:  # a bug, or full memory
                traceback.print_exception(error)
                read.append(_Dropped("broken", f"the server failed: {type(error).__name__}: {error}"))
                break
        return read

    async def _fit_forever(self, threads: ThreadPoolExecutor) -> None:
        while True:
            ((_, job),) = await self._fitting.take(1, 0)
            fitted = await asyncio.get_running_loop().run_in_executor(threads, self._fit, job.spaces)
            if not job.fitted.done():  # the client is still there
                job.fitted.set_result(fitted)
            del job, fitted  # a policy that no client uses any more is removed

    def _fit(self, spaces: object) -> ServedPolicy | _Dropped:
        """Return the policy for a client's spaces, or why there is none. Runs in a thread."""
        try:
            return self._policies.policy(spaces)
        except ValueError as error:
            return _Dropped("refused", str(error))
        except Exception as error:  # a bug, or full memory
            traceback.print_exception(error)
            return _Dropped("broken", f"the server failed: {type(error).__name__}: {error}")

    async def _return_memory_forever(self, threads: ThreadPoolExecutor) -> None:
        while True:
            await self._has_left.wait()
            self._has_left.clear()
            await asyncio.get_running_loop().run_in_executor(threads, return_memory)
            await asyncio.sleep(_RETURNING)

    async def _decide_forever(self, threads: ThreadPoolExecutor) -> None:
        config = self._config
        while True:
            turns = await self._deciding.take(
                config.max_batch, config.max_entities, lambda job: (id(job.policy), job.request.greedy)
            )
            jobs = [job for _, job in turns]
            answers = await asyncio.get_running_loop().run_in_executor(threads, self._decide, jobs)
            self._batches += 1
            for (client, _), answer in zip(turns, answers, strict=True):
                client.unanswered -= 1
                client.has_been_answered.set()
                if client not in self._clients or client.dropped:
                    continue
                if isinstance(answer, _Dropped):
                    self._drop(client, answer)
                else:
                    self._send(client, answer)
                    client.decisions += 1
                    self._decisions += 1
            del turns, jobs, answers, client, answer

    def _decide(self, jobs: Sequence[_Deciding]) -> list[bytes | _Dropped]:
        """Return the answer to each request, or why it alone cannot be answered. Runs in a thread."""
        try:
            # one by one, since an answer with probabilities takes ten times as much memory before it is encoded
            return [encode(answer) for answer in jobs[0].policy.decide([job.request for job in jobs], self._generator)]
        except Exception as error:  # such as full memory
            if len(jobs) > 1:  # one by one, so that only the client whose request fails is dropped
                return [answer for job in jobs for answer in self._decide([job])]
            traceback.print_exception(error)
            return [_Dropped("broken", f"the server could not decide: {type(error).__name__}: {error}")]


def _cost(bodies: Sequence[bytes]) -> float:
    return sum(len(body) + 1 for body in bodies)


def _complete(client: _Client) -> list[bytes]:
    """Return messages of a client that have come in whole, without headers: the first, and more as long as they are short."""
    bodies: list[bytes] = []
    while _cost(bodies) < _CHUNK and (body := client.messages.next_body()) is not None:
        bodies.append(body)
        if client.policy is None:  # the greeting decides how the next messages are read
            break
    return bodies
