"""Connections of the policy server. Requests are answered in batches; clients that break the protocol are disconnected.

One thread reads and writes for all clients, another runs the policy. Requests that arrive during inference form the next batch.
"""

from __future__ import annotations

import asyncio
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from enn_ppo.serve.policy import Request, ServedPolicies, ServedPolicy
from enn_ppo.settings.serving import ServeConfig
from entity_gym.bridges.remote.messages import PROTOCOL, Message, MessageReader, ProtocolError, encode
from entity_gym.errors import check_parts

_CHUNK = 2**16
_MOST_UNANSWERED = 256  # queued requests of one client; reading pauses at this limit
_QUIET = 1.0  # seconds without data after which a dropped client's connection is closed


class Served(NamedTuple):
    """Counters of a server."""

    decisions: int
    batches: int
    clients: int


@dataclass(eq=False)
class _Client:
    name: str
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    messages: MessageReader
    room: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_MOST_UNANSWERED))
    decisions: int = 0
    fault: str = ""  # reason, set by another task, to disconnect the client


class _Waiting(NamedTuple):
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
        self._generator = torch.Generator(device=policies.device).manual_seed(config.seed)
        self._clients: dict[_Client, asyncio.Task[None]] = {}
        self._waiting: deque[_Waiting] = deque()
        self._somebody_waits = asyncio.Event()
        self._decisions = self._batches = self._num_clients = 0

    async def run(self, stop: asyncio.Event, started: Callable[[int], None]) -> Served:
        """Serve until `stop` is set.

        Args:
            stop: ends the server when set.
            started: called with the port when clients can connect.

        Raises:
            ValueError: the address cannot be used.
        """
        config = self._config
        try:
            listener = await asyncio.start_server(self._welcome, config.host, config.port)
        except OSError as error:
            reason = error.strerror or error
            raise ValueError(f"host={config.host} port={config.port} cannot be listened on: {reason}") from None
        started(listener.sockets[0].getsockname()[1])
        with ThreadPoolExecutor(1, thread_name_prefix="policy") as thread:
            deciding = asyncio.create_task(self._decide_forever(thread))
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait([deciding, stopping], return_when=asyncio.FIRST_COMPLETED)
            listener.close()
            for client, task in self._clients.items():
                self._send(client, {"type": "error", "message": "the server is ending"})
                task.cancel()
            stopping.cancel()
            deciding.cancel()
            with suppress(asyncio.CancelledError):
                await deciding  # raises its error, if it failed
        return Served(self._decisions, self._batches, self._num_clients)

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = writer.get_extra_info("peername")[:2]
        client = _Client(f"{host}:{port}", reader, writer, MessageReader(self._config.max_message_bytes))
        try:
            if len(self._clients) >= self._config.max_clients:
                await self._hang_up(client, f"the server is full: max_clients={self._config.max_clients}")
            elif fault := await self._serve(client):
                await self._hang_up(client, fault)
            else:
                self._say(f"client {client.name} left after {client.decisions:,} decisions")
        except asyncio.CancelledError:  # the server is ending
            pass
        finally:
            client.writer.close()

    async def _serve(self, client: _Client) -> str:
        """Serve a client until it leaves. Returns the reason to disconnect it; empty if it has left."""
        task = asyncio.current_task()
        assert task is not None
        self._clients[client] = task
        self._num_clients += 1
        try:
            await self._talk(client)
        except ValueError as error:
            return str(error)
        except ConnectionError as error:
            return f"the connection broke: {error.strerror or error}"
        except asyncio.CancelledError:
            if not client.fault:
                raise
            task.uncancel()
            return client.fault
        except Exception as error:  # a bug: the other clients are still served
            traceback.print_exception(error)
            return f"the server failed: {type(error).__name__}: {error}"
        finally:
            del self._clients[client]  # stops answers to the client
        return ""

    async def _hang_up(self, client: _Client, reason: str) -> None:
        """Send a client the reason, and close the connection.

        Incoming data is read until the client closes or is silent: closing earlier would reset the connection, and the client
        might not receive the reason.
        """
        self._say(f"dropped client {client.name}: {reason}")
        self._send(client, {"type": "error", "message": reason})
        with suppress(OSError, TimeoutError, RuntimeError):
            client.writer.write_eof()
            async with asyncio.timeout(self._config.read_seconds):
                while await asyncio.wait_for(client.reader.read(_CHUNK), _QUIET):
                    pass

    async def _talk(self, client: _Client) -> None:
        """Greet a client and queue its requests until it leaves.

        Raises:
            ValueError: the client breaks the protocol.
        """
        greeting = await self._next(client, "greeted")
        if greeting is None:
            return
        policy = self._greet(client, greeting)
        while (message := await self._next(client)) is not None:
            if message["type"] != "act":
                raise ProtocolError(f"a message of the type {message['type']!r}; allowed: 'act', 'close', 'error'")
            request = policy.read(message)
            await client.room.acquire()
            self._waiting.append(_Waiting(client, policy, request))
            self._somebody_waits.set()
        for _ in range(_MOST_UNANSWERED):  # the client may still read: answer all queued requests
            await client.room.acquire()

    def _greet(self, client: _Client, greeting: Message) -> ServedPolicy:
        if greeting["type"] != "hello":
            raise ProtocolError(f"the first message is {greeting['type']!r}; it must be 'hello'")
        if type(greeting.get("protocol")) is not int or greeting["protocol"] != PROTOCOL:
            raise ProtocolError(f"version {greeting.get('protocol')!r} of the protocol; this is version {PROTOCOL}")
        check_parts(greeting, ("type", "protocol", "spaces"), "'hello'")
        policy = self._policies.policy(greeting.get("spaces"))
        told = {"checkpoint": str(self._policies.path), "spaces": policy.spaces, "news": policy.news}
        limits = {"max_message_bytes": self._config.max_message_bytes, "max_entities": self._config.max_entities}
        self._send(client, {"type": "policy", "protocol": PROTOCOL, **told, **limits})
        news = f"; its spaces differ from training: {policy.news}" if policy.news else ""
        self._say(f"client {client.name} came{news}")
        return policy

    async def _next(self, client: _Client, due: str = "") -> Message | None:
        """The next message of a client; None if the connection is closed. `due` limits the time to wait."""
        seconds, deadline = self._config.read_seconds, None
        while (message := client.messages.next()) is None:
            if deadline is None and (due or client.messages.is_in_message):
                deadline = asyncio.get_running_loop().time() + seconds
            try:
                async with asyncio.timeout_at(deadline):
                    data = await client.reader.read(_CHUNK)
            except TimeoutError:
                what = due or "ended the message that it began"
                raise ProtocolError(f"it has not {what} within read_seconds={seconds:g}") from None
            if not data:
                if client.messages.is_in_message:
                    raise ProtocolError("it hung up in the middle of a message")
                return None
            client.messages.feed(data)
        if message["type"] == "error":
            self._say(f"client {client.name} reported an error: {message.get('message')!r:.1000}")
        return None if message["type"] in ("error", "close") else message

    async def _decide_forever(self, thread: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._somebody_waits.wait()
            batch = self._next_batch()
            if not self._waiting:
                self._somebody_waits.clear()
            requests = [waiting.request for waiting in batch]
            try:
                answers = await loop.run_in_executor(thread, batch[0].policy.decide, requests, self._generator)
            except Exception as error:  # for example full memory; the other clients are still served
                traceback.print_exception(error)
                for client in {waiting.client for waiting in batch}:
                    self._drop(client, f"the server could not decide: {type(error).__name__}: {error}")
                continue
            self._batches += 1
            for waiting, answer in zip(batch, answers, strict=True):
                self._answer(waiting.client, answer)

    def _next_batch(self) -> list[_Waiting]:
        """Take the oldest request, and all requests that can be answered in the same batch."""
        first = self._waiting[0]
        batch: list[_Waiting] = []
        others: deque[_Waiting] = deque()
        while self._waiting and len(batch) < self._config.max_batch:
            each = self._waiting.popleft()
            together = each.policy is first.policy and each.request.greedy == first.request.greedy
            (batch if together else others).append(each)
        self._waiting.extendleft(reversed(others))
        return batch

    def _answer(self, client: _Client, answer: Message) -> None:
        client.room.release()
        if client not in self._clients or client.fault:
            return  # the client has left or is being disconnected
        self._send(client, answer)
        client.decisions += 1
        self._decisions += 1
        if client.writer.transport.get_write_buffer_size() > self._config.max_message_bytes:
            self._drop(client, "it does not read its answers")
            client.writer.transport.abort()  # `close` would wait until the client has read everything

    def _send(self, client: _Client, message: Message) -> None:
        if not client.writer.is_closing():
            client.writer.write(encode(message))

    def _drop(self, client: _Client, reason: str) -> None:
        """Let the client's own task disconnect it, without answering its requests."""
        if client in self._clients and not client.fault:
            client.fault = reason
            self._clients[client].cancel()
