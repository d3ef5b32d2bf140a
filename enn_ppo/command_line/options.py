"""The options of `--help` and docs/options.md, from the docstrings of the settings.

A field's docstring is sentences. One may say the range (`At least 1, at most 8; null: no limit.`), and the last one says
the default (`Default 3.`, `Default null: no limit.`) or that there is none (`Required.`); the rest is the meaning.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from enn_ppo.settings.schema import section_of

_RANGE = re.compile(r"(At least|Each at least|Greater than|In) [^;]*")
_WIDTH, _COLUMN = 120, 44  # of what --help prints, and where its second column begins
_DEFAULT = re.compile(r"Default:? ([^:]+)(?:: (.*))?")


class Option(NamedTuple):
    """Documentation of one setting."""

    name: str  # dotted
    type: str
    default: str  # as YAML writes it; empty where there is none
    range: str  # numbers: from where to where; choices: which; else empty
    meaning: str


class Section(NamedTuple):
    """Documentation of a settings class, without those nested in it."""

    path: str  # dotted, empty at the top
    summary: str
    options: list[Option]
    optional: bool  # may be null as a whole


def sections_of(cls: type[Any], path: str = "", summary: str = "", *, optional: bool = False) -> list[Section]:
    """The sections of a settings class in the order of their fields, each before those nested in it; the top one is last."""
    docs, hints = field_docstrings(cls), get_type_hints(cls)
    own = Section(path, summary or _first_sentence(inspect.getdoc(cls) or ""), [], optional)
    inner: list[Section] = []
    for field in dataclasses.fields(cls):
        hint, name = hints[field.name], f"{path}.{field.name}" if path else field.name
        option = _option(name, field, hint, docs[field.name])
        section = section_of(hint)
        if section is None:
            own.options.append(option)
        elif hint == section:
            inner += sections_of(section, name, optional=optional)
        else:  # may be null: what that means stands with the field
            inner += sections_of(section, name, option.meaning, optional=True)
    return [own, *inner] if path else [*inner, own]


def field_docstrings(cls: type[Any]) -> dict[str, str]:
    """Field -> its docstring in one line; fields of base classes, too.

    Raises:
        ValueError: a field has none.
    """
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        (body,) = (node.body for node in ast.parse(inspect.getsource(base)).body if isinstance(node, ast.ClassDef))
        for node, following in zip(body, [*body[1:], None], strict=True):
            if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
                continue
            if not (
                isinstance(following, ast.Expr)
                and isinstance(following.value, ast.Constant)
                and isinstance(following.value.value, str)
            ):
                raise ValueError(f"{base.__name__}.{node.target.id} has no docstring below it")
            docs[node.target.id] = " ".join(following.value.value.split())
    return docs


def written(value: object) -> str:
    """A value in the syntax of YAML and of the command line."""
    if isinstance(value, str):
        return value
    return json.dumps(value, default=list)


def help_text(cls: type[Any], values: Mapping[str, Any], groups: Mapping[str, Sequence[str]]) -> str:
    """The part of `--help` that lists groups and settings.

    Args:
        cls: the program's settings.
        values: their values, nested.
        groups: name -> choices.
    """
    lines = ["Groups: name=choice sets several settings at once."] * bool(groups)
    lines += [_entry(name, "", ", ".join(choices)) for name, choices in groups.items()]
    for section in sections_of(cls):
        now = _look_up(values, section.path)
        if isinstance(now, Mapping) or (section.optional and now is None):
            heading = f"{section.path or 'top level'}: {section.summary}".replace("`", "")
            lines += ["", *textwrap.wrap(heading, _WIDTH)]
        if isinstance(now, Mapping):
            for option in section.options:
                lines += _entries(option, _look_up(values, option.name))
    return "\n".join(lines).strip("\n")


def _option(name: str, field: dataclasses.Field[Any], hint: object, doc: str) -> Option:
    default, bounds, meaning = "", "", []
    for sentence in re.split(r"\.\s+", doc.removesuffix(".")):
        said = _DEFAULT.fullmatch(sentence)
        limits = _RANGE.match(sentence)
        if said:
            default = written(_default(field))
            meaning += [f"{default}: {said[2]}"] if said[2] else []
        elif limits:
            bounds = limits[0][0].lower() + limits[0][1:]
            meaning += [_capitalized(sentence[limits.end() + 1 :].strip())] if limits.end() < len(sentence) else []
        elif sentence != "Required":
            meaning.append(sentence)
    return Option(name, _type_in_words(hint), default, bounds or _choices(hint), ". ".join(meaning) + ".")


def _capitalized(clause: str) -> str:
    """A clause as a sentence; `null: no limit` stays as it is."""
    return clause if re.match(r"\S+: |[`\d]|null ", clause) else clause[:1].upper() + clause[1:]


def _default(field: dataclasses.Field[Any]) -> object:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _type_in_words(hint: object) -> str:
    """`int | None` -> `integer or null`."""
    kinds = get_args(hint) if get_origin(hint) not in (Literal, dict) and not _is_list(hint) else (hint,)
    kinds = kinds or (hint,)
    if {float, str} <= set(kinds):
        words = ["number or schedule"]
    else:
        words = [_kind_in_words(kind) for kind in kinds if kind is not NoneType]
    return " or ".join(words + ["null"] * (NoneType in kinds))


def _kind_in_words(kind: object) -> str:
    if get_origin(kind) is Literal:
        choices = get_args(kind)
        return "choice" if len(choices) > 1 else f"`{choices[0]}`"
    if get_origin(kind) is dict:
        return "mapping"
    if _is_list(kind):
        return "list of integers" if get_args(kind) == (int,) else "list of texts"
    if dataclasses.is_dataclass(kind):
        return "section"
    names: dict[object, str] = {bool: "true or false", int: "integer", float: "number", str: "text"}
    return names[kind]


def _is_list(hint: object) -> bool:
    origin = get_origin(hint)
    return isinstance(origin, type) and issubclass(origin, Sequence)


def _choices(hint: object) -> str:
    """`a`, `b` of a Literal; else empty."""
    for kind in (hint, *get_args(hint)):
        if get_origin(kind) is Literal and len(get_args(kind)) > 1:
            return ", ".join(f"`{choice}`" for choice in get_args(kind))
    return ""


def _look_up(values: Any, name: str) -> Any:
    """The value of a dotted name in nested mappings; `...` inside of null."""
    for key in name.split(".") if name else []:
        values = values.get(key, ...) if isinstance(values, Mapping) else ...
    return values


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=\.)\s", " ".join(text.split()), maxsplit=1)[0]


def _entries(option: Option, value: object) -> list[str]:
    """Lines of `--help` about a setting, or about each name of a mapping."""
    text = _first_sentence(option.meaning).removesuffix(".")
    told = all(choice in text for choice in option.range.split(", "))  # also where there is no range
    text = (text if told else f"{text} ({option.range})").replace("`", "")
    if isinstance(value, Mapping) and value:
        return [
            _entry(option.name, "", text),
            *(_entry(f"  {option.name}.{key}", written(value[key])) for key in value),
        ]
    return [_entry(option.name, written(value), text)]


def _entry(name: str, value: str, text: str = "") -> str:
    """`  name=value    text`, the text in a column of its own."""
    head = f"  {name}={value}" if value else f"  {name}"
    body = textwrap.wrap(text, _WIDTH - _COLUMN)
    if len(head) > _COLUMN - 2:
        return "\n".join([head, *(" " * _COLUMN + line for line in body)])
    return "\n".join([head.ljust(_COLUMN) + (body or [""])[0], *(" " * _COLUMN + line for line in body[1:])]).rstrip()
