"""Checkpoints as a stranger could forge them: whatever their files hold, the manifest has its checksums, and no signature."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import yaml

from enn_ppo.checkpoints.manifest import MANIFEST, Manifest, checksum_of, manifest_bytes


def sealed(folder: Path) -> Path:
    """Write the manifest of a checkpoint anew; returns the folder."""
    files = {file.name: checksum_of(file.read_bytes()) for file in sorted(folder.iterdir()) if file.name != MANIFEST}
    (folder / MANIFEST).write_bytes(manifest_bytes(Manifest(files)))
    return folder


def with_trainer(folder: Path, **entries: Any) -> Path:
    """Replace entries of the trainer's state as it is stored; returns the folder."""
    content = torch.load(folder / "trainer.pt", weights_only=True)
    content["trainer"] |= entries
    torch.save(content, folder / "trainer.pt")
    return sealed(folder)


def with_settings(folder: Path, section: str, **settings: Any) -> Path:
    """Replace settings of a section of the checkpoint's config; returns the folder."""
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config[section] |= settings
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    return sealed(folder)
