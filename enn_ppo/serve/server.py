"""The policy server: chooses actions for programs in any language, by the protocol of docs/protocol.md.

python -m enn_ppo.serve checkpoint=outputs/my_run port=5577

Each client has two tasks: one reads its messages, the other sends it the answers in the order of the messages. Questions of all
clients go into one queue. One thread runs the policy: the questions that come during a forward pass are the next batch. A mistake
of a client ends its own connection alone.
"""

from __future__ import annotations

import asyncio
import gc
import hmac
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from enn_ppo.checkpoints import load_checkpoint
from enn_ppo.checkpoints.policy import select_device
from enn_ppo.serve.agent import TrainedPolicy
from enn_ppo.serve.policy import MAX_ENTITIES, Request, ServedPolicies
from enn_ppo.settings.serving import ServeConfig, is_loopback
from entity_gym.batch.saving import spaces_to_dict
from entity_gym.bridges.remote.messages import (
    HEADER_BYTES,
    PROTOCOL,
    Message,
    ProtocolError,
    body_length,
    decode,
    encode,
)
from entity_gym.errors import check_parts

MAX_MESSAGE_BYTES = 2**20  # of a message, of a client and to it
READ_SECONDS = 30.0  # for a greeting, for the rest of a message that has begun, for reading an answer, and for ending
IDLE_SECONDS = 600.0  # for a greeted client that sends nothing and waits for no answer
_MOST_OPEN = 2  # messages of a client that wait for answers; then no more of it is read
_MOST_TOGETHER = 64  # questions in a batch
_LINGER = 2.0  # seconds for which a dropped client is still read
_MOST_WORDS = 2000  # characters of a reason
_ENDING = "the server is ending"

#: The bytes of an answer, or the reason why the client is dropped.
_Answer = bytes | str
_Question = tuple[Request, asyncio.Future[_Answer]]


@dataclass
class Served:
    """Counters of a server."""

    decisions: int = 0
    batches: int = 0  # forward passes
    clients: int = 0
    dropped: int = 0  # clients that were refused, took too long, sent something invalid, or whose connection broke


@dataclass(eq=False)
class _Client:
    name: str
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    #: The answers to its messages in their order; at the end why it is dropped, or None if it has left.
    answers: asyncio.Queue[asyncio.Future[_Answer] | _Answer | None] = field(default_factory=asyncio.Queue)
    room: asyncio.Semaphore = field(default_factory=partial(asyncio.Semaphore, _MOST_OPEN))  # acquired for each answer
    number: int = 0  # by which a policy remembers it


