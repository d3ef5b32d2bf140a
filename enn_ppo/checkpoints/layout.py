"""File, folder and link names of a checkpoint, and the number of its format."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Sequence
from pathlib import Path

FORMAT = 2  # of checkpoints and exported agents; raised when older ones can no longer be read

POLICY, CONFIG, SPACES, TRAINER = "policy.safetensors", "config.yaml", "spaces.json", "trainer.pt"
FILES = (POLICY, CONFIG, SPACES, TRAINER)  # that every checkpoint has
SUMMARY = "summary.json"  # {"seconds": ..., "score": ...}
WEIGHTS = ".safetensors"  # of further networks, beside the policy
LATEST, BEST = "latest", "best"
ASIDE = ".saving_"  # hidden: written but not published, or retired but not yet deleted
STEP_FOLDER = re.compile(r"step_(\d{12,})")


class CheckpointError(ValueError):
    """A checkpoint cannot be saved, found or read. The message says which, why, and what can be used instead."""


def step_folder(directory: Path, step: int) -> Path:
    """The folder of a step's checkpoint."""
    return directory / f"step_{step:012d}"


def step_folders(directory: Path) -> list[tuple[int, Path]]:
    """(step, folder) of every step folder, newest first."""
    names = os.listdir(directory) if directory.is_dir() else []
    matches = [match for match in map(STEP_FOLDER.fullmatch, names) if match]
    return sorted(((int(match[1]), directory / match[0]) for match in matches), reverse=True)


def hidden(directory: Path) -> Path:
    """A new name for a hidden folder in `directory`."""
    return directory / f"{ASIDE}{uuid.uuid4().hex}"


def link_target(path: Path) -> Path | None:
    """The target of a link; None if `path` is no link."""
    return path.parent / os.readlink(path) if path.is_symlink() else None


def listing(names: Sequence[str], most: int = 8) -> str:
    """Some of the names, for the end of a message."""
    shown = ", ".join(names[:most]) or "nothing"
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")


def first_line(error: BaseException) -> str:
    """The first line of an error's message."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error).strip() or type(error).__name__).splitlines()[0]
