"""Drill of the policy server: 240 clients that misbehave in nine ways beside a good one, which must not notice.

python -m tests.nightly.drills clients runs it. This module as a program is the bad clients: PORT CLIENTS SECONDS.
"""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from entity_gym.bridges.remote.messages import encode
from tests.enn_ppo.served import Client
from tests.processes import start

TOKEN = "a token that all clients know"
LIMIT_SECONDS, LIMIT_GROWTH = 1.0, 1.5
# Bad clients come again and again, so time-outs are short.
SERVER = """
from enn_ppo.serve import server
from enn_ppo.settings.command_line.cli import run_serve
server.READ_SECONDS, server.IDLE_SECONDS = 5.0, 10.0
raise SystemExit(run_serve(server.serve))
"""
SETTINGS = ("device=cpu", f"token='{TOKEN}'", "max_clients=256")


def drill(checkpoint: str, folder: Path, clients: int, seconds: float) -> tuple[bool, str]:
    """Run a server with one good client and many bad ones; say what the good one and the server went through.

    Args:
        checkpoint: of the policy that is served.
        folder: for the server's output.
        clients: number of bad clients at the same time.
        seconds: time for which they misbehave.

    Returns:
        Whether the good client has had every answer within a second, the memory has grown by at most one half, and the server
        has ended well; and the numbers.
    """
    with serving(checkpoint, folder) as (process, port):
        _ask_everything(port)  # until code is compiled and buffers have their final size
        good = GoodClient(port)
        for _ in range(200):
            if good.lives:
                good.ask()
        good.worst_seconds = 0.0
        watched = psutil.Process(process.pid)
        before = most = _mib(watched)
        nowhere: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        with start("-m", "tests.nightly.drill_server", port, clients, seconds, **nowhere) as bad:
            while bad.poll() is None and good.lives:
                good.ask()
                most = max(most, _mib(watched))
                time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        exit_code = process.wait(60)
    every = good.answered == good.asked and good.wrong == 0 and good.lives
    return (
        every and good.worst_seconds < LIMIT_SECONDS and most < LIMIT_GROWTH * before and exit_code == 0,
        f"for {seconds:.0f} s; the good client got {good.answered:,} of {good.asked:,} answers, {good.wrong} of them wrong, "
        f"the slowest in {good.worst_seconds:.2f} s; {before:.0f} to at most {most:.0f} MiB; exit code {exit_code}",
    )


def _ask_everything(port: int) -> None:
    """Ask questions of all allowed kinds and sizes."""
    client = greeted(port)
    for entities, probabilities in ((150, False), (30, True)):
        question = {"type": "act", "observation": observation(client.policy["spaces"], entities), "value": True}
        for number in range(40):
            client.send({**question, "id": number, "probabilities": probabilities})
        for _ in range(40):
            client.receive()
    client.socket.close()


