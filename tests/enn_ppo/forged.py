"""Checkpoints as a stranger could forge them: whatever their files hold, the hashes are right, and there is no signature."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from enn_ppo.checkpoints import policy_file
from enn_ppo.checkpoints.policy_file import policy_bytes, read_policy_file

POLICY, TRAINER = "policy.safetensors", "trainer.pt"


def sealed(folder: Path, **changes: Any) -> Path:
    """Write the policy file anew with these fields of `Checkpoint`, and the hash of `trainer.pt`; returns the folder."""
    hash_ = hashlib.sha256((folder / TRAINER).read_bytes()).hexdigest()
    forged = replace(read_policy_file(folder / POLICY), **{"trainer_hash": hash_, "is_own": False, **changes})
    (folder / POLICY).write_bytes(policy_bytes(forged))
    return folder


def with_header(file: Path, **texts: str | None) -> Path:
    """Replace texts of a policy file's header, or remove those that are None, and write its hash anew; returns the file."""
    header, content = policy_file._split(file.read_bytes())
    changed = {**header["__metadata__"], "signature": "", **texts}
    header["__metadata__"] = {name: text for name, text in changed.items() if text is not None and name != "hash"}
    header["__metadata__"]["hash"] = policy_file._hash(header, content)
    packed = policy_file._header_bytes(header)
    file.write_bytes(len(packed).to_bytes(8, "little") + packed + content)
    return file


def with_trainer(folder: Path, **entries: Any) -> Path:
    """Replace entries of the trainer's state as it is stored; returns the folder."""
    content = torch.load(folder / TRAINER, weights_only=True)
    torch.save(content | entries, folder / TRAINER)
    return sealed(folder)


def with_settings(folder: Path, section: str, **settings: Any) -> Path:
    """Replace settings of a section of the checkpoint's config; returns the folder."""
    config = json.loads(json.dumps(read_policy_file(folder / POLICY).config))
    config[section] |= settings
    return sealed(folder, config=config)
