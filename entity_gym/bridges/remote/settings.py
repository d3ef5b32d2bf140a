"""How a program that offers worlds is reached."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from entity_gym.bridges.remote.messages import MAX_MESSAGE_BYTES

Transport = Literal["stdio", "tcp"]


class Address(NamedTuple):
    """Where a program is listened for."""

    host: str
    port: int


@dataclass(frozen=True, kw_only=True)
class ProgramSettings:
    """How a program that offers worlds is reached: it is started (`command`), or it comes by itself (`listen`).

    Attributes:
        name: what messages call it.
        command: the program and its arguments, such as ("node", "world.mjs"). It is found as a shell finds it, and runs in
            the current folder.
        transport: how a program that is started talks: by standard input and output, or over TCP, to the address that
            stands in its environment variable `ENTITY_GYM_CONNECT`.
        listen: "host:port" where a program that is already running connects.
        start_seconds: how long it may take to start, or to connect, and to say what it offers. Above 0.
        answer_seconds: how long it may take over one answer. Above 0.
        max_message_bytes: the longest message that is read. At least 1,024.

    Raises:
        ValueError: for a value that cannot be.
    """

    name: str = "program"
    command: Sequence[str] | None = None
    transport: Transport = "stdio"
    listen: str | None = None
    start_seconds: float = 30.0
    answer_seconds: float = 30.0
    max_message_bytes: int = MAX_MESSAGE_BYTES

    def __post_init__(self) -> None:
        if (self.command is None) == (self.listen is None):
            raise ValueError(
                f"command is {self.command!r} and listen is {self.listen!r}; give one: command=[node,world.mjs] starts a "
                "program, and listen=127.0.0.1:5577 waits for one to connect"
            )
        if self.command is not None:
            object.__setattr__(self, "command", _checked_command(self.command))
        if self.listen is not None:
            _address(self.listen)
        if self.transport not in get_args(Transport):
            raise ValueError(f"transport is {self.transport!r}; allowed: {', '.join(map(repr, get_args(Transport)))}")
        for name in ("start_seconds", "answer_seconds"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise ValueError(f"{name} is {value!r}; it must be a number of seconds above 0")
        limit = self.max_message_bytes
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1024:
            raise ValueError(f"max_message_bytes is {limit!r}; it must be a whole number of at least 1024")

    @property
    def address(self) -> Address | None:
        """Where a program that comes by itself is listened for."""
        return None if self.listen is None else _address(self.listen)

    def __str__(self) -> str:
        if self.command is not None:
            return f"{self.name} `{shlex.join(self.command)}`"
        return f"{self.name} at {self.listen}"


def _checked_command(command: Sequence[str]) -> tuple[str, ...]:
    if isinstance(command, str):
        words = ",".join(command.split())
        raise ValueError(f"command is the text {command!r}; give a list of words, as in 'command=[{words}]'")
    given: list[object] = list(command) if isinstance(command, Sequence) else []
    # A word of a command line may look like a number: [node,world.mjs,8].
    texts = [str(word) if isinstance(word, int | float) and not isinstance(word, bool) else word for word in given]
    checked = tuple(word for word in texts if isinstance(word, str) and word and "\0" not in word)
    if not checked or len(checked) != len(texts):
        raise ValueError(f"command is {command!r}; it must be a list of texts, the program first")
    return checked


def _address(listen: object) -> Address:
    host, _, port = listen.rpartition(":") if isinstance(listen, str) else ("", "", "")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 2**16:
        raise ValueError(f"listen is {listen!r}; it must be host:port, a port from 1 to 65535, such as 127.0.0.1:5577")
    return Address(host, int(port))
