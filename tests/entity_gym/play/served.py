"""The commands that serve a game: in this process, with a client in the place of the browser, or as processes."""

import _thread
import json
import re
import signal
import threading
from collections.abc import Callable
from typing import Any, Self
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from entity_gym.replay.server import TOKEN_HEADER
from tests.processes import start


class Client:
    """The page at `url`, as the browser has it."""

    def __init__(self, url: str) -> None:
        self.url = url
        with urlopen(url, timeout=30) as answer:
            self.page: str = answer.read().decode()
        token = re.search(r'data-token="([^"]+)"', self.page)
        assert token is not None and 'data-mode="play"' in self.page
        self.token = token[1]

    def post(self, move: str, given: Any = None) -> tuple[int, Any]:
        """Make a move; returns the status and the answer."""
        headers = {"Content-Type": "application/json", TOKEN_HEADER: self.token}
        request = Request(self.url + move, json.dumps(given).encode(), headers)
        try:
            with urlopen(request, timeout=30) as answer:
                return answer.status, json.load(answer)
        except HTTPError as refused:
            with refused:
                return refused.code, json.load(refused)

    @staticmethod
    def press_ctrl_c() -> None:
        _thread.interrupt_main()


def play_as(person: Callable[[Client], object], command: Callable[[], int], monkeypatch: pytest.MonkeyPatch) -> int:
    """Run a command that opens the page, which `person` then uses in another thread. Returns the exit code."""
    failures: list[BaseException] = []

    def play(url: str) -> None:
        try:
            person(Client(url))
        except BaseException as error:
            failures.append(error)
            Client.press_ctrl_c()

    threads: list[threading.Thread] = []

    def opened(url: str) -> None:
        threads.append(threading.Thread(target=play, args=(url,), daemon=True))
        threads[0].start()

    monkeypatch.setattr("entity_gym.play.command.open_in_browser", opened)
    code = command()
    threads[0].join(30)
    if failures:
        raise failures[0]
    return code


class Command:
    """A running command; `url` is the address that it prints in its second line."""

    def __init__(self, module: str, *arguments: str) -> None:
        self.process = start("-m", module, *arguments, "--no-open", "--seed", "5")
        assert self.process.stdout is not None
        self.said = [self.process.stdout.readline(), self.process.stdout.readline()]
        found = re.match(r"http://127\.0\.0\.1:(\d+)/", self.said[1])
        assert found is not None, (self.said, self.process.communicate())
        self.url = found[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.end()

    def end(self) -> tuple[int, str]:
        """Press Ctrl-C, if it still runs; returns its exit code and errors."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors
