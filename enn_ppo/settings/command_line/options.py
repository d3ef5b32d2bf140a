"""`--help` pages and the options of the site, made from the types, defaults and docstrings of the settings."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, Literal, NamedTuple, get_args, get_origin

from enn_ppo.settings.command_line.composition import CONFIGS, compose, plain_values
from enn_ppo.settings.schedule import Scheduled
from enn_ppo.settings.schema import flatten, section_of
from rogue_net.checks import alternatives, field_types, split_range

_WIDTH, _COLUMN = 120, 44  # width of --help, and the start of its second column
_TYPES = {
    NoneType: "null",
    bool: "true or false",
    int: "integer",
    float: "number",
    str: "text",
    Scheduled: "number or schedule",
}

_EXAMPLES = {
    "train": (
        "env=MineSweeper env.kwargs.width=8 total_timesteps=1e6 run_dir=outputs/mines",
        "env=custom env.id=my_pkg.my_env:MyEnv    # or gymnasium, dm_env, pettingzoo, program",
        "'optim.lr=0.001@0 -> 0@1' 'env.info.num_mines=[3,4,5]'    # quotes: shells read > and [",
        "--multirun env=Xor,Count seed=1,2,3 run_dir=outputs/all    # every combination",
        "resume=outputs/mines total_timesteps=2e6",
    ),
    "eval": ("checkpoint=outputs/mines episodes=1000 output=result.json",),
    "watch": ("outputs/mines episodes=20    # --live follows a training",),
    "serve": ("checkpoint=outputs/orchard port=5577",),
    "clone": ("data=expert.rec env=MineSweeper run_dir=outputs/clone",),
    "sweep": ("sweep=ppo env=Xor sweep.trials=30 run_dir=outputs/sweep    # the same command again goes on",),
}


class Option(NamedTuple):
    """Documentation of one setting."""

    name: str  # dotted
    type: str
    default: str  # in YAML; empty if there is none
    range: str  # range of a number, or the choices; otherwise empty
    meaning: str


class Section(NamedTuple):
    """Documentation of a settings class, without those nested in it."""

    path: str  # dotted, empty at the top
    summary: str
    options: list[Option]
    optional: bool  # may be null as a whole


def sections_of(cls: type[Any], path: str = "", summary: str = "", *, optional: bool = False) -> list[Section]:
    """The sections of a settings class in the order of their fields, each before those nested in it; the top one is last."""
    docs, hints = field_docstrings(cls), field_types(cls)
    own = Section(path, summary or _first_sentence(inspect.getdoc(cls) or ""), [], optional)
    inner: list[Section] = []
    for field in dataclasses.fields(cls):
        hint, name = hints[field.name], f"{path}.{field.name}" if path else field.name
        section = section_of(hint)
        if section is None:
            kind, range_ = _type_and_range(hint)
            own.options.append(Option(name, kind, _default(field), range_, docs[field.name]))
        elif hint == section:
            inner += sections_of(section, name, optional=optional)
        else:  # may be null, which the field's docstring explains
            inner += sections_of(section, name, docs[field.name], optional=True)
    return [own, *inner] if path else [*inner, own]


def field_docstrings(cls: type[Any]) -> dict[str, str]:
    """Field -> its docstring in one line, including fields of base classes.

    Raises:
        ValueError: a field has no docstring.
    """
    docs: dict[str, str] = {}
    for base in filter(dataclasses.is_dataclass, reversed(cls.__mro__)):
        body = ast.parse(inspect.getsource(base)).body[0].body  # type: ignore[attr-defined]
        for node, following in zip(body, [*body[1:], None], strict=True):
            match node, following:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    docs[name] = " ".join(text.split())
                case ast.AnnAssign(target=ast.Name(id=name)), _:
                    raise ValueError(f"{base.__name__}.{name} has no docstring below it")
    return docs


def written(value: object) -> str:
    """A value in the syntax of YAML and of the command line."""
    return value if isinstance(value, str) else json.dumps(value, default=list)


def help_page(name: str, schema: type[Any], overrides: Sequence[str], config_dir: Path | None) -> str:
    """The text of `python -m enn_ppo.<name> --help`: usage, and every setting with its value after the other arguments.

    Args:
        name: of the command.
        schema: class of the settings.
        overrides: `env=Xor --help` shows the values for Xor.
        config_dir: folder with the user's config files.

    Raises:
        ValueError: an argument is invalid.
    """
    values = plain_values(compose(name, overrides, config_dir), allow_missing=True)
    groups = {"value_net": ["default", "none"], "distributed": ["none", "ray", "ddp"]}
    for folder in filter(None, (CONFIGS, config_dir)):
        for file in sorted(folder.glob("*/*.yaml")):
            groups.setdefault(file.parent.name, []).append(file.stem)
    known = {*schema.__dataclass_fields__, *({"experiment"} if "env" in schema.__dataclass_fields__ else ())}
    program = f"python -m enn_ppo.{name}"
    return "\n".join(
        [
            f"{program} [name=value ...] [--cfg job] [--config-dir FOLDER] [--multirun] [--hydra-help] [--help]",
            *(f"  {program} {example}" for example in _EXAMPLES.get(name, ())),
            "",
            help_text(schema, values, {group: choices for group, choices in groups.items() if group in known}),
            "",
            "In full: https://enn-ppo.github.io/enn-ppo/options; of net, with formulas: docs/network.md.",
            "--cfg job prints the settings as YAML.",
        ]
    )


def help_text(cls: type[Any], values: Mapping[str, Any], groups: Mapping[str, Sequence[str]]) -> str:
    """The part of `--help` that lists groups and settings.

    Args:
        cls: class of the settings.
        values: values of the settings, nested.
        groups: name -> choices.
    """
    flat = flatten(values)
    lines = ["Groups: name=choice sets several settings at once."] * bool(groups)
    lines += [_row(name, ", ".join(choices)) for name, choices in groups.items()]
    for section in sections_of(cls):
        is_null = section.optional and not any(name.startswith(section.path + ".") for name in flat)
        if not is_null or section.path in flat:
            lines += ["", *textwrap.wrap(f"{section.path or 'top level'}: {section.summary}".replace("`", ""), _WIDTH)]
        for option in [] if is_null else section.options:
            text = _first_sentence(option.meaning).removesuffix(".")
            if not all(choice in text for choice in option.range.split(", ")):
                text += f" ({option.range})"
            below = {name: value for name, value in flat.items() if name.startswith(option.name + ".")}
            for name, value in (below or {option.name: flat.get(option.name, {})}).items():
                lines.append(_row(f"{name}={written(value)}", text.replace("`", "")))
                text = ""
    return "\n".join(lines).strip("\n")


def _row(name: str, text: str) -> str:
    """Format `  name    text`, with the text in the second column."""
    head = f"  {name}".ljust(_COLUMN - 1)
    return textwrap.fill(text, _WIDTH, initial_indent=head + " ", subsequent_indent=" " * _COLUMN) or head.rstrip()


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        return written(field.default_factory())
    return "" if field.default is dataclasses.MISSING else written(field.default)


def _type_and_range(hint: object) -> tuple[str, str]:
    """`PositiveInt | None` -> ("integer or null", "at least 1")."""
    types, ranges = [], []
    for kind, range_ in map(split_range, alternatives(hint)):
        origin, arguments = get_origin(kind), get_args(kind)
        if range_ is not None:
            ranges.append(str(range_))
        if origin is Literal:
            choices = [f"`{choice}`" for choice in arguments]
            types.append("choice" if len(choices) > 1 else choices[0])
            ranges += [", ".join(choices)] * (len(choices) > 1)
        elif origin is dict:
            types.append("mapping")
        elif isinstance(origin, type) and issubclass(origin, Sequence):
            types.append("list of integers" if split_range(*arguments[:1])[0] is int else "list of texts")
        else:
            types.append(_TYPES[kind])
    return " or ".join(types), ", ".join(ranges)


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=\.)\s", " ".join(text.split()), maxsplit=1)[0]
