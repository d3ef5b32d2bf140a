"""Finding and reading checkpoints. Reading never executes code."""

from __future__ import annotations

import difflib
import hashlib
import io
import os
import pickle
import re
import warnings
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from enn_ppo.checkpoints.policy_file import (
    TENSOR_BYTES,
    Checkpoint,
    CheckpointError,
    check_finite,
    first_line,
    read_policy_file,
)
from enn_ppo.checkpoints.stored_values import decode
from enn_ppo.checkpoints.trainer_state import check_trainer
from enn_ppo.training.files import is_link
from entity_gym.untrusted import read_regular

POLICY, TRAINER = "policy.safetensors", "trainer.pt"
LEARNING = ("optimizer", "scale")  # entries of the trainer that must be finite; environments may hold NaN
LATEST, BEST = "latest", "best"
_STEP_FOLDER = re.compile(r"step_(\d{12,})")


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint from any path that `resolve_checkpoint` takes, or a policy file. Loading never executes code.

    Raises:
        CheckpointError: the checkpoint does not exist, has another format, holds NaN, or a file is missing, damaged or not data;
            the message names the file, the cause, and the newest complete checkpoint beside it.
    """
    path = Path(path)
    if path.is_file() and path.name not in (LATEST, BEST):  # which are files where links are not possible
        try:
            checkpoint = read_policy_file(path)
            _check_step(path.stem, checkpoint.step)
            return checkpoint
        except CheckpointError:
            raise
        except ValueError as error:
            raise CheckpointError(
                f"{path} is no whole policy file: {error}; give a run directory, its checkpoints folder, a step folder, or a "
                "file that enn_ppo.export wrote"
            ) from error
    folder = resolve_checkpoint(path)
    try:
        return _read_folder(folder)
    except CheckpointError as error:
        other = _newest_complete(folder.parent)
        advice = f"the newest complete checkpoint beside it is {other}" if other else "there is no other beside it"
        raise CheckpointError(f"{error}; {advice}") from error


def load_common(run_dirs: Sequence[Path]) -> list[Checkpoint]:
    """Read one checkpoint of each run, at the newest step at which all runs have a complete checkpoint.

    Policies that train together save one after the other, so after a crash in between some have a newer checkpoint.

    Raises:
        CheckpointError: a run does not exist, or there is no such step.
    """
    for run_dir in run_dirs:
        if not (run_dir / "checkpoints").is_dir():
            there = _listing([run.name for run in runs_in(run_dir.parent)])
            raise CheckpointError(
                f"there is no run of policy {run_dir.name} in {run_dir.parent}, which holds runs of {there}; give the directory "
                "that has those of all policies"
            )
    folders = [dict(step_folders(run_dir / "checkpoints")) for run_dir in run_dirs]
    for step in sorted(set.intersection(*map(set, folders)), reverse=True):
        with suppress(CheckpointError):
            return [_read_folder(of_run[step]) for of_run in folders]
    newest = [str(_newest_complete(run_dir / "checkpoints") or "nothing") for run_dir in run_dirs]
    raise CheckpointError(f"no step that all policies have saved: the newest are {', '.join(newest)}")


def runs_in(directory: Path) -> list[Path]:
    """List the run directories of policies that train together; empty if `directory` is itself a run directory, or missing."""
    if not directory.is_dir() or (directory / "checkpoints").exists():
        return []
    return sorted(entry for entry in directory.iterdir() if (entry / "checkpoints").is_dir())


def resolve_checkpoint(path: Path) -> Path:
    """Find the step folder of a checkpoint.

    Args:
        path: a run directory, its `checkpoints` folder, `checkpoints/latest` or `best`, or a step folder. If `latest` is missing
            or broken, the newest checkpoint that loads is used, with a warning.

    Raises:
        CheckpointError: there is no checkpoint; the message says what was looked for and what exists.
    """
    path = Path(path)
    if path.is_file() and (target := link_target(path)) and target.is_dir():  # where links are not possible
        path = target
    if path.is_dir():
        if _STEP_FOLDER.fullmatch(path.resolve().name) or any((path / file).is_file() for file in (POLICY, TRAINER)):
            if is_link(path) and link_target(path) is None:
                raise CheckpointError(f"{path} is a link out of its folder: give {path.resolve()} itself")
            return link_target(path) or path
        home = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    elif path.name == LATEST and path.parent.is_dir():
        home = path.parent
    else:
        raise CheckpointError(_not_there(path))
    latest = home / LATEST
    target = link_target(latest) or latest
    if target.is_dir() and (target != latest or not is_link(latest)):
        return target
    newest = _newest_complete(home)
    if newest is None:
        raise CheckpointError(_nothing_in(path, home))
    state = "leads to no checkpoint beside it" if is_link(latest) or latest.is_file() else "is missing"
    warnings.warn(f"{latest} {state}: using the newest complete checkpoint, {newest}", stacklevel=2)
    return newest


def step_folder(directory: Path, step: int) -> Path:
    """The folder of a step's checkpoint."""
    return directory / f"step_{step:012d}"


