"""A terminal that interprets what is written to it, for tests of what is seen in the end."""

from __future__ import annotations

import io
import re

from rich.cells import cell_len

_TOKENS = re.compile(r"\x1b\[(\??[\d;]*)([a-zA-Z])|\r\n|\r|\n|[^\x1b\r\n]+")


class Terminal(io.StringIO):
    """Rows of text without end. Lines are wrapped, and wrapped anew when the size changes, as most terminals do.

    It knows the sequences that are expected, and fails at all others.
    """

    encoding = "utf-8"

    def __init__(self, columns: int = 80) -> None:
        super().__init__()
        self.columns = columns
        self.lines = [""]  # by newlines, not wrapped
        self.row = 0  # of the cursor, in wrapped rows
        self.colours: set[str] = set()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        matched = 0
        for token in _TOKENS.finditer(text):
            assert token.start() == matched, text[matched : matched + 20]
            matched = token.end()
            self._take(token[0], token[1], token[2])
        assert matched == len(text), text[matched:]
        return super().write(text)

    @property
    def rows(self) -> list[str]:
        """All that was ever shown, from the top, without the empty rows at the end."""
        rows = [row.rstrip() for line in self.lines for row in self._wrapped(line)]
        while rows and not rows[-1]:
            rows.pop()
        return rows

    def resize(self, columns: int) -> None:
        line, _ = self._place()
        self.columns = columns
        self.row = sum(len(self._wrapped(each)) for each in self.lines[:line])

    def _wrapped(self, line: str) -> list[str]:
        assert cell_len(line) == len(line)
        return [line[i : i + self.columns] for i in range(0, len(line), self.columns)] or [""]

    def _place(self) -> tuple[int, int]:
        """The line of the cursor, and where its row begins in it."""
        row = self.row
        for number, line in enumerate(self.lines):
            height = len(self._wrapped(line))
            if row < height:
                return number, row * self.columns
            row -= height
        raise AssertionError("the cursor is below the last line")

    def _take(self, token: str, arguments: str | None, command: str | None) -> None:
        number, start = self._place()
        if command is None and token in ("\r", "\r\n", "\n"):
            if token != "\r":
                if number + 1 == len(self.lines):
                    self.lines.append("")
                self.row = sum(len(self._wrapped(line)) for line in self.lines[: number + 1])
            self._column = 0
        elif command is None:
            line = self.lines[number]
            self.lines[number] = line[: start + self._column] + token + line[start + self._column + len(token) :]
            self._column += len(token)
        elif command == "A":
            self.row = max(0, self.row - int(arguments or 1))
        elif command == "K":
            self.lines[number] = self.lines[number][: start + self._column]
        elif command == "J":
            self.lines[number] = self.lines[number][: start + self._column]
            del self.lines[number + 1 :]
        elif command == "m":
            self.colours.add(arguments or "")
        else:
            assert (command, arguments) in (("h", "?2026"), ("l", "?2026")), token

    _column = 0
