"""Checkpoints made by hand: small ones, and ones as a stranger could forge them, whose hash is right and without a signature."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from enn_ppo.checkpoints import Checkpoint, policy_file, save_checkpoint, step_file
from enn_ppo.checkpoints.policy_file import policy_bytes, read_policy_file

MOMENTS = {"step": torch.tensor(1.0), "exp_avg": torch.zeros(4), "exp_avg_sq": torch.zeros(4)}


def save(directory: Path, step: int = 100, keep_last: int = 9, protected: Collection[int] = (), **changes: Any) -> Path:
    """Save a small checkpoint with these fields of `Checkpoint`; returns the file."""
    parts: dict[str, Any] = {
        "policy": {"w": torch.arange(6.0)},
        "value_net": {"v": torch.ones(3)},
        "config": {"env": {"id": "Xor"}},
        "spaces": {"entities": {"Mine": ["x"]}},
        "trainer": {"optimizer": {"state": {0: MOMENTS}, "param_groups": []}, "scale": None},
        "score": 0.5,
    }
    checkpoint = Checkpoint(path=step_file(directory, step), step=step, **(parts | changes))
    return save_checkpoint(checkpoint, keep_last, protected)


def sealed(file: Path, **changes: Any) -> Path:
    """Write a checkpoint anew with these fields of `Checkpoint`; returns the file."""
    file.write_bytes(policy_bytes(replace(read_policy_file(file), **{"is_own": False, **changes})))
    return file


def with_header(file: Path, **texts: str | None) -> Path:
    """Replace texts of a policy file's metadata, or remove those that are None, and write its hash anew; returns the file."""
    header, content = policy_file._split(file.read_bytes())
    changed = {**header["__metadata__"], "signature": "", "hash": "0" * 64, **texts}
    metadata = header["__metadata__"] = {name: text for name, text in changed.items() if text is not None}
    metadata["hash"] = policy_file._sha256(policy_file._start(header), content)
    file.write_bytes(policy_file._start(header) + content)
    return file


def with_trainer(file: Path, **entries: Any) -> Path:
    """Replace entries of the trainer's state; returns the file."""
    return sealed(file, trainer={**read_policy_file(file).trainer, **entries})


def with_settings(file: Path, section: str, **settings: Any) -> Path:
    """Replace settings, of a section or of none, of the checkpoint's config; returns the file."""
    config = json.loads(json.dumps(read_policy_file(file).config))
    (config[section] if section else config).update(settings)
    return sealed(file, config=config)
