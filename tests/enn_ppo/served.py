"""A policy server in a thread, a client of it, and a garden whose policy it serves, for tests."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from enn_ppo import EnvConfig, OptimConfig, RogueNetConfig, RolloutConfig, TrainConfig, train
from enn_ppo.checkpoints import Checkpoint, load_checkpoint
from enn_ppo.serve.policy import ServedPolicies
from enn_ppo.serve.server import PolicyServer, Served
from enn_ppo.settings.serving import ServeConfig
from entity_gym import (
    Action,
    ActionSpace,
    CategoricalActionSpace,
    ContinuousActionSpace,
    Entity,
    Environment,
    GlobalCategoricalActionSpace,
    Observation,
    ObsSpace,
    SelectEntityActionSpace,
)
from entity_gym.bridges.remote.messages import MessageReader, encode, observation_from_json

CPU = torch.device("cpu")

OBS_SPACE = ObsSpace({"Bee": Entity(["x", "y"]), "Flower": Entity(["open"])}, ["wind"])
ACTION_SPACE: dict[str, ActionSpace] = {
    "turn": CategoricalActionSpace(["left", "right", "on"]),
    "visit": SelectEntityActionSpace(nobody=True),
    "speed": ContinuousActionSpace([0.0], [2.0]),
    "dance": GlobalCategoricalActionSpace(["no", "yes"]),
}


def garden(num_bees: int = 2, num_flowers: int = 3, **changes: Any) -> dict[str, Any]:
    """An observation, as a client sends it."""
    return {
        "features": {
            "Bee": [[k, -0.5 * k] for k in range(num_bees)],
            "Flower": [[k % 2] for k in range(num_flowers)],
        },
        "ids": {
            "Bee": [f"bee {k}" for k in range(num_bees)],
            "Flower": [100 + k for k in range(num_flowers)],
        },
        "actions": {
            "turn": {"actor_types": ["Bee"], "mask": [[True, k % 2 == 0, True] for k in range(num_bees)]},
            "visit": {"actor_types": ["Bee"], "actee_types": ["Flower"]},
            "speed": {"actor_types": ["Bee"]},
            "dance": {},
        },
        "global_features": [0.25],
        **changes,
    }


class Garden(Environment):
    def obs_space(self) -> ObsSpace:
        return OBS_SPACE

    def action_space(self) -> Mapping[str, ActionSpace]:
        return ACTION_SPACE

    def reset(self) -> Observation:
        return observation_from_json(garden(), ACTION_SPACE)

    def act(self, actions: Mapping[str, Action]) -> Observation:
        return observation_from_json(
            garden(int(self.rng.integers(1, 4)), done=bool(self.rng.random() < 0.2)), ACTION_SPACE
        )


def train_garden(run_dir: Path) -> Checkpoint:
    """A policy for the garden that has learned next to nothing."""
    config = TrainConfig(
        env=EnvConfig(id="garden"),
        rollout=RolloutConfig(num_envs=4, steps=8),
        net=RogueNetConfig(d_model=16, n_layer=1, n_head=2),
        optim=OptimConfig(batch_size=16, epochs=2, lr="0.01@0 -> 0@1"),
        total_timesteps=64,
        run_dir=str(run_dir),
        overwrite=True,
        device="cpu",
    )
    train(config, env=Garden)
    return load_checkpoint(run_dir)


class Client:
    """A client as somebody writes one from docs/protocol.md."""

    def __init__(self, port: int, greeting: dict[str, Any] | None = None) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self.name = f"client 127.0.0.1:{self.socket.getsockname()[1]}"  # in what the server says
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
    """A server in a thread, what it says, and what it has done when it has ended; in capitals: limits of the server."""

    def __init__(self, checkpoint: Checkpoint, **settings: Any) -> None:
        self.said: list[str] = []
        self.served: Served | None = None
        self._started = threading.Event()
        limits = {name: settings.pop(name) for name in [*settings] if name.isupper()}
        self._limits = mock.patch.multiple("enn_ppo.serve.server", **limits) if limits else nullcontext()
        self._config = ServeConfig(checkpoint=str(checkpoint.path), port=0, device="cpu", **settings)
        self.policies = ServedPolicies(checkpoint, CPU, self._config)
        self._server = PolicyServer(self._config, self.policies, self.said.append)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    async def _run(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self.served = await self._server.run(self._on_start)

    def _on_start(self, port: int) -> None:
        self.port = port
        self._started.set()

    def __enter__(self) -> Running:
        self._limits.__enter__()
        self._thread.start()
        assert self._started.wait(20)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._task is not None
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(20)
        assert not self._thread.is_alive()
        self._limits.__exit__(None, None, None)

    def client(self, **greeting: Any) -> Client:
        return Client(self.port, greeting)

    def has_said(self, text: str) -> bool:
        """Whether it says this within some seconds."""
        for _ in range(200):
            if any(text in line for line in self.said):
                return True
            time.sleep(0.05)
        return False


@contextmanager
def one_dropped(server: Running, why: str, answered: bool = False) -> Iterator[Client]:
    """A client that has been greeted, is told that it is dropped because of this, and hung up on; another goes on."""
    other, client = server.client(), server.client()
    yield client
    while (told := client.receive())["type"] == "actions":
        assert answered
    assert told["type"] == "error"
    assert why in told["message"]
    assert client.receive() == {"type": "hung up"}
    assert server.has_said(f"dropped {client.name}: {told['message']}")
    assert other.ask(garden())["type"] == "actions"
