"""Reading RON, Rusty Object Notation: the text of enn-trainer's `config.ron` and `state.ron`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_DEEPEST = 100  # values within values
_TOKEN = re.compile(
    r"""(?:\s|//[^\n]*)*(?:
        (?P<text>"(?:[^"\\]|\\.)*")
      | (?P<number>[+-]?(?:\d[\d_]*\.?[\d_]*|\.\d+)(?:[eE][+-]?\d+)?)
      | (?P<name>[A-Za-z_][A-Za-z0-9_]*|[+-]inf)
      | (?P<mark>[()\[\]{}:,])
      | (?P<end>\Z)
    )""",
    re.VERBOSE | re.DOTALL,
)
_CONSTANTS = {"true": True, "false": False, "None": None, "inf": float("inf"), "NaN": float("nan")}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", '"': '"', "\\": "\\", "'": "'"}


@dataclass(frozen=True)
class Struct:
    """`Name(field: value, ...)`."""

    name: str  # empty if it has none
    fields: Mapping[str, Any]


def loads(text: str) -> Any:
    """Read a value: `Struct`, dict, list, str, int, float, bool or None; `Some(value)` is `value`, and a bare name a str.

    Raises:
        ValueError: the text is not RON; the message has the line.
    """
    return _Reader(text).read()


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.kind, self.token = "", ""
        self.advance()

    def read(self) -> Any:
        value = self.value(0)
        if self.kind != "end":
            raise self.error("nothing more")
        return value

    def advance(self) -> None:
        match = _TOKEN.match(self.text, self.at)
        if match is None:
            self.token = self.text[self.at :].lstrip()[:1]
            raise self.error("a value")
        self.at = match.end()
        self.kind = str(match.lastgroup)
        self.token = match[self.kind]

    def error(self, expected: str) -> ValueError:
        line = self.text.count("\n", 0, self.at) + 1
        return ValueError(f"line {line}: expected {expected}, found {self.token or 'the end'!r}")

    def expect(self, mark: str) -> None:
        if self.token != mark or self.kind != "mark":
            raise self.error(repr(mark))
        self.advance()

    def accept(self, mark: str) -> bool:
        if self.kind == "mark" and self.token == mark:
            self.advance()
            return True
        return False

    def value(self, depth: int) -> Any:
        if depth > _DEEPEST:
            raise self.error(f"at most {_DEEPEST} values within values")
        kind, token = self.kind, self.token
        if kind == "mark" and token in "([{":
            return self.group("", depth + 1)
        if kind not in ("text", "number", "name"):
            raise self.error("a value")
        self.advance()
        if kind == "text":
            return re.sub(r"\\(u\{([0-9a-fA-F]{1,6})\}|.)", self.unescaped, token[1:-1], flags=re.DOTALL)
        if kind == "number":
            digits = token.replace("_", "")
            return int(digits) if digits.lstrip("+-").isdigit() else float(digits)
        if token in ("+inf", "-inf"):
            return float(token)
        if token == "Some" and self.accept("("):
            value = self.value(depth + 1)
            self.expect(")")
            return value
        if self.kind == "mark" and self.token == "(":
            return self.group(token, depth + 1)
        return _CONSTANTS.get(token, token)

    def unescaped(self, match: re.Match[str]) -> str:
        if match[2] is not None:
            return chr(min(int(match[2], 16), 0x10FFFF))
        if match[1] not in _ESCAPES:
            raise self.error(f"an escape of {sorted(_ESCAPES)}")
        return _ESCAPES[match[1]]

    def group(self, name: str, depth: int) -> Any:
        """A struct, a mapping or a list, which begins here."""
        opening = self.token
        self.advance()
        closing = {"(": ")", "[": "]", "{": "}"}[opening]
        items: list[Any] = []
        fields: dict[Any, Any] = {}
        while not self.accept(closing):
            value = self.value(depth)
            if opening != "[" and self.accept(":"):
                if not isinstance(value, str | int | float) or value in fields:
                    raise self.error("another key")
                fields[value] = self.value(depth)
            elif opening == "{" or fields:
                raise self.error("':'")
            else:
                items.append(value)
            if not self.accept(",") and not (self.kind == "mark" and self.token == closing):
                raise self.error(f"',' or {closing!r}")
        if opening == "{":
            return fields
        if opening == "[" or items:
            return items
        return Struct(name, fields)
