"""Documentation of every setting, for `--help` and the site: its type, default, range and docstring."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
from collections.abc import Sequence
from itertools import pairwise
from types import NoneType
from typing import Any, Literal, NamedTuple, get_args, get_origin

from enn_ppo.settings.schedule import Scheduled
from enn_ppo.settings.schema import section_of
from rogue_net.checks import PositiveInt, alternatives, field_types, split_range

_TYPES = {
    NoneType: "null",
    bool: "true or false",
    int: "integer",
    float: "number",
    str: "text",
    Scheduled: "number or schedule",
    dict[str, Any]: "mapping",
    dict[str, list[int]]: "mapping",
    list[str]: "list of texts",
    Sequence[str]: "list of texts",
    tuple[str, ...]: "list of texts",
    Sequence[PositiveInt]: "list of integers",
}


class Option(NamedTuple):
    """Documentation of one setting, or the head of a section, whose type is `section` or `section or null`."""

    name: str  # dotted; empty for the settings without a section
    type: str
    default: str  # in YAML; empty if there is none
    range: str  # range of a number, or the choices; otherwise empty
    meaning: str


def options_of(cls: type[Any], path: str = "") -> list[Option]:
    """The settings of a class in the order of their fields; each section has a head, and those without a section are last."""
    docs, own, nested = field_docstrings(cls), [], []
    hints = field_types(cls)
    for field in dataclasses.fields(cls):
        hint, name = hints[field.name], path + field.name
        if (section := section_of(hint)) is not None:  # one that may be null is explained by its field's docstring
            head = ("section", inspect.getdoc(section)) if section == hint else ("section or null", docs[field.name])
            nested += [Option(name, head[0], "", "", first_sentence(head[1] or "")), *options_of(section, f"{name}.")]
        else:
            value = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
            default, (kind, range_) = "" if value is dataclasses.MISSING else written(value), _type_and_range(hint)
            own.append(Option(name, kind, default, range_, docs[field.name]))
    return own + nested if path else [*nested, Option("", "section", "", "", first_sentence(cls.__doc__ or "")), *own]


def field_docstrings(cls: type[Any]) -> dict[str, str]:
    """Field -> its docstring in one line, including fields of base classes."""
    docs: dict[str, str] = {}
    for base in filter(dataclasses.is_dataclass, reversed(cls.__mro__)):
        for pair in pairwise(ast.parse(inspect.getsource(base)).body[0].body):  # type: ignore[attr-defined]
            match pair:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    docs[name] = " ".join(text.split())
    return docs


def written(value: object) -> str:
    """A value in the syntax of YAML and of the command line."""
    return value if isinstance(value, str) else json.dumps(value, default=list)


def _type_and_range(hint: object) -> tuple[str, str]:
    """`PositiveInt | None` -> ("integer or null", "at least 1")."""
    types, ranges = [], []
    for kind, range_ in map(split_range, alternatives(hint)):
        choices = ", ".join(f"`{choice}`" for choice in get_args(kind)) if get_origin(kind) is Literal else ""
        types.append("choice" if choices else _TYPES[kind])
        ranges += [choices] if choices else [str(range_)] * (range_ is not None)
    return " or ".join(types), ", ".join(ranges)


def first_sentence(text: str) -> str:
    """The text up to the first full stop, in one line."""
    return re.split(r"(?<=\.)\s", " ".join(text.split()), maxsplit=1)[0]
