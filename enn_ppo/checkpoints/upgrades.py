"""Checkpoints of older formats, as they would be saved now.

`UPGRADES` reads like a table: what changed from each format to the next. A setting or value that is only new, and by default
does what was done before, needs no rule: what is left out has its default.

Raise `FORMAT` and add a row when an old file can no longer be understood without one.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

FORMAT = 2  # of what is saved now


class Contents(NamedTuple):
    """The parts of a checkpoint that formats differ in."""

    policy: dict[str, Tensor]
    config: dict[str, Any]
    trainer: dict[str, Any]


@dataclass(frozen=True)
class Renamed:
    """What was called one name is called another."""

    old: str  # dotted
    new: str

    def __call__(self, nested: dict[str, Any]) -> None:
        """Rename it, if it is there."""
        holder, key = _find(nested, self.old)
        if key in holder:
            value = holder.pop(key)
            holder, key = _find(nested, self.new, make=True)
            holder[key] = value


@dataclass(frozen=True)
class Removed:
    """What there was is no more."""

    old: str  # dotted

    def __call__(self, nested: dict[str, Any]) -> None:
        """Remove it, if it is there."""
        holder, key = _find(nested, self.old)
        holder.pop(key, None)


@dataclass(frozen=True)
class Added:
    """What there was not is there, with the value that changes nothing."""

    new: str  # dotted
    value: Any

    def __call__(self, nested: dict[str, Any]) -> None:
        """Add it, unless it is there."""
        holder, key = _find(nested, self.new, make=True)
        holder.setdefault(key, copy.deepcopy(self.value))


Rule = Renamed | Removed | Added


@dataclass(frozen=True)
class Upgrade:
    """What changed from one format to the next."""

    settings: Sequence[Rule] = ()
    trainer: Sequence[Rule] = ()
    new_weights: Mapping[str, Tensor] | None = None  # that change nothing


UPGRADES: Mapping[int, Upgrade] = {
    1: Upgrade(  # to 2
        settings=(
            Renamed("keep_checkpoints", "keep_last"),
            Added("keep_best", 0),
        ),
        trainer=(
            Added("scale", None),
            Added("recorder", None),
            Added("recent_rewards", []),
            Added("evaluations", []),
            Added("self_play", None),
        ),
        new_weights={
            "value_head.mean": torch.tensor(0.0),
            "value_head.deviation": torch.tensor(1.0),
        },
    ),
}
assert set(UPGRADES) == set(range(1, FORMAT))


def upgrade(saved_format: int, contents: Contents) -> Contents:
    """What was saved in an older format, as it would be saved now; `contents` itself stays as it is."""
    if saved_format == FORMAT:
        return contents
    policy, config, trainer = dict(contents.policy), copy.deepcopy(contents.config), copy.deepcopy(contents.trainer)
    for step in range(saved_format, FORMAT):
        changes = UPGRADES[step]
        for rule in changes.settings:
            rule(config)
        for rule in changes.trainer:
            rule(trainer)
        for name, value in (changes.new_weights or {}).items():
            policy.setdefault(name, value.clone())
    return Contents(policy, config, trainer)


class _Place(NamedTuple):
    holder: dict[str, Any]
    key: str


def _find(nested: dict[str, Any], dotted: str, *, make: bool = False) -> _Place:
    """Where a dotted name stands; in an empty mapping if a section on the way is missing, and not to be made."""
    *sections, key = dotted.split(".")
    for section in sections:
        inner = nested.get(section)
        if not isinstance(inner, dict):
            inner = {}
            if make:
                nested[section] = inner
        nested = inner
    return _Place(nested, key)
