"""Connections of the policy server. Requests are answered in batches; a mistake of a client ends its own connection alone.

The event loop reads the clients' messages and puts their requests into one queue. One thread runs the policy: the requests that
come during a forward pass are the next batch. Between two batches that thread does one piece of other work, if there is some: it
reads a long message, or fits the policy to new spaces.

Memory is bounded whatever clients send: while a client has many unanswered requests, or the queue is long, no more of it is read.
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

from enn_ppo.serve.policy import Request, ServedPolicies, ServedPolicy
from enn_ppo.settings.serving import ServeConfig
from entity_gym.bridges.remote.messages import PROTOCOL, Message, MessageReader, ProtocolError, decode, encode
from entity_gym.errors import check_parts

_CHUNK = 2**16  # bytes that are received at once; longer messages are read in the thread of the policy
_MOST_UNANSWERED = 256  # requests of one client; reading pauses at this limit
# Times `max_entities`: while requests that cost more are in the queue, clients with some among them pause.
_MOST_QUEUED = 4
_MOST_UNREAD = 8  # times `max_message_bytes` that a client may leave unread
_MOST_TOLD = 64  # connections above twice `max_clients` that may still be told why they are dropped
_QUIET = 1.0  # seconds without data after which a dropped client's connection is closed
_HASTE = 1.0  # seconds after which a client that has not greeted makes room for another one
_MOST_WORDS = 2000  # characters of a reason

Fault = Literal["refused", "slow", "broken", "ending"]


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
    """A client is dropped, with this reason."""

    def __init__(self, fault: Fault, reason: str) -> None:
        super().__init__(reason)
        self.fault = fault


@dataclass(eq=False)
class _Client:
    name: str
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    messages: MessageReader
    came: float  # on the clock of the event loop
    policy: ServedPolicy | None = None  # None until it has been greeted
    is_greeting: bool = False  # its greeting has come
    turn: float = 0.0  # of its last request
    unanswered: int = 0
    has_been_answered: asyncio.Event = field(default_factory=asyncio.Event)
    decisions: int = 0
    dropped: _Dropped | None = None  # set by another task that drops the client


class _Question(NamedTuple):
    """A request of a client that waits for the policy; the smallest is answered first."""

    turn: float
    number: int  # of all questions so far: equal turns are answered in the order of their arrival
    client: _Client
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
        self._clients: dict[_Client, asyncio.Task[None]] = {}
        self._num_connections = 0  # with those of dropped clients that are told the reason
        # Self-clocked fair queueing (Golestani, 1994): a request's turn is that of its client's last one plus its cost, so a
        # client that asks for little does not wait for those that ask for much.
        self._questions: asyncio.PriorityQueue[_Question] = asyncio.PriorityQueue()
        self._turn = 0.0  # of the question that was taken last
        self._num_questions = 0
        self._queued = 0.0  # cost of all questions in the queue
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="policy")
        self._other_work = asyncio.Lock()  # of that thread: one piece between two batches
        self._faults: Counter[Fault] = Counter()
        self._decisions = self._batches = self._num_clients = 0
        self._started = time.monotonic()

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
        started(listener.sockets[0].getsockname()[1])
        with self._thread:
            deciding, stopping = asyncio.create_task(self._decide_forever()), asyncio.create_task(stop.wait())
            await asyncio.wait([deciding, stopping], return_when=asyncio.FIRST_COMPLETED)
            listener.close()
            clients = list(self._clients.values())
            for client in self._clients:
                self._drop(client, _Dropped("ending", "the server is ending"))
            if clients:
                await asyncio.wait(clients, timeout=config.read_seconds)
            tasks = [stopping, deciding, *clients]
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
        writer.transport.set_write_buffer_limits(_CHUNK)
        try:
            if dropped := self._make_room() or await self._serve(client):
                await self._hang_up(client, dropped)
            else:
                self._say(f"client {client.name} left after {client.decisions:,} decisions")
                writer.transport.set_write_buffer_limits(0)  # `drain` waits until everything is sent
                await asyncio.wait_for(writer.drain(), self._config.read_seconds)
        except (OSError, TimeoutError, asyncio.CancelledError):  # it does not read its answers, or the server is ending
            pass
        finally:
            self._num_connections -= 1
            if writer.transport.get_write_buffer_size():
                writer.transport.abort()  # `close` would wait until the client has read everything
            writer.close()

    def _make_room(self) -> _Dropped | None:
        """Make room for a new client. Returns why it is refused, if nobody can be dropped for it."""
        if len(self._clients) < self._config.max_clients:
            return None
        before = asyncio.get_running_loop().time() - _HASTE
        for client in self._clients:
            if not client.is_greeting and not client.dropped and client.came < before:
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
            return dropped
        except ValueError as error:
            return _Dropped("broken", str(error))
        except ConnectionError as error:
            return _Dropped("broken", f"the connection broke: {error.strerror or error}")
        except asyncio.CancelledError:
            if client.dropped is None:
                raise
            task.uncancel()
            if client.dropped.fault == "ending":
                await self._wait_for_answers(client)
            return client.dropped
        except Exception as error:  # a bug: the other clients are still served
            traceback.print_exception(error)
            return _Dropped("broken", f"the server failed: {type(error).__name__}: {error}")
        finally:
            del self._clients[client]  # stops answers to the client
            client.policy = None  # a policy that no client uses any more is removed
        return None

    async def _talk(self, client: _Client) -> None:
        """Read a client's messages, and queue its requests, until it leaves and all of them are answered.

        Raises:
            ValueError: the client sends an invalid message.
            _Dropped: the greeting is refused, or the client is too slow.
        """
        seconds = self._config.read_seconds
        while await self._take_next(client):
            try:
                async with asyncio.timeout(seconds):
                    await client.writer.drain()
            except TimeoutError:
                raise _Dropped("slow", f"it has not read its answers within read_seconds={seconds:g}") from None
            await asyncio.sleep(0)  # other clients have their turn before the next message that has come already
        await self._wait_for_answers(client)  # it may have said everything and still read

    async def _take_next(self, client: _Client) -> bool:
        """Wait for the next message of a client; queue or answer it. Returns whether the client goes on. Errors as in `_talk`."""
        body = await self._receive(client)
        if body is None:
            return False
        if len(body) <= _CHUNK:
            message = _read(body, client.policy)
        else:
            async with self._other_work:
                loop = asyncio.get_running_loop()
                message = await loop.run_in_executor(self._thread, _read, body, client.policy)
        if isinstance(message, Request):
            await self._ask(client, message)
            return True
        return await self._answer_other(client, message)

    async def _ask(self, client: _Client, request: Request) -> None:
        """Put a client's request into the queue, and wait while the client has too many there."""
        assert client.policy is not None
        client.turn = max(client.turn, self._turn) + request.cost
        self._questions.put_nowait(_Question(client.turn, self._num_questions, client, client.policy, request))
        self._num_questions += 1
        self._queued += request.cost
        client.unanswered += 1
        # A client that waits for no answer goes on however many requests of others are in the queue.
        while client.unanswered >= _MOST_UNANSWERED or (
            client.unanswered and self._queued > _MOST_QUEUED * self._config.max_entities
        ):
            client.has_been_answered.clear()
            await client.has_been_answered.wait()

    async def _wait_for_answers(self, client: _Client) -> None:
        while client.unanswered:
            client.has_been_answered.clear()
            await client.has_been_answered.wait()

    async def _receive(self, client: _Client) -> bytes | None:
        """Wait for the next message of a client, without its header. Returns None if the client says no more.

        Raises:
            ProtocolError: a message is too long, or ends in its middle.
            _Dropped: the client is too slow.
        """
        clock = asyncio.get_running_loop().time
        seconds, idle_seconds = self._config.read_seconds, self._config.idle_seconds
        waits_since = clock()
        while (body := client.messages.next_body()) is None:
            is_in_message = client.messages.is_in_message
            if client.policy is None:
                deadline, late = client.came + seconds, f"it has not greeted within read_seconds={seconds:g}"
            elif is_in_message:
                deadline = waits_since + seconds
                late = f"it has not ended the message that it began within read_seconds={seconds:g}"
            else:
                deadline, late = waits_since + idle_seconds, f"it has sent nothing for idle_seconds={idle_seconds:g}"
            try:
                async with asyncio.timeout_at(deadline):
                    data = await client.reader.read(_CHUNK)
            except TimeoutError:
                if is_in_message or not client.unanswered:
                    raise _Dropped("slow", late) from None
                waits_since = clock()
                continue
            if not data:
                if is_in_message:
                    raise ProtocolError("it hung up in the middle of a message")
                return None
            if not is_in_message:
                waits_since = clock()
            client.messages.feed(data)
        return body

    async def _answer_other(self, client: _Client, message: Message) -> bool:
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
            await self._greet(client, message)
        else:
            raise ProtocolError(f"a message of the type {kind!r:.200}; allowed: 'act', 'health', 'close', 'error'")
        return True

    async def _greet(self, client: _Client, greeting: Message) -> None:
        if greeting["type"] != "hello":
            raise ProtocolError(f"the first message is {greeting['type']!r:.200}; it must be 'hello' or 'health'")
        if type(greeting.get("protocol")) is not int or greeting["protocol"] != PROTOCOL:
            version = f"version {greeting.get('protocol')!r:.200} of the protocol; this is version {PROTOCOL}"
            raise _Dropped("refused", version)
        self._check_token(greeting)
        check_parts(greeting, ("type", "protocol", "token", "spaces"), "'hello'")
        client.is_greeting = True
        policy = self._policies.trained
        if (spaces := greeting.get("spaces")) is not None:
            loop = asyncio.get_running_loop()
            try:
                async with self._other_work:
                    policy = await loop.run_in_executor(self._thread, self._policies.policy, spaces)
            except ValueError as error:
                raise _Dropped("refused", str(error)) from None
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
        """Send a client the reason, and read what still comes until the client closes or is silent.

        Closing with unread data would reset the connection, and the client might not receive what was sent last.
        """
        reason = f"{dropped}"[:_MOST_WORDS]
        if dropped.fault == "ending":
            self._say(f"client {client.name} left after {client.decisions:,} decisions")
        else:
            self._faults[dropped.fault] += 1
            self._say(f"{'refused' if dropped.fault == 'refused' else 'dropped'} client {client.name}: {reason}")
        self._send(client, encode({"type": "error", "message": reason}))
        if client.writer.is_closing() or self._num_connections > 2 * self._config.max_clients + _MOST_TOLD:
            return
        with suppress(OSError, TimeoutError, RuntimeError):
            client.writer.write_eof()
            async with asyncio.timeout(self._config.read_seconds):
                while await asyncio.wait_for(client.reader.read(_CHUNK), _QUIET):
                    pass

    def _send(self, client: _Client, message: bytes) -> None:
        """Send a message; a client that leaves too much unread is dropped."""
        if client.writer.is_closing():
            return
        client.writer.write(message)
        if client.writer.transport.get_write_buffer_size() > _MOST_UNREAD * self._config.max_message_bytes:
            self._drop(client, _Dropped("slow", "it does not read its answers"))
            client.writer.transport.abort()  # `close` would wait until the client has read everything

    def _drop(self, client: _Client, dropped: _Dropped) -> None:
        """Let the client's own task disconnect it."""
        if client in self._clients and client.dropped is None:
            client.dropped = dropped
            self._clients[client].cancel()

    # ---- the policy

    async def _decide_forever(self) -> None:
        while True:
            await self._decide_batch(await self._next_batch())

    async def _next_batch(self) -> list[_Question]:
        """Wait for a question, and return it with those that have come after it."""
        batch: list[_Question] = []
        cost = 0.0
        while not batch or (len(batch) < self._config.max_batch and cost < self._config.max_entities):
            if batch and self._questions.empty():
                break
            question = await self._questions.get()
            self._turn = max(self._turn, question.turn)
            self._queued -= question.request.cost
            cost += question.request.cost
            batch.append(question)
        return batch

    async def _decide_batch(self, batch: Sequence[_Question]) -> None:
        """Answer questions with one forward pass for each policy, greedy or not."""
        alike: dict[tuple[int, bool], list[_Question]] = {}
        for question in batch:
            if question.client in self._clients:
                alike.setdefault((id(question.policy), question.request.greedy), []).append(question)
        for questions in alike.values():
            answers = await asyncio.get_running_loop().run_in_executor(self._thread, self._decide, questions)
            self._batches += 1
            for question, answer in zip(questions, answers, strict=True):
                self._answer(question.client, answer)

    def _answer(self, client: _Client, answer: bytes | _Dropped) -> None:
        client.unanswered -= 1
        client.has_been_answered.set()
        if client not in self._clients:
            return
        if isinstance(answer, _Dropped):
            self._drop(client, answer)
        else:
            self._send(client, answer)
            client.decisions += 1
            self._decisions += 1

    def _decide(self, questions: Sequence[_Question]) -> list[bytes | _Dropped]:
        """Return the answer to each question, or why it alone cannot be answered. Runs in the thread of the policy."""
        try:
            # one by one, since an answer with probabilities takes ten times as much memory before it is encoded
            requests = [question.request for question in questions]
            return [encode(answer) for answer in questions[0].policy.decide(requests)]
        except Exception as error:  # such as full memory
            if len(questions) > 1:  # one by one, so that only the client whose request fails is dropped
                return [answer for question in questions for answer in self._decide([question])]
            traceback.print_exception(error)
            return [_Dropped("broken", f"the server could not decide: {type(error).__name__}: {error}")]


def _read(body: bytes, policy: ServedPolicy | None) -> Message | Request:
    """Decode a message, and check it if it is a request of a client that has been greeted."""
    message = decode(body)
    return policy.read(message) if policy is not None and message["type"] == "act" else message
