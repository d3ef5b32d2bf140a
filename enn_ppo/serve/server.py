"""The policy server: chooses actions for programs in any language, by the protocol of docs/protocol.md.

python -m enn_ppo.serve checkpoint=outputs/my_run port=5577

The event loop reads the clients' messages and puts their questions into one queue. One thread runs the policy: the questions that
come during a forward pass are the next batch. A client with many open questions is not read. A client's mistake ends its own
connection alone.
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
from typing import Literal, NamedTuple

from enn_ppo.checkpoints import load_checkpoint
from enn_ppo.checkpoints.policy import select_device
from enn_ppo.serve.policy import Request, ServedPolicies, ServedPolicy
from enn_ppo.settings.serving import ServeConfig, is_loopback
from entity_gym.bridges.remote.messages import PROTOCOL, Message, MessageReader, ProtocolError, decode, encode
from entity_gym.errors import check_parts

_CHUNK = 2**16  # bytes that are received at once
_MOST_OPEN = 16  # questions of a client without an answer; then no more of it is read
_MOST_TOGETHER = 64  # questions in a batch
_LINGER = 2.0  # seconds for which a dropped client is still read
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
    policy: ServedPolicy | None = None  # None until it has been greeted
    open: int = 0  # questions without an answer
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    decisions: int = 0
    dropped: _Dropped | None = None  # why another task has cancelled the client's

    async def wait_for_answers(self, most: int = 0) -> None:
        """Wait until at most so many questions have no answer."""
        while self.open > most:
            self.answered.clear()
            await self.answered.wait()


class _Question(NamedTuple):
    client: _Client
    policy: ServedPolicy
    message: Message


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
        self._questions: asyncio.Queue[_Question] = asyncio.Queue()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="policy")
        self._faults: Counter[Fault] = Counter()
        self._decisions = self._batches = self._num_clients = 0
        self._started = time.monotonic()

    async def run(self, stop: asyncio.Event, started: Callable[[int], None]) -> Served:
        """Serve until `stop` is set; then answer the questions that have come, and end.

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
            for client in list(self._clients):
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
        host, port = (writer.get_extra_info("peername") or ("somewhere", 0))[:2]  # None if it has hung up already
        client = _Client(f"{host}:{port}", reader, writer, MessageReader(self._config.max_message_bytes))
        try:
            if dropped := await self._serve(client):
                await self._hang_up(client, dropped)
            else:
                self._say(f"client {client.name} left after {client.decisions:,} decisions")
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
        task = asyncio.current_task()
        assert task is not None
        self._clients[client] = task
        self._num_clients += 1
        seconds = self._config.read_seconds
        try:
            while (message := await self._receive(client)) and await self._take(client, message):
                try:
                    async with asyncio.timeout(seconds):
                        await client.writer.drain()
                except TimeoutError:
                    raise _Dropped("slow", f"it does not read its answers within read_seconds={seconds:g}") from None
                await asyncio.sleep(0)  # other clients have their turn before the next message that has come already
            await client.wait_for_answers()  # it may have said everything and still read
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
                await client.wait_for_answers()
            return client.dropped
        except Exception as error:  # a bug: the other clients are still served
            traceback.print_exception(error)
            return _Dropped("broken", f"the server failed: {type(error).__name__}: {error}")
        finally:
            del self._clients[client]  # stops answers to the client
            client.policy = None  # a policy that no client uses any more is removed
        return None

    async def _receive(self, client: _Client) -> Message | None:
        """The next message of a client; None if it has hung up.

        Raises:
            ProtocolError: the client sends an invalid message.
            _Dropped: it is too slow.
        """
        clock, config, deadline = asyncio.get_running_loop().time, self._config, 0.0
        while (body := client.messages.next_body()) is None:
            begun = client.messages.is_in_message
            if not deadline:
                name = "read_seconds" if begun or client.policy is None else "idle_seconds"
                deadline = clock() + getattr(config, name)
            try:
                async with asyncio.timeout_at(deadline):
                    data = await client.reader.read(_CHUNK)
            except TimeoutError:
                if begun or not client.open:
                    late = "sent nothing for" if name == "idle_seconds" else "not greeted within"
                    late = "not ended the message that it began within" if begun else late
                    raise _Dropped("slow", f"it has {late} {name}={getattr(config, name):g}") from None
                deadline = 0.0  # it waits for an answer
                continue
            if not data:
                if begun:
                    raise ProtocolError("it hung up in the middle of a message")
                return None
            if not begun:
                deadline = 0.0  # the message that begins has its own
            client.messages.feed(data)
        return decode(body)

    async def _take(self, client: _Client, message: Message) -> bool:
        """Queue or answer a client's message. Returns whether the client goes on.

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
            client.writer.write(encode(self._health()))
        elif client.policy is None:
            await self._greet(client, message)
        elif kind == "act":
            self._questions.put_nowait(_Question(client, client.policy, message))
            client.open += 1
            await client.wait_for_answers(_MOST_OPEN - 1)
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
        policy = self._policies.trained
        if (spaces := greeting.get("spaces")) is not None:
            try:
                policy = await asyncio.get_running_loop().run_in_executor(self._thread, self._policies.policy, spaces)
            except ValueError as error:
                raise _Dropped("refused", str(error)) from None
        client.policy = policy
        told = {"checkpoint": str(self._policies.path), "spaces": policy.spaces, "news": policy.news}
        limits = {"max_message_bytes": self._config.max_message_bytes, "max_entities": self._config.max_entities}
        client.writer.write(encode({"type": "policy", "protocol": PROTOCOL, **told, **limits}))
        news = f"; its spaces differ from training: {policy.news:.{_MOST_WORDS}}" if policy.news else ""
        self._say(f"client {client.name} came{news}")

    def _check_token(self, message: Message) -> None:
        token, given = self._config.token, message.get("token")
        if token is None:
            return
        if not isinstance(given, str) or not hmac.compare_digest(given.encode(), token.encode()):
            raise _Dropped("refused", "the token is missing or wrong")

    def _health(self) -> Message:
        about = {"protocol": PROTOCOL, "checkpoint": str(self._policies.path)}
        now = {"seconds": round(time.monotonic() - self._started, 3), "connected": len(self._clients)}
        return {"type": "health", **about, **now, **self._served()._asdict()}

    def _drop(self, client: _Client, dropped: _Dropped) -> None:
        """Let the client's own task disconnect it."""
        if client in self._clients and client.dropped is None:
            client.dropped = dropped
            self._clients[client].cancel()

    async def _hang_up(self, client: _Client, dropped: _Dropped) -> None:
        """Send a client the reason, and read what still comes: closing with unread data would reset the connection."""
        reason = f"{dropped}"[:_MOST_WORDS]
        if dropped.fault == "ending":
            self._say(f"client {client.name} left after {client.decisions:,} decisions")
        else:
            self._faults[dropped.fault] += 1
            self._say(f"{'refused' if dropped.fault == 'refused' else 'dropped'} client {client.name}: {reason}")
        client.writer.write(encode({"type": "error", "message": reason}))
        client.writer.write_eof()
        async with asyncio.timeout(_LINGER):
            while await client.reader.read(_CHUNK):
                pass

    # ---- the policy

    async def _decide_forever(self) -> None:
        """Answer the questions that have come, all of them in one batch."""
        while True:
            batch = [await self._questions.get()]
            while len(batch) < _MOST_TOGETHER and not self._questions.empty():
                batch.append(self._questions.get_nowait())
            batch = [question for question in batch if question.client in self._clients]
            answers = await asyncio.get_running_loop().run_in_executor(self._thread, self._decide, batch)
            self._batches += any(isinstance(answer, bytes) for answer in answers)
            for (client, _, _), answer in zip(batch, answers, strict=True):
                client.open -= 1
                client.answered.set()
                if isinstance(answer, _Dropped):
                    self._drop(client, answer)
                elif client in self._clients and (client.dropped is None or client.dropped.fault == "ending"):
                    client.writer.write(answer)
                    client.decisions += 1
                    self._decisions += 1

    def _decide(self, batch: Sequence[_Question]) -> list[bytes | _Dropped]:
        """Return the answer to each question, or why its client is dropped. Runs in the thread of the policy."""
        answers: dict[int, bytes | _Dropped] = {}
        alike: dict[tuple[ServedPolicy, bool], dict[int, Request]] = {}  # a forward pass each
        for k, (_, policy, message) in enumerate(batch):
            try:
                request = policy.read(message)
            except ValueError as error:
                answers[k] = _Dropped("broken", str(error))
            else:
                alike.setdefault((policy, request.greedy), {})[k] = request
        for (policy, _), requests in alike.items():
            try:
                answers |= zip(requests, self._encoded(policy, list(requests.values())), strict=True)
            except Exception:  # one by one, so that only the client whose request fails is dropped
                for k, request in requests.items():
                    try:
                        answers[k] = self._encoded(policy, [request])[0]
                    except Exception as error:  # such as full memory
                        traceback.print_exception(error)
                        why = f"the server could not decide: {type(error).__name__}: {error}"
                        answers[k] = _Dropped("broken", why)
        return [answers[k] for k in range(len(batch))]

    def _encoded(self, policy: ServedPolicy, requests: Sequence[Request]) -> list[bytes | _Dropped]:
        limit = self._config.max_message_bytes
        too_long = _Dropped("broken", f"the answer does not fit into max_message_bytes={limit:,}; ask for less")
        encoded = map(encode, policy.decide(requests))
        return [answer if len(answer) <= limit else too_long for answer in encoded]


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
    say = say or partial(print, flush=True)
    device = select_device(config.device)
    policies = ServedPolicies(load_checkpoint(Path(config.checkpoint)), device, config)
    policies.warm_up()
    gc.freeze()  # a long message starts many collections, which need not look at what has been loaded so far

    def started(port: int) -> None:
        say(f"serving checkpoint {policies.path} on {device} at {config.host}:{port}; Ctrl-C ends it")
        if not is_loopback(config.host):
            say(f"host={config.host} lets other machines connect: they need the token, which is sent unencrypted")

    async def serve_until_stopped() -> Served:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()

        def end() -> None:
            stop.set()
            for number in (signal.SIGINT, signal.SIGTERM):  # a second signal ends the process at once
                loop.remove_signal_handler(number)

        with suppress(
            NotImplementedError, RuntimeError, ValueError
        ):  # only in the main thread, and not on every system
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, end)
        return await PolicyServer(config, policies, say).run(stop, started)

    served = asyncio.run(serve_until_stopped())
    say(str(served))
    return served
