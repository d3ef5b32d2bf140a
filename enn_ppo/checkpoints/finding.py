"""Loading a checkpoint from any path that a user may give."""

from __future__ import annotations

import difflib
import warnings
from contextlib import suppress
from pathlib import Path

from enn_ppo.checkpoints.archive import is_archive
from enn_ppo.checkpoints.layout import (
    BEST,
    LATEST,
    POLICY,
    STEP_FOLDER,
    TRAINER,
    CheckpointError,
    link_target,
    listing,
    step_folders,
)
from enn_ppo.checkpoints.reading import Checkpoint, read_checkpoint


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint from any path that `resolve_checkpoint` takes. Loading never executes code.

    Raises:
        CheckpointError: there is none, it is of another format, or a file of it is missing, cut short or not data; names
            the file and the cause, and the newest complete checkpoint beside it.
    """
    folder = resolve_checkpoint(path)
    try:
        return read_checkpoint(folder)
    except CheckpointError as error:
        other = newest_complete(folder.parent, besides=folder)
        advice = f"the newest complete checkpoint beside it is {other}" if other else "there is no other beside it"
        raise CheckpointError(f"{error}; {advice}") from error


def resolve_checkpoint(path: Path) -> Path:
    """Find the step folder that `path` means.

    Args:
        path: a run directory, its `checkpoints` folder, `checkpoints/latest` or `best`, or a step folder. Where `latest`
            is missing or leads nowhere, the newest checkpoint that loads is used, with a warning.

    Raises:
        CheckpointError: there is none; says what was looked for and what is there.
    """
    path = Path(path)
    if path.is_dir():
        if _is_step_folder(path):
            return link_target(path) or path
        home = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    elif path.name == LATEST and path.parent.is_dir():
        home = path.parent
    else:
        raise _not_there(path)
    latest = home / LATEST
    if latest.is_dir():
        return link_target(latest) or latest
    newest = newest_complete(home)
    if newest is None:
        raise _nothing_in(path, home)
    state = "leads nowhere" if latest.is_symlink() else "is missing"
    warnings.warn(f"{latest} {state}: using the newest complete checkpoint, {newest}", stacklevel=2)
    return newest


def newest_complete(directory: Path, besides: Path | None = None) -> Path | None:
    """The newest step folder that loads; None if there is none."""
    for _, folder in step_folders(directory):
        if folder != besides:
            with suppress(CheckpointError):
                return read_checkpoint(folder).path
    return None


def _is_step_folder(path: Path) -> bool:
    name = (link_target(path) or path).name
    return bool(STEP_FOLDER.fullmatch(name)) or any((path / file).is_file() for file in (POLICY, TRAINER))


def _not_there(path: Path) -> CheckpointError:
    if path.is_file():
        is_agent = is_archive(path)
        hint = "; it is an agent that enn_ppo.export wrote, which load_agent and enn_ppo.serve take" if is_agent else ""
        return CheckpointError(
            f"{path} is a file: give a run directory, its checkpoints folder, or a step folder{hint}"
        )
    home = path.parent
    while not home.is_dir():
        home = home.parent
    missing = path.relative_to(home).parts[0] if home in path.parents else path.name
    names = sorted(entry.name for entry in home.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    steps = [name for name in names if STEP_FOLDER.fullmatch(name)]
    near = difflib.get_close_matches(missing, names, n=1)
    there = f"the newest checkpoint in {home} is {max(steps)}" if steps else f"{home} holds {listing(names)}"
    if missing == BEST and steps:
        there += "; none of them has a score yet"
    return CheckpointError(
        f"no checkpoint {path}: there is no {missing} in {home}; {there}"
        + (f"; did you mean {near[0]}?" if near else "")
    )


def _nothing_in(path: Path, home: Path) -> CheckpointError:
    damaged = [folder for _, folder in step_folders(home)]
    if damaged:
        try:
            read_checkpoint(damaged[0])
        except CheckpointError as error:
            return CheckpointError(f"no complete checkpoint in {home}: {error}")
    names = sorted(entry.name for entry in home.iterdir() if not entry.name.startswith("."))
    looked_for = f"looked for {LATEST} and step_<12 digits> in {home}"
    return CheckpointError(f"no checkpoint in {path}: {looked_for}, which holds {listing(names)}")
