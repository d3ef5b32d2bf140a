"""A policy server in a thread, and a client of it, for tests."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from typing import Any

import torch

from enn_ppo.checkpoints import Checkpoint
from enn_ppo.serving.policy import PolicyShelf
from enn_ppo.serving.server import PolicyServer, Served
from enn_ppo.settings.serving import ServeConfig
from entity_gym.remote.messages import MessageReader, encode

CPU = torch.device("cpu")


class Client:
    """A client as somebody writes one from docs/protocol.md."""

    def __init__(self, port: int, greeting: dict[str, Any] | None = None) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self._reader = MessageReader()
        if greeting is not None:
            self.send({"type": "hello", "protocol": 1, **greeting})
            self.policy = self.receive()

    def send(self, message: dict[str, Any]) -> None:
        self.socket.sendall(encode(message))

    def receive(self) -> dict[str, Any]:
        while (message := self._reader.next()) is None:
            data = self.socket.recv(2**16)
            if not data:
                return {"type": "hung up"}
            self._reader.feed(data)
        return message

    def ask(self, observation: dict[str, Any], **options: Any) -> dict[str, Any]:
        self.send({"type": "act", "observation": observation, **options})
        return self.receive()


class Running:
    """A server in a thread, what it says, and what it has done when it has ended."""

    def __init__(self, checkpoint: Checkpoint, **settings: Any) -> None:
        self.said: list[str] = []
        self.served: Served | None = None
        self._started = threading.Event()
        self._config = ServeConfig(checkpoint=str(checkpoint.path), port=0, device="cpu", **settings)
        shelf = PolicyShelf(checkpoint, CPU, self._config.max_entities)
        self._server = PolicyServer(self._config, shelf, CPU, "garden", self.said.append)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    async def _run(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self.served = await self._server.run(self._stop, self._on_start)

    def _on_start(self, port: int) -> None:
        self.port = port
        self._started.set()

    def __enter__(self) -> Running:
        self._thread.start()
        assert self._started.wait(20)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(20)
        assert not self._thread.is_alive()

    def client(self, **greeting: Any) -> Client:
        return Client(self.port, greeting)

    def has_said(self, text: str) -> bool:
        """Whether it says this within some seconds."""
        for _ in range(200):
            if any(text in line for line in self.said):
                return True
            time.sleep(0.05)
        return False
