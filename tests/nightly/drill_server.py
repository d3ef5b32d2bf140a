"""Drill of the policy server: 240 clients that misbehave in ten ways beside a good one, which must not notice.

python -m tests.nightly.drill_server                                  # trains a small policy first
python -m tests.nightly.drill_server --checkpoint outputs/my_run --clients 240 --seconds 60

Exits with code 1 if the good client lacks an answer or waits for a second, if the server's memory grows by over 20 %, or if it
does not end well.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from entity_gym.bridges.remote.messages import PROTOCOL, MessageReader, encode

TOKEN = "a token that all clients know"
LIMIT_SECONDS, LIMIT_GROWTH = 1.0, 1.2
SETTLING = 3.0  # seconds after the bad clients have gone
# Bad clients come again and again, so time-outs are short.
SETTINGS = ("device=cpu", f"token='{TOKEN}'", "max_clients=256", "read_seconds=5", "idle_seconds=10")


def main() -> int:
    given = _arguments().parse_args()
    if given.misbehave:
        misbehave(given.misbehave, given.clients, given.seconds, given.only)
        return 0
    found = drill(given.checkpoint, given.clients, given.seconds, given.only)
    width = max(map(len, found))
    for name, value in found.items():
        print(f"{name:<{width}}  {value:,.3f}" if isinstance(value, float) else f"{name:<{width}}  {value}")
    return 0 if found["survived"] else 1


def drill(checkpoint: str | None = None, clients: int = 240, seconds: float = 60.0, only: str = "") -> dict[str, Any]:
    """Run a server with one good client and many bad ones, and return what the good one and the server went through.

    Args:
        checkpoint: of the policy that is served; None: one that is trained for seconds.
        clients: number of bad clients at the same time.
        seconds: time for which they misbehave.
        only: one of the ways to misbehave, by the name of its function; empty: all.

    Returns:
        `asked`, `answered` and `wrong` answers of the good client, its `worst_seconds` and `p99_seconds`, the server's memory
        `mib_before`, at `mib_most` and `mib_after`, its descriptors `files_before` and `files_after`, its counts of `refused`,
        `slow` and `broken` clients, its `exit_code`, and whether all of it is as it must be: `survived`. `clock_stood_seconds` is
        the longest time for which an idle thread of this process did not run, because the machine was busy or stood still.
    """
    with tempfile.TemporaryDirectory() as folder, serving(checkpoint or _train(Path(folder)), Path(folder)) as server:
        process, port = server
        _ask_everything(port)
        good = GoodClient(port)
        for _ in range(200):
            if good.lives:
                good.ask()
        good.latencies[:-1] = []
        watched = psutil.Process(process.pid)
        before, files_before, most = _mib(watched), watched.num_fds(), 0.0
        arguments = ["--misbehave", str(port), "--clients", str(clients), "--seconds", str(seconds), "--only", only]
        clock = _Clock()
        with subprocess.Popen([sys.executable, __file__, *arguments]) as bad:
            while bad.poll() is None and good.lives:
                good.ask()
                most = max(most, _mib(watched))
                time.sleep(0.01)
        deadline = time.monotonic() + SETTLING
        while time.monotonic() < deadline and good.lives:
            good.ask()
            time.sleep(0.01)
        after, files_after = _mib(watched), watched.num_fds() if process.poll() is None else 0
        process.send_signal(signal.SIGTERM)
        exit_code = process.wait(60)
        counts = re.findall(
            r"refused ([\d,]+), dropped ([\d,]+) slow and ([\d,]+) broken ones\n$", (Path(folder) / "said").read_text()
        )
    latencies = sorted(good.latencies)
    worst, p99 = latencies[-1], latencies[int(0.99 * len(latencies))]
    every = good.answered == good.asked and good.wrong == 0 and good.lives
    return {
        "survived": every and worst < LIMIT_SECONDS and most < LIMIT_GROWTH * before and exit_code == 0,
        "bad_clients": clients,
        "seconds": seconds,
        "asked": good.asked,
        "answered": good.answered,
        "wrong": good.wrong,
        "worst_seconds": worst,
        "p99_seconds": p99,
        "clock_stood_seconds": clock.stood,
        "mib_before": before,
        "mib_most": most,
        "mib_after": after,
        "files_before": files_before,
        "files_after": files_after,
        **dict(zip(("refused", "slow", "broken"), counts[0] if counts else 3 * ("unknown",), strict=True)),
        "exit_code": exit_code,
    }


def _ask_everything(port: int) -> None:
    """Ask questions of all allowed kinds and sizes, until code is compiled and buffers have their final size."""
    client = _Client(port, {})
    for entities, probabilities in ((150, False), (30, True)):
        question = {"type": "act", "observation": observation(client.policy["spaces"], entities), "value": True}
        for number in range(40):
            client.send({**question, "id": number, "probabilities": probabilities})
        for _ in range(40):
            client.receive()
    client.socket.close()


def _train(folder: Path) -> str:
    command = [sys.executable, "-m", "enn_ppo.train", "env=MineSweeper", f"run_dir={folder / 'run'}", "device=cpu"]
    subprocess.run([*command, "total_timesteps=2048", "net.d_model=64"], check=True, stdout=subprocess.DEVNULL)
    return str(folder / "run")


@contextmanager
def serving(checkpoint: str, folder: Path, port: int = 0) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A server at a port, or at any if it is 0, and its port; it writes into the file `said`."""
    said = folder / "said"
    command = [sys.executable, "-m", "enn_ppo.serve", f"checkpoint={checkpoint}", f"port={port}", *SETTINGS]
    with said.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            while not (found := re.findall(r"at 127\.0\.0\.1:(\d+);", said.read_text())):
                if process.poll() is not None:
                    raise SystemExit(f"the server did not start: {said.read_text()}")
                time.sleep(0.05)
            yield process, int(found[0])
        finally:
            process.kill()
            process.wait()