@contextmanager
def serving(checkpoint: str, folder: Path, port: int = 0) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A server at a port, or at any if it is 0, and its port; it writes into the file `said`."""
    said = folder / "said"
    command = ("-c", SERVER, f"checkpoint={checkpoint}", f"port={port}", *SETTINGS)
    with said.open("w") as output:
        process = start(*command, stdout=output, stderr=subprocess.STDOUT)
        try:
            while not (found := re.findall(r"at 127\.0\.0\.1:(\d+);", said.read_text())):
                if process.poll() is not None:
                    raise SystemExit(f"the server did not start: {said.read_text()}")
                time.sleep(0.05)
            yield process, int(found[0])
        finally:
            process.kill()
            process.wait()


def _mib(process: psutil.Process) -> float:
    try:
        return float(process.memory_info().rss / 2**20)
    except psutil.NoSuchProcess:
        return 0.0


def greeted(port: int, **greeting: Any) -> Client:
    return Client(port, {"token": TOKEN, **greeting})


class GoodClient:
    """A client that asks the same question again and again, and checks that it gets the same answer."""

    def __init__(self, port: int) -> None:
        self.client = greeted(port)
        self.observation = observation(self.client.policy["spaces"], 4)
        self.asked = self.answered = self.wrong = 0
        self.first: dict[str, Any] | None = None
        self.lives = True
        self.worst_seconds = 0.0

    def ask(self) -> None:
        began, self.asked = time.monotonic(), self.asked + 1
        question = {"type": "act", "id": self.asked, "observation": self.observation, "greedy": True}
        try:
            self.client.send(question)
            answer = self.client.receive()
            if answer["type"] != "actions":
                raise ConnectionError(answer)
        except OSError as error:
            print(f"the good client got no answer: {error}", file=sys.stderr)
            self.lives = False
            return
        finally:
            self.worst_seconds = max(self.worst_seconds, time.monotonic() - began)
        self.answered += 1
        self.first = self.first or answer
        self.wrong += answer != {**self.first, "id": self.asked}


def observation(spaces: dict[str, Any], entities: int) -> dict[str, Any]:
    """Return an observation with this many entities of each type, all of which act and may be selected."""
    return {
        "features": {each["name"]: [[0] * len(each["features"])] * entities for each in spaces["entities"]},
        "ids": {each["name"]: [f"{each['name']} {k}" for k in range(entities)] for each in spaces["entities"]},
        "actions": {each["name"]: {} for each in spaces["actions"]},
        "global_features": [0] * len(spaces["global_features"]),
    }


# ---- bad clients. Each function connects, misbehaves, and returns; it is called again and again.


def garbage(port: int, rng: random.Random) -> None:
    Client(port).socket.sendall(rng.randbytes(rng.randrange(1, 2000)))


def half_a_message(port: int, rng: random.Random) -> None:
    client = greeted(port)
    message = encode({"type": "act", "observation": {"features": {"x": [[0.5]] * rng.randrange(100_000)}}})
    client.socket.sendall(message[: len(message) // 2])
    client.receive()  # until it is dropped


def huge_message(port: int, rng: random.Random) -> None:
    client = greeted(port)
    body = rng.choice([b"[" * 1_000_000, b'{"type":"act","observation":{"features":{"x":[' + b"[1]," * 250_000])
    claimed = rng.choice([len(body), 2**20, 2**31])
    client.socket.sendall(claimed.to_bytes(4, "big") + body)
    client.receive()


def slow_writer(port: int, rng: random.Random) -> None:
    client = greeted(port) if rng.random() < 0.5 else Client(port)
    for byte in encode({"type": "act", "observation": {}}) * 10:
        client.socket.sendall(bytes([byte]))
        time.sleep(0.3)


def greeting_bomb(port: int, rng: random.Random) -> None:
    spaces = greeted(port).policy["spaces"]
    name = f"{rng.random()}"
    kind = rng.randrange(4)
    if kind == 0:
        spaces["entities"] += [{"name": f"{name} {k}", "features": ["x"]} for k in range(2000)]
    elif kind == 1:
        choices = [str(k) for k in range(300_000)]
        spaces["actions"].append({"name": name, "type": "CategoricalActionSpace", "choices": choices})
    elif kind == 2:
        numbers = [{"name": str(k), "type": "Category", "num": 2**24} for k in range(100)]
        features = [str(k) for k in range(100)]
        spaces["entities"].append({"name": name, "features": features, "kinds": numbers})
    else:  # as large as is allowed, and fitted
        spaces["entities"] += [{"name": f"{name} {k}", "features": [*"abcdefgh"]} for k in range(50)]
    client = greeted(port, spaces=spaces)
    client.receive()


def breaks_off(port: int, rng: random.Random) -> None:
    client = greeted(port)
    question = encode({"type": "act", "observation": observation(client.policy["spaces"], 4)})
    client.socket.sendall(question * rng.randrange(1, 20) + question[: rng.randrange(len(question))])
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # closing resets the connection


def does_not_read(port: int, rng: random.Random) -> None:
    client = greeted(port)
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    seen = observation(client.policy["spaces"], 30)
    while True:
        client.send({"type": "act", "observation": seen, "probabilities": True, "value": True})


def is_silent(port: int, rng: random.Random) -> None:
    (greeted(port) if rng.random() < 0.5 else Client(port)).receive()


def asks_much(port: int, rng: random.Random) -> None:
    client = greeted(port)
    seen = observation(client.policy["spaces"], 200)
    for k in range(20):
        client.send({"type": "act", "id": k, "observation": seen})
    for _ in range(20):
        client.receive()


BAD: tuple[Callable[[int, random.Random], None], ...] = (
    garbage,
    half_a_message,
    huge_message,
    slow_writer,
    greeting_bomb,
    breaks_off,
    does_not_read,
    is_silent,
    asks_much,
)


def misbehave(port: int, clients: int, seconds: float) -> None:
    """Misbehave with many clients, each in a thread of its own, at low priority: bad clients are on other machines."""
    os.nice(10)
    end = time.monotonic() + seconds

    def go(number: int) -> None:
        rng = random.Random(number)
        while time.monotonic() < end:
            with suppress(OSError, KeyError, ValueError):  # it was dropped, or turned away
                BAD[number % len(BAD)](port, rng)
            time.sleep(0.2 * rng.random())

    for number in range(clients):
        threading.Thread(target=go, args=(number,), daemon=True).start()
    time.sleep(max(0.0, end - time.monotonic()))  # the process takes the last clients with it


if __name__ == "__main__":
    misbehave(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