class PolicyServer:
    """Answers clients until it is stopped.

    Args:
        config: settings of the server.
        policies: the policy, for the spaces of each client.
        say: prints a line.
    """

    def __init__(self, config: ServeConfig, policies: ServedPolicies, say: Callable[[str], None]) -> None:
        self._config, self._policies, self._say = config, policies, say
        self._clients: dict[asyncio.Task[None], asyncio.Task[None] | None] = {}  # the tasks that read -> that send
        self._questions: asyncio.Queue[_Question] = asyncio.Queue()
        self._served = Served()
        self._started = time.monotonic()
        self._about = {"protocol": PROTOCOL, "checkpoint": str(policies.path)}

    async def run(self, started: Callable[[int], None]) -> Served:
        """Serve until this task is cancelled; then answer the questions that have come, and end.

        Args:
            started: called with the port when clients can connect.

        Raises:
            ValueError: the address cannot be used.
        """
        config = self._config
        executor = ThreadPoolExecutor(1, thread_name_prefix="policy")  # the loop ends it
        asyncio.get_running_loop().set_default_executor(executor)
        try:
            listener = await asyncio.start_server(self._welcome, config.host, config.port, backlog=1024)
        except OSError as error:
            reason = error.strerror or error
            raise ValueError(f"host={config.host} port={config.port} cannot be listened on: {reason}") from None
        started(listener.sockets[0].getsockname()[1])
        deciding = asyncio.create_task(self._decide_forever())
        with suppress(asyncio.CancelledError):
            await asyncio.wait([deciding])
            deciding.result()  # raises what has ended it
        listener.close()
        for reading in self._clients:
            reading.cancel()
        with suppress(asyncio.CancelledError):  # a second time: no more is answered
            if sending := [task for task in self._clients.values() if task]:
                await asyncio.wait(sending, timeout=READ_SECONDS)
        return self._served

    # ---- one client

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = (writer.get_extra_info("peername") or ("somewhere", 0))[:2]  # None if it has hung up already
        client = _Client(f"client {host}:{port}", reader, writer)
        writer.transport.set_write_buffer_limits(0)  # `drain` waits until everything is sent
        try:
            why = await self._serve(client)
            if why is None or why == _ENDING:
                self._say(f"{client.name} left")
            else:
                self._served.dropped += 1
                self._say(f"dropped {client.name}: {why:.{_MOST_WORDS}}")
            if why:  # tell it why, and read what still comes: closing with unread data would reset the connection
                writer.write(encode({"type": "error", "message": why[:_MOST_WORDS]}))
                writer.write_eof()
                async with asyncio.timeout(_LINGER):
                    while await reader.read(2**16):
                        pass
        except (OSError, TimeoutError, asyncio.CancelledError):  # it does not hang up, or the server is ending
            pass
        finally:
            writer.transport.abort()  # `close` would wait until the client has read everything

    async def _serve(self, client: _Client) -> str | None:
        """Send a client its answers until it leaves. Returns why it is dropped; None if it has left."""
        if len(self._clients) >= self._config.max_clients:
            return f"the server is full: max_clients={self._config.max_clients}"
        self._served.clients += 1
        client.number = self._served.clients
        reading = asyncio.create_task(self._read(client))
        self._clients[reading] = asyncio.current_task()
        try:
            while True:
                answer = await client.answers.get()
                if isinstance(answer, asyncio.Future):
                    answer = await answer
                if not isinstance(answer, bytes):
                    return answer
                client.writer.write(answer)
                async with asyncio.timeout(READ_SECONDS):
                    await client.writer.drain()
                client.room.release()
        except TimeoutError:
            return f"it does not read its answers within {READ_SECONDS:g} s"
        except ConnectionError as error:
            return _reason(error)
        finally:
            reading.cancel()
            del self._clients[reading]

    async def _read(self, client: _Client) -> None:
        """Read the messages of a client until it leaves, and put the answers into its queue."""
        policy: TrainedPolicy | None = None  # None until the client has been greeted
        future: asyncio.Future[_Answer] | None = None  # the answer to its last question
        end: str | None = None
        try:
            while (message := await self._receive(client.reader, policy is not None, future)) is not None:
                kind = message["type"]
                if kind == "act" and policy is not None:
                    request = self._policies.read(policy, message, client.number)
                    future = asyncio.get_running_loop().create_future()
                    self._questions.put_nowait((request, future))
                    client.answers.put_nowait(future)
                elif kind == "hello" and policy is None:
                    policy = await self._greet(message)
                    news = f"; its spaces differ from training: {policy.news:.{_MOST_WORDS}}" if policy.news else ""
                    self._say(f"{client.name} came{news}")
                    spaces = spaces_to_dict(policy.obs_space, policy.action_space)
                    limits = {"max_message_bytes": MAX_MESSAGE_BYTES, "max_entities": MAX_ENTITIES}
                    offer = {"type": "policy", **self._about, "spaces": spaces, "news": policy.news, **limits}
                    client.answers.put_nowait(encode(offer))
                elif kind == "health":
                    client.answers.put_nowait(encode(self._health(message, policy is not None)))
                elif kind in ("close", "error"):
                    if kind == "error":
                        self._say(f"{client.name} reported an error: {message.get('message')!r:.1000}")
                    break
                else:
                    allowed = f"{'hello' if policy is None else 'act'!r}, 'health', 'close', 'error'"
                    raise ProtocolError(f"a message of the type {kind!r:.200}; allowed: {allowed}")
                await client.room.acquire()
        except asyncio.CancelledError:
            end = _ENDING
        except Exception as error:
            end = _reason(error)
        if policy is not None and policy.remembers:
            if future is not None:
                await future  # after which the policy remembers it no more
            await asyncio.to_thread(policy.reset, client.number)
        client.answers.put_nowait(end)

    async def _receive(
        self, reader: asyncio.StreamReader, is_greeted: bool, last: asyncio.Future[_Answer] | None
    ) -> Message | None:
        """The next message of a client; None if it has hung up. `last` is the answer to its last question.

        Raises:
            ValueError: the client takes too long, or sends something that is no message.
        """
        header, seconds, late = b"", READ_SECONDS, "not greeted within"
        if is_greeted:
            seconds, late = IDLE_SECONDS, "sent nothing for"
        try:
            async with asyncio.timeout(seconds):
                header = await reader.readexactly(1)
            seconds, late = READ_SECONDS, "not ended the message that it began within"
            async with asyncio.timeout(seconds):
                header += await reader.readexactly(HEADER_BYTES - 1)
                return decode(await reader.readexactly(body_length(header, MAX_MESSAGE_BYTES)))
        except TimeoutError:
            if not header and last is not None and not last.done():  # it waits for the answer
                return await self._receive(reader, is_greeted, last)
            raise ValueError(f"it has {late} {seconds:g} s") from None
        except asyncio.IncompleteReadError:
            if header:
                raise ProtocolError("it hung up in the middle of a message") from None
            return None

    async def _greet(self, message: Message) -> TrainedPolicy:
        """The policy in the spaces of a greeting."""
        version = message.get("protocol")
        if type(version) is not int or version != PROTOCOL:
            raise ProtocolError(f"version {version!r:.200} of the protocol; this is version {PROTOCOL}")
        self._check_token(message)
        check_parts(message, ("type", "protocol", "token", "spaces"), "'hello'")
        return await asyncio.to_thread(self._policies.policy, message.get("spaces"))

    def _health(self, message: Message, is_greeted: bool) -> Message:
        check_parts(message, ("type", "token"), "'health'")
        if not is_greeted:
            self._check_token(message)
        now = {"seconds": round(time.monotonic() - self._started, 3), "connected": len(self._clients)}
        return {"type": "health", **self._about, **now, **vars(self._served)}

    def _check_token(self, message: Message) -> None:
        token, given = self._config.token, message.get("token")
        if token is not None and not (isinstance(given, str) and hmac.compare_digest(given.encode(), token.encode())):
            raise ProtocolError("the token is missing or wrong")

    # ---- the policy

    async def _decide_forever(self) -> None:
        while True:
            await self._answer([await self._questions.get()])

    async def _answer(self, questions: list[_Question]) -> None:
        """Answer a question, and those that have come with it, in one batch."""
        while len(questions) < _MOST_TOGETHER and not self._questions.empty():
            questions.append(self._questions.get_nowait())
        alike: dict[tuple[TrainedPolicy, bool, int], list[_Question]] = {}  # a forward pass each
        turns: Counter[int] = Counter()  # client -> its questions so far, if one answer depends on that before
        for question in questions:
            policy, client = question[0].policy, int(question[0].obs.env_id[0])
            turns[client] += policy.remembers
            alike.setdefault((policy, question[0].greedy, turns[client]), []).append(question)
        for _, together in sorted(alike.items(), key=lambda each: each[0][2]):
            answers = await asyncio.to_thread(self._decide, [request for request, _ in together])
            for (_, future), answer in zip(together, answers, strict=True):
                future.set_result(answer)
            self._served.batches += 1
            self._served.decisions += sum(isinstance(answer, bytes) for answer in answers)

    def _decide(self, requests: Sequence[Request]) -> list[_Answer]:
        """Answer requests in one forward pass; if it fails, one by one, so that only the client at fault is dropped."""
        too_long = f"the answer is longer than {MAX_MESSAGE_BYTES:,} bytes; ask for less"
        try:
            answers = [encode(answer) for answer in self._policies.decide(requests)]
        except Exception as error:  # such as full memory
            if len(requests) > 1:
                return [self._decide([request])[0] for request in requests]
            traceback.print_exception(error)
            return [f"the server could not decide: {type(error).__name__}: {error}"]
        return [answer if len(answer) <= MAX_MESSAGE_BYTES else too_long for answer in answers]