class _Clock(threading.Thread):
    """Measures for how long this process does not run although it wants to: then a latency says nothing about the server."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.stood = 0.0
        self.start()

    def run(self) -> None:
        while True:
            began = time.monotonic()
            time.sleep(0.01)
            self.stood = max(self.stood, time.monotonic() - began - 0.01)


def _mib(process: psutil.Process) -> float:
    try:
        return float(process.memory_info().rss / 2**20)
    except psutil.NoSuchProcess:
        return 0.0


class _Client:
    """A connection to the server, greeted unless it is told otherwise."""

    def __init__(self, port: int, greeting: dict[str, Any] | None = None) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.reader = MessageReader(2**26)
        if greeting is not None:
            self.send({"type": "hello", "protocol": PROTOCOL, "token": TOKEN, **greeting})
            self.policy = self.receive()

    def send(self, message: dict[str, Any]) -> None:
        self.socket.sendall(encode(message))

    def receive(self) -> dict[str, Any]:
        while (message := self.reader.next()) is None:
            data = self.socket.recv(2**16)
            if not data:
                raise ConnectionError("the server has hung up")
            self.reader.feed(data)
        return message


class GoodClient:
    """A client that asks the same question again and again, and checks that it gets the same answer."""

    def __init__(self, port: int) -> None:
        self.client = _Client(port, {})
        self.observation = observation(self.client.policy["spaces"], 4)
        self.asked = self.answered = self.wrong = 0
        self.first: dict[str, Any] | None = None
        self.lives = True
        self.latencies: list[float] = []

    def ask(self) -> None:
        began, self.asked = time.monotonic(), self.asked + 1
        question = {"type": "act", "id": self.asked, "observation": self.observation, "greedy": True}
        try:
            self.client.send(question)
            answer = self.client.receive()
            if answer["type"] == "error":
                raise ConnectionError(answer["message"])
        except OSError as error:
            print(f"the good client got no answer: {error}", file=sys.stderr)
            self.lives = False
            return
        finally:
            self.latencies.append(time.monotonic() - began)
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
    _Client(port).socket.sendall(rng.randbytes(rng.randrange(1, 2000)))


def half_a_message(port: int, rng: random.Random) -> None:
    client = _Client(port, {})
    message = encode({"type": "act", "observation": {"features": {"x": [[0.5]] * rng.randrange(100_000)}}})
    client.socket.sendall(message[: len(message) // 2])
    client.receive()  # until it is dropped


def huge_message(port: int, rng: random.Random) -> None:
    client = _Client(port, {})
    body = rng.choice([b"[" * 1_000_000, b'{"type":"act","observation":{"features":{"x":[' + b"[1]," * 250_000])
    claimed = rng.choice([len(body), 2**20, 2**31])
    client.socket.sendall(claimed.to_bytes(4, "big") + body)
    client.receive()


def surrogates(port: int, rng: random.Random) -> None:
    client = _Client(port, {})
    asked = {"type": "act", "id": "HALF", "observation": observation(client.policy["spaces"], 2)}
    if rng.random() < 0.5:
        asked = json.loads(json.dumps({**asked, "id": 1}).replace(' 0"', ' HALF"'))
    body = json.dumps(asked).replace("HALF", "\\ud800").encode()
    client.socket.sendall(len(body).to_bytes(4, "big") + body)
    client.receive()


def slow_writer(port: int, rng: random.Random) -> None:
    client = _Client(port, {} if rng.random() < 0.5 else None)
    for byte in encode({"type": "act", "observation": {}}) * 10:
        client.socket.sendall(bytes([byte]))
        time.sleep(0.3)


def greeting_bomb(port: int, rng: random.Random) -> None:
    spaces = _Client(port, {}).policy["spaces"]
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
    client = _Client(port, {"spaces": spaces})
    client.receive()


def breaks_off(port: int, rng: random.Random) -> None:
    client = _Client(port, {})
    question = encode({"type": "act", "observation": observation(client.policy["spaces"], 4)})
    client.socket.sendall(question * rng.randrange(1, 20) + question[: rng.randrange(len(question))])
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # closing resets the connection


def does_not_read(port: int, rng: random.Random) -> None:
    client = _Client(port, {})
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    seen = observation(client.policy["spaces"], 30)
    while True:
        client.send({"type": "act", "observation": seen, "probabilities": True, "value": True})


def is_silent(port: int, rng: random.Random) -> None:
    _Client(port, {} if rng.random() < 0.5 else None).receive()


def asks_much(port: int, rng: random.Random) -> None:
    client = _Client(port, {})
    seen = observation(client.policy["spaces"], 200)
    for k in range(20):
        client.send({"type": "act", "id": k, "observation": seen})
    for _ in range(20):
        client.receive()


BAD: tuple[Callable[[int, random.Random], None], ...] = (
    garbage,
    half_a_message,
    huge_message,
    surrogates,
    slow_writer,
    greeting_bomb,
    breaks_off,
    does_not_read,
    is_silent,
    asks_much,
)


def misbehave(port: int, clients: int, seconds: float, only: str) -> None:
    """Misbehave with many clients, each in a thread of its own, at low priority: bad clients are on other machines."""
    os.nice(10)
    ways = [way for way in BAD if only in ("", way.__name__)]
    end = time.monotonic() + seconds

    def go(number: int) -> None:
        rng = random.Random(number)
        while time.monotonic() < end:
            with suppress(OSError, KeyError, ValueError):  # it was dropped, or turned away
                ways[number % len(ways)](port, rng)
            time.sleep(0.2 * rng.random())

    threads = [threading.Thread(target=go, args=(number,), daemon=True) for number in range(clients)]
    for thread in threads:
        thread.start()
    time.sleep(max(0.0, end - time.monotonic()))  # the process takes the last clients with it


def _arguments() -> ArgumentParser:
    parser = ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--checkpoint", help="of the policy; without it, one is trained")
    parser.add_argument("--clients", type=int, default=240)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--only", default="", choices=["", *(way.__name__ for way in BAD)], help="one way to misbehave")
    parser.add_argument("--misbehave", type=int, default=0, metavar="PORT", help="only misbehave towards a server")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
