"""Conversion between nested mappings, from YAML and the command line, and the dataclasses of settings."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, TypeVar, get_type_hints

from entity_gym.errors import nearest
from rogue_net.checks import alternatives, as_plain

C = TypeVar("C")


def from_dict(cls: type[C], mapping: Mapping[str, Any], path: str = "") -> C:
    """Make an instance of a settings class, whose dotted name inside its parent is `path`, from nested mappings.

    Floats that are whole numbers are accepted as integers (`1e6` for a count) and the reverse, and texts like `"1e-3"`, which
    YAML 1.1 does not read as a number, as numbers. Missing fields have their defaults.

    Raises:
        ValueError: a field is unknown or its value is not allowed; the message has its dotted name, and the nearest known name.
    """
    if not isinstance(mapping, Mapping):
        raise ValueError(f"{path or 'the config'} must be a mapping of settings, got {mapping!r}")
    hints = get_type_hints(cls)
    before = f"{path}." if path else ""
    values = {}
    for name, value in mapping.items():
        if name not in hints:
            raise ValueError(unknown_setting(f"{before}{name}", [before + known for known in hints]))
        section = section_of(hints[name])
        if section is None or (value is None and section != hints[name]):
            values[name] = _convert(value, hints[name])
            continue
        try:
            values[name] = from_dict(section, value, before + name)
        except ValueError as error:
            if section != hints[name] and before + name not in str(error):  # errors of `value_net` name `net`
                error.add_note(f"(in {before}{name})")
            raise
    return cls(**values)


def to_dict(config: Any) -> dict[str, Any]:
    """The settings as nested dictionaries of plain values, for YAML and JSON; `from_dict` reads them back."""
    nested: dict[str, Any] = plain(dataclasses.asdict(config), "")
    return nested


def flatten(nested: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Flatten nested mappings to dotted names: `{"env.id": "MineSweeper", ...}`. Empty mappings disappear."""
    flat = {}
    for name, value in nested.items():
        dotted = f"{path}{name}"
        flat.update(flatten(value, dotted + ".") if isinstance(value, Mapping) else {dotted: value})
    return flat


def fields_of(cls: type[Any], path: str = "") -> dict[str, Any]:
    """The dotted name and the type of every setting, each section before its settings: `env`, `env.id` and so on."""
    fields: dict[str, Any] = {}
    for name, hint in get_type_hints(cls).items():
        fields[path + name] = hint
        if (section := section_of(hint)) is not None:
            fields |= fields_of(section, f"{path}{name}.")
    return fields


def section_of(hint: object) -> type[Any] | None:
    """The settings class in a field's type, also if the field may be null; None for a plain field."""
    for kind in alternatives(hint):
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            return kind
    return None


def unknown_setting(key: str, names: Iterable[str]) -> str:
    """The error message for an unknown `key`: the same name in another section, or the known `names` of its section."""
    section, _, last = key.rpartition(".")
    names = list(names)
    for name in names:  # `lr` or `optm.lr` for `optim.lr`
        if name.endswith("." + last):
            return f"{key} is not a setting; did you mean {name!r}?"
    siblings = [name for name in names if name.rpartition(".")[0] == section]
    return f"{key} is not a setting; {nearest(key, siblings or [name for name in names if '.' not in name])}"


def _convert(value: object, hint: object) -> object:
    """Convert YAML's number types to the field's; other values are left to the field's own check."""
    if float in alternatives(hint) and isinstance(value, str | int) and not isinstance(value, bool):
        with suppress(ValueError):
            return float(str(value))  # also an integer of hundreds of digits, which becomes infinite
    return value


def plain(value: Any, where: str) -> Any:
    """Deep-copy a value as dictionaries, lists and plain values.

    Raises:
        ValueError: there is something else in it.
    """
    value = as_plain(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ValueError(f"{where} must have texts as names, got {key!r}")
        return {key: plain(item, f"{where}.{key}" if where else key) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, f"{where}[{position}]") for position, item in enumerate(value)]
    raise ValueError(
        f"{where} must be a number, a text, true, false, null, a list or a mapping, got {value!r}; "
        "from Python, an environment that needs other arguments can be a factory: train(config, env=lambda: ...)"
    )


def quoted(value: object, where: str = "the argument", *, always: bool = False) -> str:
    """Format a value for the command line, in the grammar of Hydra; `always`: also texts that need no quotes.

    Raises:
        ValueError: `where` holds something else than numbers, texts, true, false, null, lists and mappings.
    """
    is_path = hasattr(value, "__fspath__")  # one that looks like a number stays a text
    value = plain(value, where)
    if isinstance(value, str):
        if not (always or is_path) and re.fullmatch(r"[\w.@/:+-]+", value, re.ASCII):
            return value
        # within quotes, a backslash stands for itself unless quotes follow
        escaped = re.sub(r"(\\*)('|$)", lambda match: match[1] * 2 + match[2].replace("'", "\\'"), value)
        return f"'{escaped}'"
    if isinstance(value, list):
        return "[" + ",".join(quoted(item, where) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{quoted(key, where)}:{quoted(item, where)}" for key, item in value.items()) + "}"
    return json.dumps(value)
