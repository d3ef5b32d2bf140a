"""The policy server: chooses actions for programs in any language, by the protocol of docs/protocol.md.

python -m enn_ppo.serve checkpoint=outputs/my_run port=5577

Each client has a task, which takes the questions that the client has sent so far, waits for all answers, and reads on. Questions
of all clients go into one queue. One thread runs the policy: the questions that come during a forward pass are the next batch. A
client's mistake ends its own connection alone.
"""

from __future__ import annotations

import asyncio
import gc
import hmac
import itertools
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from enn_ppo.checkpoints import load_checkpoint
from enn_ppo.checkpoints.policy import select_device
from enn_ppo.serve.agent import TrainedPolicy
from enn_ppo.serve.policy import Request, ServedPolicies
from enn_ppo.settings.serving import ServeConfig, is_loopback
from entity_gym.batch.saving import spaces_to_dict
from entity_gym.bridges.remote.messages import PROTOCOL, Message, MessageReader, ProtocolError, decode, encode
from entity_gym.errors import check_parts

_CHUNK = 2**16  # bytes that are received at once
_MOST_OPEN = 16  # questions of a client that wait for answers; then no more of it is read
_MOST_TOGETHER = 64  # questions in a batch
_LINGER = 2.0  # seconds for which a dropped client is still read
_MOST_WORDS = 2000  # characters of a reason
_ENDING = "the server is ending"

Fault = Literal["refused", "slow", "broken", "ending"]


@dataclass
class Served:
    """Counters of a server."""

    decisions: int = 0
    batches: int = 0
    clients: int = 0
    refused: int = 0  # clients that were turned away, or whose greeting was
    slow: int = 0  # clients that took too long to send or to read
    broken: int = 0  # clients that sent something invalid, or whose connection broke

    def __str__(self) -> str:
        return (
            f"served {self.decisions:,} decisions in {self.batches:,} batches to {self.clients:,} clients; refused "
            f"{self.refused:,}, dropped {self.slow:,} slow and {self.broken:,} broken ones"
        )


class _Dropped(Exception):  # noqa: N818 - reads as a sentence
    """A client is dropped, with this reason."""

    def __init__(self, fault: Fault, reason: str) -> None:
        super().__init__(reason[:_MOST_WORDS])
        self.fault = fault


@dataclass(eq=False)
class _Client:
    name: str
    number: int  # by which a policy remembers
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    messages: MessageReader
    policy: TrainedPolicy | None = None  # None until it has been greeted
    decisions: int = 0
    reading: asyncio.Timeout | None = None  # of the read under way


class _Question(NamedTuple):
    client: int  # its number
    policy: TrainedPolicy
    message: Message
    answer: asyncio.Future[bytes | _Dropped]


