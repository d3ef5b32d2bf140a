"""The run directory: its files, and checks before an older run is overwritten."""

from __future__ import annotations

import os
import re
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from enn_ppo.training.files import ASIDE, is_link
from entity_gym.untrusted import YAML_BYTES, open_regular, parse_json, parse_yaml, read_regular

__all__ = [
    "CHECKPOINTS",
    "CLONE_ROWS",
    "CLONE_SETTINGS",
    "CONFIG",
    "LEARNING_CURVE",
    "METRICS",
    "POOL",
    "RATINGS",
    "REPLAYS",
    "TENSORBOARD",
    "VIDEOS",
    "WANDB",
    "prepare_run_dir",
]

CONFIG = "config.yaml"
METRICS = "metrics.jsonl"
LEARNING_CURVE = "learning_curve.png"
CHECKPOINTS = "checkpoints"
RATINGS = "ratings.json"
VIDEOS = "videos"
REPLAYS = "replays"
POOL = "pool"
TENSORBOARD = "tensorboard"
WANDB = "wandb"
CLONE_SETTINGS = "clone.yaml"
CLONE_ROWS = "clone.jsonl"
_LONGEST_ROW = 2**20  # of metrics, in bytes
_FOLDERS = (CHECKPOINTS, POOL, VIDEOS, REPLAYS, TENSORBOARD, WANDB)
_FILES = (LEARNING_CURVE, RATINGS, CLONE_SETTINGS, CLONE_ROWS, METRICS, CONFIG)
#: Names that a run writes into its subdirectories; trackers' folders may hold anything.
_LEAVES = {
    **dict.fromkeys((CHECKPOINTS, POOL), rf"step_\d{{12,}}\.safetensors|{ASIDE}"),
    VIDEOS: rf"step_\d{{12,}}\.(gif|mp4)|{ASIDE}",
    REPLAYS: rf"(step|watched)_\d{{12,}}\.html|{ASIDE}",
}
_MARKS = (CONFIG, METRICS, CHECKPOINTS)  # a directory with any of these holds a run


def prepare_run_dir(path: Path, *, resume: bool, overwrite: bool) -> Path:
    """Create the run directory, or check that the existing one can be used.

    Args:
        path: the directory; parents are created.
        resume: an existing run is continued; nothing is removed.
        overwrite: an existing run's files are removed, if they look like those of a run; other files stay.

    Returns:
        `path`, which exists and can be written to.

    Raises:
        ValueError: the directory holds a run and neither flag is set, both flags are set, the files to overwrite do not look
            like a run, a link or something else has the name of a run's file or folder, or the directory cannot be written.
    """
    path = Path(path)
    if resume and overwrite:
        raise ValueError("resume and overwrite=true exclude each other: one continues a run, the other removes it")
    try:
        if path.exists() and not path.is_dir():
            raise ValueError(f"run_dir {path} is a file; give a folder, which need not be there yet")
        path.mkdir(parents=True, exist_ok=True)
        _probe(path)
        found = [name for name in _MARKS if os.path.lexists(path / name)]
        if found and overwrite:
            _remove_run(path)
        elif strange := [problem for entry in _written_by_a_run(path) for problem in _not_a_run_s(entry)]:
            raise ValueError(
                f"run_dir {path} is refused: {'; '.join(strange[:3])}. A run writes only into its own files and folders: "
                "remove these, or give another run_dir"
            )
        elif found and not resume:
            raise ValueError(
                f"run_dir {path} already holds a run ({', '.join(found)}): continue it with resume={path}, "
                "remove it with overwrite=true, or give another run_dir"
            )
        _remove_unfinished(path)
    except OSError as error:
        blocker = error.filename or path
        raise ValueError(f"run_dir {path} cannot be written: {error.strerror or error} ({blocker})") from error
    return path


def _probe(path: Path) -> None:
    # creating a file is the only test that works for root, read-only mounts and full disks
    probe = path / f".probe_{uuid.uuid4().hex}"
    try:
        probe.write_bytes(b"\n")
    except OSError:
        probe.unlink(missing_ok=True)
        raise
    probe.unlink()


def _remove_run(path: Path) -> None:
    doubts = [doubt for doubt in map(_doubt, _written_by_a_run(path)) if doubt]
    if doubts:
        raise ValueError(
            f"overwrite=true refuses to touch run_dir {path}, which does not look like a run: {'; '.join(doubts)}. "
            "Remove it yourself or give another run_dir"
        )
    for entry in _written_by_a_run(path):
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def _written_by_a_run(path: Path) -> list[Path]:
    # checkpoints first and config.yaml last: after an interruption the remaining files still count as a run
    return [path / name for name in (*_FOLDERS, *_FILES) if os.path.lexists(path / name)]


def _not_a_run_s(entry: Path) -> Iterator[str]:
    """Say what of a run's file or folder is a link, or not of its kind. Trackers' folders may hold links."""
    if is_link(entry):
        yield f"{entry.name} is a link"
    elif entry.name in _FILES and not entry.is_file():
        yield f"{entry.name} is no file"
    elif entry.name in _FOLDERS and not entry.is_dir():
        yield f"{entry.name} is no folder"
    elif leaves := _LEAVES.get(entry.name):
        for leaf in sorted(entry.iterdir()):
            if not re.fullmatch(leaves, leaf.name):
                continue
            if is_link(leaf):
                yield f"{entry.name}/{leaf.name} is a link"
            elif not leaf.is_file() and not leaf.name.startswith("."):
                yield f"{entry.name}/{leaf.name} is no file"


def _remove_unfinished(path: Path) -> None:
    """Remove files that a crash has left half written."""
    for folder in (path, path / CHECKPOINTS, path / POOL, path / VIDEOS, path / REPLAYS):
        for entry in folder.iterdir() if folder.is_dir() else ():
            if re.fullmatch(ASIDE, entry.name):
                entry.unlink()


def _doubt(entry: Path) -> str | None:
    """Return a reason why no run can have written `entry`, or None."""
    if is_link(entry):
        return f"{entry.name} is a link"
    if entry.is_dir() != (entry.name in _FOLDERS):
        return f"{entry.name} is {'a directory' if entry.is_dir() else 'not a directory'}"
    if leaves := _LEAVES.get(entry.name):
        strangers = sorted(name for name in os.listdir(entry) if not re.fullmatch(leaves, name))
        return f"{entry.name} holds {strangers[0]}" if strangers else None
    if entry.name == CONFIG and not _is_training_config(entry):
        return f"{entry.name} has no total_timesteps"
    if entry.name == METRICS and not _starts_with_a_row(entry):
        return f"{entry.name} does not start with a row of metrics"
    return None


def _is_training_config(file: Path) -> bool:
    try:
        content = parse_yaml(read_regular(file, YAML_BYTES))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and "total_timesteps" in content


def _starts_with_a_row(file: Path) -> bool:
    try:
        with open_regular(file) as lines:
            first = lines.readline(_LONGEST_ROW)
    except OSError:
        return False
    if not first.endswith(b"\n"):  # no row, or an incomplete one
        return first == b"" or first.startswith(b"{")
    try:
        row = parse_json(first)
    except ValueError:
        return False
    return isinstance(row, dict) and "step" in row
