"""Conversion between nested mappings, from YAML and the command line, and the dataclasses of settings."""

from __future__ import annotations

import dataclasses
import json
import math
import numbers
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, get_type_hints

from entity_gym.errors import nearest
from rogue_net.checks import alternatives

C = TypeVar("C")


def from_dict(cls: type[C], mapping: Mapping[str, Any], path: str = "") -> C:
    """Make an instance of a settings class from nested mappings.

    Floats that are whole numbers are accepted as integers (`1e6` for a count) and the reverse, and texts like `"1e-3"`, which
    YAML 1.1 does not read as a number, as numbers. Missing fields have their defaults.

    Args:
        cls: a dataclass of settings.
        mapping: field names to values.
        path: dotted name of `cls` itself inside its parent, for messages.

    Raises:
        ValueError: a field is unknown or its value is not allowed; the message has its dotted name, and the nearest known name.
    """
    if not isinstance(mapping, Mapping):
        raise ValueError(f"{path or 'the config'} must be a mapping of settings, got {mapping!r}")
    hints = get_type_hints(cls)
    values = {}
    for name, value in mapping.items():
        dotted = f"{path}.{name}" if path else str(name)
        if name not in hints:
            raise ValueError(unknown_setting(dotted, [f"{path}.{known}" if path else known for known in hints]))
        hint = hints[name]
        section = section_of(hint)
        if section is not None and not (value is None and section != hint):
            try:
                values[name] = from_dict(section, value, dotted)
            except ValueError as error:
                if section != hint and dotted not in str(
                    error
                ):  # errors of `value_net` name its class's section, `net`
                    error.add_note(f"(in {dotted})")
                raise
        else:
            values[name] = _convert(value, hint)
    for known in dataclasses.fields(cls):  # type: ignore[arg-type]
        required = known.default is dataclasses.MISSING and known.default_factory is dataclasses.MISSING
        if required and known.name not in values:
            raise ValueError(f"{path + '.' if path else ''}{known.name} has no value, and no default")
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


def setting_names(cls: type[Any], path: str = "") -> list[str]:
    """The dotted names of all settings, each section before its settings: `["env", "env.id", ...]`."""
    names = []
    for name, hint in get_type_hints(cls).items():
        dotted = f"{path}.{name}" if path else name
        names.append(dotted)
        section = section_of(hint)
        if section is not None:
            names.extend(setting_names(section, dotted))
    return names


def section_of(hint: object) -> type[Any] | None:
    """The settings class in a field's type, also if the field may be null; None for a plain field."""
    for kind in alternatives(hint):
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            return kind
    return None


def unknown_setting(key: str, names: Sequence[str]) -> str:
    """The error message for an unknown `key`: the known `names` of its section, and the nearest one."""
    section, _, last = key.rpartition(".")
    siblings = [name for name in names if name.rpartition(".")[0] == section]
    allowed = siblings or [name for name in names if "." not in name]
    listing = nearest(key, allowed).partition("; ")[0]
    # within the section only the last part of the name is compared
    _, _, near = nearest(last, [name.rpartition(".")[2] for name in allowed]).partition("; ")
    if near and section and siblings:
        near = near.replace("did you mean '", f"did you mean '{section}.")
    elsewhere = [name for name in names if name.endswith("." + last)]
    if elsewhere:  # the right name in the wrong section: `lr` or `optm.lr` for `optim.lr`
        near = f"did you mean {elsewhere[0]!r}?"
    return f"{key} is not a setting; {listing}" + (f"; {near}" if near else "")


def _convert(value: object, hint: object) -> object:
    """Convert YAML's number types to the field's; other values are left to the field's own check."""
    kinds = alternatives(hint)
    if float in kinds and isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    if float in kinds and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:  # an integer of hundreds of digits
            return math.inf if value > 0 else -math.inf
    return value


def plain(value: Any, where: str) -> Any:
    """Deep-copy a value as dictionaries, lists and plain values."""
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


def text_settings(cls: type[Any], path: str = "") -> list[str]:
    """The dotted names of all settings that are texts, or null."""
    names = []
    for name, hint in get_type_hints(cls).items():
        if (section := section_of(hint)) is not None:
            names += text_settings(section, f"{path}{name}.")
        elif set(alternatives(hint)) <= {str, type(None)}:
            names.append(f"{path}{name}")
    return names


def quoted(value: object, where: str = "the argument", *, always: bool = False) -> str:
    """Format a value for the command line, in the grammar of Hydra; `always`: also texts that need no quotes.

    Raises:
        ValueError: `where` holds something else than numbers, texts, true, false, null, lists and mappings.
    """
    if isinstance(value, os.PathLike):
        return quoted(os.fspath(value), where, always=True)
    if value is None or type(value) in (bool, int, float):
        return json.dumps(value)
    if isinstance(value, numbers.Real):  # of NumPy
        return str(value)
    if isinstance(value, str):
        if not always and re.fullmatch(r"[\w.@/:+-]+", value, re.ASCII):
            return value
        # within quotes, a backslash stands for itself unless quotes follow
        escaped = re.sub(r"(\\*)('|$)", lambda match: match[1] * 2 + match[2].replace("'", "\\'"), value)
        return f"'{escaped}'"
    if isinstance(value, list | tuple):
        return "[" + ",".join(quoted(item, where) for item in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{quoted(key, where)}:{quoted(item, where)}" for key, item in value.items()) + "}"
    raise ValueError(f"{where} must hold numbers, texts, true, false, null, lists or mappings, got {value!r}")