class PolicyServer:
    """Answers clients until it is stopped.

    Args:
        config: settings of the server.
        policies: the policy, for the spaces of each client.
        say: prints a line.
    """

    def __init__(self, config: ServeConfig, policies: ServedPolicies, say: Callable[[str], None]) -> None:
        self._config, self._policies, self._say = config, policies, say
        self._clients: dict[_Client, asyncio.Task[None] | None] = {}  # connected clients and their tasks
        self._questions: asyncio.Queue[_Question] = asyncio.Queue()
        self._numbers = itertools.count()
        self._served = Served()
        self._started = time.monotonic()
        self._is_ending = False

    async def run(self, stop: asyncio.Event, started: Callable[[int], None]) -> Served:
        """Serve until `stop` is set; then answer the questions that have come, and end.

        Args:
            stop: ends the server when set.
            started: called with the port when clients can connect.

        Raises:
            ValueError: the address cannot be used.
        """
        config, loop = self._config, asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1, thread_name_prefix="policy"))  # the loop ends it
        try:
            listener = await asyncio.start_server(self._welcome, config.host, config.port, limit=_CHUNK, backlog=1024)
        except OSError as error:
            reason = error.strerror or error
            raise ValueError(f"host={config.host} port={config.port} cannot be listened on: {reason}") from None
        started(listener.sockets[0].getsockname()[1])
        deciding, stopping = asyncio.create_task(self._decide_forever()), asyncio.create_task(stop.wait())
        await asyncio.wait([deciding, stopping], return_when=asyncio.FIRST_COMPLETED)
        listener.close()
        self._is_ending = True
        for client in self._clients:
            if client.reading:
                client.reading.reschedule(loop.time())
        if tasks := [task for task in self._clients.values() if task]:
            await asyncio.wait(tasks, timeout=config.read_seconds)
        if deciding.done():
            deciding.result()  # raises what has ended it
        return self._served

    # ---- one client

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = (writer.get_extra_info("peername") or ("somewhere", 0))[:2]  # None if it has hung up already
        messages = MessageReader(self._config.max_message_bytes)
        client = _Client(f"{host}:{port}", next(self._numbers), reader, writer, messages)
        try:
            dropped = await self._serve(client)
            if client.policy and client.policy.remembers:
                await asyncio.to_thread(client.policy.reset, client.number)
            client.policy = None  # a policy that no client uses any more is removed
            if dropped is None or dropped.fault == "ending":
                self._say(f"client {client.name} left after {client.decisions:,} decisions")
            else:
                setattr(self._served, dropped.fault, getattr(self._served, dropped.fault) + 1)
                self._say(f"{'refused' if dropped.fault == 'refused' else 'dropped'} client {client.name}: {dropped}")
            if dropped:  # tell it why, and read what still comes: closing with unread data would reset the connection
                writer.write(encode({"type": "error", "message": str(dropped)}))
                writer.write_eof()
                async with asyncio.timeout(_LINGER):
                    while await reader.read(_CHUNK):
                        pass
            else:
                writer.transport.set_write_buffer_limits(0)  # `drain` waits until everything is sent
                await asyncio.wait_for(writer.drain(), self._config.read_seconds)
        except (OSError, TimeoutError, asyncio.CancelledError):  # it does not read its answers, or the server is ending
            pass
        finally:
            if writer.transport.get_write_buffer_size():
                writer.transport.abort()  # `close` would wait until the client has read everything
            writer.close()

    async def _serve(self, client: _Client) -> _Dropped | None:
        """Serve a client until it leaves. Returns why it is to be dropped; None if it has left."""
        if len(self._clients) >= self._config.max_clients:
            return _Dropped("refused", f"the server is full: max_clients={self._config.max_clients}")
        self._clients[client] = asyncio.current_task()
        self._served.clients += 1
        try:
            while await self._answer(client):
                pass
            return None
        except _Dropped as dropped:
            return dropped
        except ValueError as error:
            return _Dropped("broken", str(error))
        except ConnectionError as error:
            return _Dropped("broken", f"the connection broke: {error.strerror or error}")
        except Exception as error:  # a bug: the other clients are still served
            traceback.print_exception(error)
            return _Dropped("broken", f"the server failed: {type(error).__name__}: {error}")
        finally:
            del self._clients[client]

    async def _answer(self, client: _Client) -> bool:
        """Wait for a message, answer it and the questions that have come with it, and wait until the client has read.

        Returns:
            False if the client has left.

        Raises:
            _Dropped: the client is too slow, or refused.
            ProtocolError: it breaks the protocol.
        """
        body = await self._receive(client)
        answers: list[asyncio.Future[bytes | _Dropped]] = []
        leaves = body is None
        while body is not None and not leaves:
            message = decode(body)
            if message["type"] == "act" and client.policy is not None:
                answers.append(asyncio.get_running_loop().create_future())
                self._questions.put_nowait(_Question(client.number, client.policy, message, answers[-1]))
            elif message["type"] in ("close", "error"):
                leaves = True
                if message["type"] == "error":
                    self._say(f"client {client.name} reported an error: {message.get('message')!r:.1000}")
            else:
                client.writer.write(encode(await self._reply(client, message)))
            body = client.messages.next_body() if len(answers) < _MOST_OPEN else None
        for future in answers:
            answer = await future
            if isinstance(answer, _Dropped):
                raise answer
            client.writer.write(answer)
            client.decisions += 1
            self._served.decisions += 1
        seconds = self._config.read_seconds
        try:
            async with asyncio.timeout(seconds):
                await client.writer.drain()
        except TimeoutError:
            raise _Dropped("slow", f"it does not read its answers within read_seconds={seconds:g}") from None
        return not leaves

    async def _receive(self, client: _Client) -> bytes | None:
        """The next message of a client; None if it has hung up. See `_answer` for what is raised."""
        messages, config, clock = client.messages, self._config, asyncio.get_running_loop().time
        seconds, late = config.idle_seconds, "sent nothing for idle_seconds"
        if client.policy is None:
            seconds, late = config.read_seconds, "not greeted within read_seconds"
        deadline, has_begun = clock() + seconds, False
        while (body := messages.next_body()) is None:
            if messages.is_in_message and not has_begun:
                has_begun, late = True, "not ended the message that it began within read_seconds"
                seconds = config.read_seconds
                deadline = clock() + seconds
            if self._is_ending:
                raise _Dropped("ending", _ENDING)
            try:
                async with asyncio.timeout_at(deadline) as client.reading:
                    data = await client.reader.read(_CHUNK)
            except TimeoutError:
                late = f"it has {late}={seconds:g}"
                raise (_Dropped("ending", _ENDING) if self._is_ending else _Dropped("slow", late)) from None
            finally:
                client.reading = None
            if not data:
                if has_begun:
                    raise ProtocolError("it hung up in the middle of a message")
                break
            messages.feed(data)
        return body

    async def _reply(self, client: _Client, message: Message) -> Message:
        """The answer to a greeting, or to a question for the server's health.

        Raises:
            ProtocolError: the client breaks the protocol.
            _Dropped: the greeting is refused.
        """
        kind, checkpoint = message["type"], str(self._policies.path)
        if kind == "health":
            check_parts(message, ("type", "token"), "'health'")
            if client.policy is None:
                self._check_token(message)
            now = {"seconds": round(time.monotonic() - self._started, 3), "connected": len(self._clients)}
            return {"type": "health", "protocol": PROTOCOL, "checkpoint": checkpoint, **now, **vars(self._served)}
        if client.policy is not None:
            raise ProtocolError(f"a message of the type {kind!r:.200}; allowed: 'act', 'health', 'close', 'error'")
        if kind != "hello":
            raise ProtocolError(f"the first message is {kind!r:.200}; it must be 'hello' or 'health'")
        if type(message.get("protocol")) is not int or message["protocol"] != PROTOCOL:
            version = f"version {message.get('protocol')!r:.200} of the protocol; this is version {PROTOCOL}"
            raise _Dropped("refused", version)
        self._check_token(message)
        check_parts(message, ("type", "protocol", "token", "spaces"), "'hello'")
        policy = self._policies.trained
        if (spaces := message.get("spaces")) is not None:
            try:
                policy = await asyncio.to_thread(self._policies.policy, spaces)
            except ValueError as error:
                raise _Dropped("refused", str(error)) from None
        client.policy = policy
        news = f"; its spaces differ from training: {policy.news:.{_MOST_WORDS}}" if policy.news else ""
        self._say(f"client {client.name} came{news}")
        told = {"spaces": spaces_to_dict(policy.obs_space, policy.action_space), "news": policy.news}
        limits = {"max_message_bytes": self._config.max_message_bytes, "max_entities": self._config.max_entities}
        return {"type": "policy", "protocol": PROTOCOL, "checkpoint": checkpoint, **told, **limits}

    def _check_token(self, message: Message) -> None:
        token, given = self._config.token, message.get("token")
        if token is None:
            return
        if not isinstance(given, str) or not hmac.compare_digest(given.encode(), token.encode()):
            raise _Dropped("refused", "the token is missing or wrong")

    # ---- the policy

    async def _decide_forever(self) -> None:
        """Answer the questions that have come, all of them in one batch."""
        while True:
            batch = [await self._questions.get()]
            while len(batch) < _MOST_TOGETHER and not self._questions.empty():
                batch.append(self._questions.get_nowait())
            answers = await asyncio.to_thread(self._decide, batch)
            self._served.batches += any(isinstance(answer, bytes) for answer in answers)
            for question, answer in zip(batch, answers, strict=True):
                if not question.answer.done():  # cancelled with the task of its client
                    question.answer.set_result(answer)
            del batch, question  # which would keep the policy of a client that leaves

    def _decide(self, batch: Sequence[_Question]) -> list[bytes | _Dropped]:
        """Return the answer to each question, or why its client is dropped. Runs in the thread of the policy."""
        answers: dict[int, bytes | _Dropped] = {}
        alike: dict[tuple[TrainedPolicy, bool, int], dict[int, Request]] = {}  # a forward pass each
        turns: Counter[int] = Counter()
        for k, (client, policy, message, _) in enumerate(batch):
            turns[client] += policy.remembers  # then one answer depends on the one before
            try:
                request = self._policies.read(policy, message, client)
            except ValueError as error:
                answers[k] = _Dropped("broken", str(error))
            else:
                alike.setdefault((policy, request.greedy, turns[client]), {})[k] = request
        for requests in alike.values():
            answers |= zip(requests, self._decide_together(list(requests.values())), strict=True)
        return [answers[k] for k in range(len(batch))]

    def _decide_together(self, requests: Sequence[Request]) -> list[bytes | _Dropped]:
        """Answer requests in one forward pass; if it fails, one by one, so that only the client at fault is dropped."""
        limit = self._config.max_message_bytes
        too_long = _Dropped("broken", f"the answer does not fit into max_message_bytes={limit:,}; ask for less")
        try:
            answers = [encode(answer) for answer in self._policies.decide(requests)]
        except Exception as error:  # such as full memory
            if len(requests) > 1:
                return [self._decide_together([request])[0] for request in requests]
            traceback.print_exception(error)
            return [_Dropped("broken", f"the server could not decide: {type(error).__name__}: {error}")]
        return [answer if len(answer) <= limit else too_long for answer in answers]


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
        say(f"serving checkpoint {policies.path} on {device} at {config.host}:{port}; Ctrl-C ends it")
        if not is_loopback(config.host):
            say(f"host={config.host} lets other machines connect: they need the token, which is sent unencrypted")

    async def serve_until_stopped() -> Served:
        stop, loop, signals = asyncio.Event(), asyncio.get_running_loop(), (signal.SIGINT, signal.SIGTERM)

        def end() -> None:
            stop.set()
            for number in signals:  # a second signal ends the process at once
                loop.remove_signal_handler(number)

        with suppress(NotImplementedError, RuntimeError, ValueError):  # not in other threads, and not on every system
            for number in signals:
                loop.add_signal_handler(number, end)
        return await PolicyServer(config, policies, say).run(stop, started)

    served = asyncio.run(serve_until_stopped())
    say(str(served))
    return served
