"""The page of `--help`."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from enn_ppo.settings.command_line.composition import CONFIGS, compose, plain_values
from enn_ppo.settings.options import first_sentence, options_of, written
from enn_ppo.settings.schema import flatten

_WIDTH, _COLUMN = 120, 44  # of the page, and the start of its second column


def help_page(name: str, schema: type[Any], overrides: Sequence[str], config_dir: Path | None) -> str:
    """The text of `python -m enn_ppo.<name> --help`: usage, groups, and every setting with its value after `overrides`.

    Raises:
        ValueError: an argument is invalid.
    """
    values = plain_values(compose(name, overrides, config_dir), allow_missing=True)
    groups = {"value_net": ["default", "none"], "distributed": ["none", "ray", "ddp"]}
    for folder in filter(None, (CONFIGS, config_dir)):
        for file in sorted(folder.glob("*/*.yaml")):
            groups.setdefault(file.parent.name, []).append(file.stem)
    known = [group for group in groups if group in values or (group == "experiment" and "env" in values)]
    lines = [f"python -m enn_ppo.{name} [name=value ...] [--cfg job] [--config-dir FOLDER] [--multirun] [--hydra-help]"]
    lines += (import_module(f"enn_ppo.{name}").__doc__ or "").strip().splitlines()
    lines += ["", "Groups: name=choice sets several settings at once."] * bool(known)
    lines += [_row(group, ", ".join(groups[group])) for group in known]
    lines += ["", *help_lines(schema, values), ""]
    lines += ["In full: https://enn-ppo.github.io/enn-ppo/options; of net, with formulas: docs/network.md."]
    return "\n".join([*lines, "--cfg job prints the settings as YAML."])


def help_lines(cls: type[Any], values: Mapping[str, Any]) -> list[str]:
    """The part of `--help` that lists the settings of a class with their nested values."""
    flat, lines = flatten(values), []
    for option in options_of(cls):
        if any(option.name.startswith(f"{name}.") for name in flat):  # in a section that is null
            continue
        text = first_sentence(option.meaning)
        if option.type.startswith("section"):
            lines += ["", *textwrap.wrap(f"{option.name or 'top level'}: {text}".replace("`", ""), _WIDTH)]
            continue
        text = text.removesuffix(".")
        if not all(choice in text for choice in option.range.split(", ")):
            text += f" ({option.range})"
        below = {name: value for name, value in flat.items() if name.startswith(f"{option.name}.")}
        for name, value in (below or {option.name: flat.get(option.name, {})}).items():
            lines.append(_row(f"{name}={written(value)}", text.replace("`", "")))
            text = ""
    return lines[1:]


def _row(name: str, text: str) -> str:
    """Format `  name    text`, with the text in the second column."""
    head = f"  {name}".ljust(_COLUMN - 1)
    return textwrap.fill(text, _WIDTH, initial_indent=head + " ", subsequent_indent=" " * _COLUMN) or head.rstrip()