def step_folders(directory: Path) -> list[tuple[int, Path]]:
    """(step, folder) of every checkpoint in `directory`, newest first."""
    names = os.listdir(directory) if directory.is_dir() else []
    matches = [match for match in map(_STEP_FOLDER.fullmatch, names) if match]
    return sorted(((int(match[1]), directory / match[0]) for match in matches), reverse=True)


def link_target(path: Path) -> Path | None:
    """The folder beside `path` that `path` is a link to, or a file with the name of; None if it leads elsewhere."""
    if path.is_symlink():
        target = os.readlink(path)
    elif path.name in (LATEST, BEST) and path.is_file():
        target = ""
        with suppress(OSError), path.open(encoding="utf-8", errors="replace") as file:
            target = file.read(100).strip()
    else:
        return None
    return (
        None
        if target in ("", ".", "..") or "\0" in target or os.path.basename(target) != target
        else path.parent / target
    )


def _read_folder(folder: Path) -> Checkpoint:
    if missing := [name for name in (POLICY, TRAINER) if not (folder / name).is_file()]:
        raise CheckpointError(f"checkpoint {folder} is half-written: {', '.join(missing)} is missing")
    try:
        checkpoint = read_policy_file(folder / POLICY)
        _check_step(folder.name, checkpoint.step)
        trainer = _read_trainer(folder / TRAINER, checkpoint)
    except CheckpointError:
        raise
    except ValueError as error:
        raise CheckpointError(f"checkpoint {folder} is damaged: {error}") from error
    return replace(checkpoint, path=folder, trainer=trainer)


def _check_step(name: str, step: int) -> None:
    of_name = _STEP_FOLDER.fullmatch(name)
    if of_name and step != int(of_name[1]):
        raise ValueError(f"it belongs to the checkpoint of step {step}")


def _read_trainer(file: Path, checkpoint: Checkpoint) -> dict[str, Any]:
    """Read the state of the trainer.

    Raises:
        ValueError: the file cannot be read, is damaged or is no data; the message names it and the cause.
    """
    try:
        data = read_regular(file, TENSOR_BYTES)
        if hashlib.sha256(data).hexdigest() != checkpoint.trainer_hash:
            raise ValueError(f"its checksum is not the one in {POLICY}")
        return _trainer_of(data, checkpoint.step)
    except Exception as error:  # a damaged file can raise many types: zip, pickle, Unicode, shapes
        raise ValueError(f"{file.name}: {first_line(error)}") from error


def _trainer_of(data: bytes, step: int) -> dict[str, Any]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = archive.infolist()
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise ValueError("it is compressed, and such files never are")  # and may be far larger than they look
    if sum(entry.file_size for entry in entries) > len(data):
        raise ValueError("its entries claim to be larger than the file")
    try:
        stored = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        named = re.search(r"GLOBAL (\S+)", str(error))
        cause = f"names {named[1]}" if named else "is cut short or holds more than plain values"
        raise ValueError(f"{cause}; refused, because only data is read and no code is run") from error
    trainer = decode(stored, len(data))
    if not isinstance(trainer, dict):
        raise ValueError(f"holds {type(trainer).__name__}, not a mapping")
    check_finite({name: trainer[name] for name in LEARNING if name in trainer}, "trainer")
    check_trainer(trainer, step)
    return trainer


def _newest_complete(directory: Path) -> Path | None:
    """The newest step folder that loads; None if there is none."""
    for _, folder in step_folders(directory):
        with suppress(CheckpointError):
            return _read_folder(folder).path
    return None


def _not_there(path: Path) -> str:
    """The error message for a path that is no folder."""
    if path.is_file():
        return f"{path} is a file: give a run directory, its checkpoints folder, or a step folder"
    home = next(parent for parent in path.parents if parent.is_dir())
    missing = path.relative_to(home).parts[0]
    names = sorted(entry.name for entry in home.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    steps = step_folders(home)
    there = f"the newest checkpoint in {home} is {steps[0][1].name}" if steps else f"{home} holds {_listing(names)}"
    if missing == BEST and steps:
        there += "; none of them has a score yet"
    near = difflib.get_close_matches(missing, names, n=1)
    return f"no checkpoint {path}: there is no {missing} in {home}; {there}" + (
        f"; did you mean {near[0]}?" if near else ""
    )


def _nothing_in(path: Path, home: Path) -> str:
    """The error message for a folder without a complete checkpoint."""
    if damaged := step_folders(home):
        try:
            _read_folder(damaged[0][1])
        except CheckpointError as error:
            return f"no complete checkpoint in {home}: {error}"
    names = sorted(entry.name for entry in home.iterdir() if not entry.name.startswith("."))
    looked_for = f"looked for {LATEST} and step_<12 digits> in {home}"
    if (path / "config.yaml").is_file():
        return f"no checkpoint in {path}: its training ended before it saved one; begin again with overwrite=true"
    return f"no checkpoint in {path}: {looked_for}, which holds {_listing(names)}"


def _listing(names: Sequence[str], most: int = 8) -> str:
    """At most `most` of the names, for the end of a message."""
    shown = ", ".join(names[:most]) or "nothing"
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")
