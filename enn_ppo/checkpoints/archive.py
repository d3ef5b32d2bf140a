"""A policy in one file, to play and not to train on: a zip archive that any program can read.

    agent.json            {"format": ..., "step": ...}
    policy.safetensors    the weights
    config.yaml           the resolved configuration
    spaces.json           what the policy sees and does

Members are stored as they are, so that a file cannot be larger inside than outside. Reading never executes code.
"""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import safetensors.torch
import yaml

from enn_ppo.checkpoints.layout import CONFIG, FORMAT, POLICY, SPACES, CheckpointError, first_line
from enn_ppo.checkpoints.reading import Checkpoint
from enn_ppo.files import replace_file

ABOUT = "agent.json"
MEMBERS = (ABOUT, POLICY, CONFIG, SPACES)


def write_archive(checkpoint: Checkpoint, file: Path) -> Path:
    """Write the policy of a checkpoint, whole or not at all.

    Raises:
        CheckpointError: the file cannot be written, or holds something else.
    """
    if file.is_file() and not is_archive(file):
        raise CheckpointError(f"{file} is there already and is no agent, so it is not replaced; name another file")
    parts = {
        ABOUT: json.dumps({"format": FORMAT, "step": checkpoint.step}).encode(),
        POLICY: safetensors.torch.save(checkpoint.policy),
        CONFIG: yaml.safe_dump(checkpoint.config, sort_keys=False).encode(),
        SPACES: json.dumps(checkpoint.spaces).encode(),
    }
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_STORED) as archive:
        for name in MEMBERS:
            archive.writestr(
                zipfile.ZipInfo(name), parts[name]
            )  # of the same time always: the same policy, the same file
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, whole.getvalue())
    except OSError as error:
        raise CheckpointError(f"{file} cannot be written: {first_line(error)}") from error
    return file


def read_archive(file: Path) -> Checkpoint:
    """Read what `write_archive` wrote; a checkpoint without anything of the trainer.

    Raises:
        CheckpointError: it is no such file, is damaged, or of another format; says what is wrong.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            members = {info.filename: info for info in archive.infolist()}
            missing = [name for name in MEMBERS if name not in members]
            if missing:
                raise ValueError(f"{', '.join(missing)} is not in it")
            if any(members[name].compress_type != zipfile.ZIP_STORED for name in MEMBERS):
                raise ValueError("it is compressed, and such files never are")
            parts = {name: archive.read(name) for name in MEMBERS}
        about = _mapping(json.loads(parts[ABOUT]))
        saved_format, step = about.get("format"), about.get("step")
        if type(saved_format) is not int or type(step) is not int:
            raise ValueError(f"{ABOUT} holds {about!r:.200}")
        if saved_format != FORMAT:
            raise ValueError(f"its format is {saved_format}, and this version of enn-ppo reads format {FORMAT}")
        policy = safetensors.torch.load(parts[POLICY])
        config, spaces = _mapping(yaml.safe_load(parts[CONFIG])), _mapping(json.loads(parts[SPACES]))
    except Exception as error:  # a damaged file fails in every way: zip, JSON, YAML, Unicode, shapes
        raise CheckpointError(
            f"{file} is no agent that enn_ppo.export or save_agent wrote: {first_line(error)}"
        ) from error
    return Checkpoint(file, step, policy, config, spaces, {})


def is_archive(file: Path) -> bool:
    """Whether a file is one of ours, of whatever version."""
    try:
        with zipfile.ZipFile(file) as archive:
            return set(MEMBERS) <= set(archive.namelist())
    except (zipfile.BadZipFile, OSError):
        return False


def _mapping(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"it holds {type(value).__name__} where a mapping was expected")
    return value