def _reason(error: Exception) -> str:
    """Why an error drops a client. An error of the server itself is printed: the other clients are still served."""
    if isinstance(error, ValueError):
        return str(error)
    if isinstance(error, ConnectionError):
        return f"the connection broke: {error.strerror or error}"
    traceback.print_exception(error)
    return f"the server failed: {type(error).__name__}: {error}"


def serve(config: ServeConfig, say: Callable[[str], None] | None = None) -> Served:
    """Answer clients until Ctrl-C or SIGTERM comes.

    Args:
        config: every setting.
        say: prints a line for the user; None: on standard output, flushed.

    Returns:
        Counters of clients, decisions and batches.

    Raises:
        ValueError: a setting or the checkpoint is invalid, or the address cannot be listened on.
    """
    say, device = say or partial(print, flush=True), select_device(config.device)
    policies = ServedPolicies(load_checkpoint(Path(config.checkpoint)), device, config)
    policies.warm_up()
    gc.freeze()  # a long message starts many collections, which need not look at what has been loaded so far

    def started(port: int) -> None:
        serving = asyncio.current_task()
        assert serving is not None
        with suppress(NotImplementedError, RuntimeError, ValueError):  # not in other threads, and not on every system
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
        say(f"serving checkpoint {policies.path} on {device} at {config.host}:{port}; Ctrl-C ends it")
        if not is_loopback(config.host):
            say(f"host={config.host} lets other machines connect: they need the token, which is sent unencrypted")

    served = asyncio.run(PolicyServer(config, policies, say).run(started))
    say("served " + ", ".join(f"{count:,} {name}" for name, count in vars(served).items()))
    return served
