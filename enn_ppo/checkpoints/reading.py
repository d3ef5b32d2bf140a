"""Reading a step folder. This never executes code."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import safetensors.torch
import torch
import yaml
from torch import Tensor

from enn_ppo.checkpoints.layout import (
    CONFIG,
    FILES,
    FORMAT,
    POLICY,
    SPACES,
    SUMMARY,
    TRAINER,
    WEIGHTS,
    CheckpointError,
    first_line,
)
from enn_ppo.checkpoints.stored_values import decode

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """One checkpoint as it was saved. Every tensor is on the CPU."""

    path: Path  # its step folder
    step: int  # environment steps trained so far
    policy: dict[str, Tensor]
    config: dict[str, Any]  # tuples have become lists, as in every YAML and JSON file
    spaces: dict[str, Any]
    trainer: dict[str, Any]  # exactly what was given, NumPy arrays and tuples included
    more_weights: dict[str, dict[str, Tensor]] = field(default_factory=dict)  # network -> weights
    seconds: float | None = None  # spent training; None: not known
    score: float | None = None  # None: not known


class Summary(NamedTuple):
    """Contents of `summary.json`."""

    seconds: float | None = None
    score: float | None = None


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read a step folder.

    Raises:
        CheckpointError: a file is missing, cut short, not data, or of another format; names it and the cause.
    """
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        raise CheckpointError(f"checkpoint {folder} is half-written: {', '.join(missing)} is missing")
    policy = _read_file(folder / POLICY, safetensors.torch.load_file)
    config = _read_file(folder / CONFIG, lambda file: _mapping(yaml.safe_load(file.read_text("utf-8"))))
    spaces = _read_file(folder / SPACES, lambda file: _mapping(json.loads(file.read_text("utf-8"))))
    saved = _read_file(folder / TRAINER, _read_trainer)
    more = {
        file.name.removesuffix(WEIGHTS): _read_file(file, safetensors.torch.load_file)
        for file in sorted(folder.glob(f"*{WEIGHTS}"))
        if file.name != POLICY
    }
    summary = _read_file(folder / SUMMARY, _read_summary) if (folder / SUMMARY).is_file() else Summary()
    return Checkpoint(folder, saved.step, policy, config, spaces, saved.trainer, more, *summary)


def read_summary(folder: Path) -> Summary:
    """Read `summary.json` of a step folder; without values if it cannot be read, so that saving does not fail."""
    try:
        return _read_summary(folder / SUMMARY)
    except (OSError, ValueError):
        return Summary()


def _read_summary(file: Path) -> Summary:
    content = _mapping(json.loads(file.read_text("utf-8")))
    numbers = (content.get(name) for name in Summary._fields)
    return Summary(*(None if number is None else float(number) for number in numbers))


def _read_file(file: Path, read: Callable[[Path], T]) -> T:
    try:
        return read(file)
    except CheckpointError:
        raise
    except Exception as error:  # a damaged file fails in every way: zip, pickle, JSON, YAML, Unicode, shapes
        raise CheckpointError(f"checkpoint {file.parent} is damaged: {file.name}: {first_line(error)}") from error


def _mapping(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"holds {type(value).__name__}, not a mapping")
    return value


class _Trainer(NamedTuple):
    step: int
    trainer: dict[str, Any]


def _read_trainer(file: Path) -> _Trainer:
    try:
        content: Mapping[str, Any] = _mapping(torch.load(file, map_location="cpu", weights_only=True))
    except pickle.UnpicklingError as error:
        named = re.search(r"GLOBAL (\S+)", str(error))
        what = f"names {named[1]}" if named else "is cut short or holds more than plain values"
        raise ValueError(f"{what}; refused, because only data is read and no code is run") from error
    if (saved_format := content.get("format")) != FORMAT:
        raise CheckpointError(
            f"checkpoint {file.parent} has format {saved_format!r}, and this version of enn-ppo reads format {FORMAT}: install "
            "the version that has written it"
        )
    return _Trainer(int(content["step"]), _mapping(decode(content["trainer"])))
