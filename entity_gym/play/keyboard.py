"""The keyboard of a terminal: lines, and arrow keys that need no Enter."""

from __future__ import annotations

import codecs
import os
import re
import select
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress

with suppress(ImportError):  # Windows has neither; arrow keys are not read there
    import termios
    import tty

_KEYS = re.compile(r"\x1b\[[\d;]*[A-Za-z~]|\x1bO[A-Z]|.", re.S)
#: Last character of an arrow key's sequence -> the line that the key stands for.
_ARROWS = {"A": "↑", "B": "↓", "C": "→", "D": "←"}


class Keyboard:
    """Reads lines and keys from standard input. Where that is no terminal, lines alone."""

    def __init__(self) -> None:
        self._is_terminal = "termios" in globals() and sys.stdin.isatty() and sys.stdout.isatty()
        self._keys: deque[str] = deque()  # read, and not used yet
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def ask(self, prompt: str) -> str:
        """Prompt for a line, as `input` does. An arrow key at its beginning is a line of its own: "↑", "↓", "←" or "→".

        Raises:
            EOFError: the input has ended, or Ctrl-D.
        """
        if not self._is_terminal:
            return input(prompt)
        _write(prompt)
        line = ""
        with _unbuffered_keys():
            while True:
                key = self._read_key()
                arrow = _ARROWS.get(key[-1]) if len(key) > 1 else None
                if key in ("\n", "\r"):
                    _write("\n")
                    return line
                if key == "\x04" and not line:
                    raise EOFError
                if arrow and not line:
                    _write(f"{arrow}\n")
                    return arrow
                if key in ("\x7f", "\b", "\x15"):  # the last, Ctrl-U, erases everything
                    num_erased = len(line) if key == "\x15" else min(len(line), 1)
                    line = line[: len(line) - num_erased]
                    _write("\b \b" * num_erased)
                elif key.isprintable():
                    line += key
                    _write(key)

    def wait(self, seconds: float) -> bool:
        """Wait, but no longer than until a key is pressed; returns whether one was."""
        if not self._is_terminal:
            time.sleep(seconds)
            return False
        with _unbuffered_keys():
            if not self._keys and not select.select([sys.stdin], [], [], seconds)[0]:
                return False
            self._read_key()
        self._keys.clear()
        return True

    def _read_key(self) -> str:
        while not self._keys:
            data = os.read(sys.stdin.fileno(), 1024)
            if not data:
                raise EOFError
            self._keys.extend(_KEYS.findall(self._decoder.decode(data)))
        return self._keys.popleft()


@contextmanager
def _unbuffered_keys() -> Iterator[None]:
    """Within this context keys are neither shown nor held back until Enter; Ctrl-C still interrupts."""
    settings = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin, termios.TCSADRAIN)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, settings)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
