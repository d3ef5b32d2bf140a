"""Checkpoints as a stranger could forge them: whatever their files hold, the hashes are right, and there is no signature."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from enn_ppo.checkpoints import policy_file
from enn_ppo.checkpoints.policy_file import policy_bytes, read_policy_file


def sealed(file: Path, **changes: Any) -> Path:
    """Write a checkpoint anew with these fields of `Checkpoint`; returns the file."""
    file.write_bytes(policy_bytes(replace(read_policy_file(file), **{"is_own": False, **changes})))
    return file


def with_header(file: Path, **texts: str | None) -> Path:
    """Replace texts of a policy file's header, or remove those that are None, and write its hash anew; returns the file."""
    header, content = policy_file._split(file.read_bytes())
    changed = {**header["__metadata__"], "signature": "", **texts}
    header["__metadata__"] = {name: text for name, text in changed.items() if text is not None and name != "hash"}
    header["__metadata__"]["hash"] = policy_file._hash(header, content)
    packed = policy_file._header_bytes(header)
    file.write_bytes(len(packed).to_bytes(8, "little") + packed + content)
    return file


def with_trainer(file: Path, **entries: Any) -> Path:
    """Replace entries of the trainer's state; returns the file."""
    return sealed(file, trainer={**read_policy_file(file).trainer, **entries})


def with_settings(file: Path, section: str, **settings: Any) -> Path:
    """Replace settings of a section of the checkpoint's config; returns the file."""
    config = json.loads(json.dumps(read_policy_file(file).config))
    config[section] |= settings
    return sealed(file, config=config)
