"""The run directory: its files, and checks before an older run is overwritten."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from enn_ppo.training.files import ASIDE, is_link, replace_file
from entity_gym.untrusted import YAML_BYTES, open_regular, read_regular

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
_FOLDERS = (CHECKPOINTS, POOL, VIDEOS, REPLAYS, TENSORBOARD, WANDB)
_FILES = (LEARNING_CURVE, RATINGS, CLONE_SETTINGS, CLONE_ROWS, METRICS, CONFIG)
#: Names that a run writes into its subdirectories; trackers' folders may hold anything.
_LEAVES = {
    **dict.fromkeys((CHECKPOINTS, POOL), rf"step_\d{{12,}}\.safetensors|{ASIDE}"),
    VIDEOS: rf"step_\d{{12,}}\.gif|{ASIDE}",
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
        ValueError: the directory holds a run and neither flag is set, both are set, something that no run writes has the name
            of a run's file or folder, or the directory cannot be written.
    """
    path = Path(path)
    if resume and overwrite:
        raise ValueError("resume and overwrite=true exclude each other: one continues a run, the other removes it")
    try:
        if path.exists() and not path.is_dir():
            raise ValueError(f"run_dir {path} is a file; give a folder, which need not be there yet")
        path.mkdir(parents=True, exist_ok=True)
        # creating a file is the only test that works for root, read-only mounts and full disks
        replace_file(path / ".probe", b"\n")
        (path / ".probe").unlink()
        found = [name for name in _MARKS if os.path.lexists(path / name)]
        if strange := list(_strange(path, strictly=bool(found) and overwrite)):
            raise ValueError(
                f"run_dir {path} is refused: {'; '.join(strange[:3])}. A run writes and removes only its own files and folders: "
                "remove these, or give another run_dir"
            )
        if found and not (resume or overwrite):
            raise ValueError(
                f"run_dir {path} already holds a run ({', '.join(found)}): continue it with resume={path}, "
                "remove it with overwrite=true, or give another run_dir"
            )
        # checkpoints first and config.yaml last: after an interruption the remaining files still count as a run
        for name in (*_FOLDERS, *_FILES) if found and overwrite else ():
            if os.path.lexists(path / name):
                shutil.rmtree(path / name) if name in _FOLDERS else (path / name).unlink()
        for folder in (path, path / CHECKPOINTS, path / POOL, path / VIDEOS, path / REPLAYS):
            for entry in folder.iterdir() if folder.is_dir() else ():
                if re.fullmatch(ASIDE, entry.name):  # left half written by a crash
                    entry.unlink()
    except OSError as error:
        blocker = error.filename or path
        raise ValueError(f"run_dir {path} cannot be written: {error.strerror or error} ({blocker})") from error
    return path


def _strange(path: Path, strictly: bool) -> Iterator[str]:
    """Say what of the files and folders with a run's names is a link or of another kind. Trackers' folders may hold links.

    Args:
        path: the run directory.
        strictly: everything is about to be removed, so other names and contents are strange, too.
    """
    for name in (*_FOLDERS, *_FILES):
        entry, is_folder = path / name, name in _FOLDERS
        if is_link(entry):
            yield f"{name} is a link"
        elif not os.path.lexists(entry):
            continue
        elif not (entry.is_dir() if is_folder else entry.is_file()):
            yield f"{name} is no {'folder' if is_folder else 'file'}"
        elif strictly and name == CONFIG and b"total_timesteps:" not in read_regular(entry, YAML_BYTES):
            yield f"{name} has no total_timesteps"
        elif strictly and name == METRICS and open_regular(entry).read(1) not in (b"", b"{"):
            yield f"{name} holds no rows of metrics"
        for leaf in sorted(entry.iterdir()) if name in _LEAVES and entry.is_dir() else ():
            if not re.fullmatch(_LEAVES[name], leaf.name):
                if strictly:
                    yield f"{name} holds {leaf.name}"
            elif leaf.name.startswith("."):
                continue
            elif is_link(leaf):
                yield f"{name}/{leaf.name} is a link"
            elif not leaf.is_file():
                yield f"{name}/{leaf.name} is no file"
