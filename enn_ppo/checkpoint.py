"""Checkpoints on disk: folders that are whole or absent, and that hold data and never code.

    checkpoints/step_000000012800/policy.safetensors   the weights, for any program
                                  config.yaml          the resolved configuration
                                  spaces.json          what the policy sees and does
                                  trainer.pt           everything else that resuming needs
    checkpoints/latest -> step_000000012800

A folder is written aside under a hidden name, flushed to the disk and renamed, and only then does `latest` move, so a
crash, a full disk or `kill -9` at any moment leaves the previous checkpoint and a `latest` that loads.
Nothing here knows the network or the trainer: only names, tensors and plain values. One process saves to one folder.
"""

from __future__ import annotations

import difflib
import io
import json
import operator
import os
import pickle
import re
import shutil
import uuid
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import safetensors.torch
import torch
import yaml
from torch import Tensor

from enn_ppo.stored_values import decode, encode

__all__ = ["Checkpoint", "CheckpointError", "load_checkpoint", "resolve_checkpoint", "save_checkpoint"]

POLICY, CONFIG, SPACES, TRAINER = "policy.safetensors", "config.yaml", "spaces.json", "trainer.pt"
LATEST = "latest"
FORMAT = 1  # of trainer.pt; raise it when an old file can no longer be understood
_FILES = (POLICY, CONFIG, SPACES, TRAINER)
_STEP_FOLDER = re.compile(r"step_(\d{12,})")
_ASIDE = ".saving_"  # hidden: written but not published, or retired but not yet deleted

T = TypeVar("T")


class CheckpointError(ValueError):
    """A checkpoint cannot be saved, found or read. The message says which one, why, and what could be used instead."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """One checkpoint as it was saved. Every tensor is on the CPU."""

    path: Path  # its step folder
    step: int  # environment steps trained so far
    policy: dict[str, Tensor]
    config: dict[str, Any]  # tuples have become lists, as in every YAML and JSON file
    spaces: dict[str, Any]
    trainer: dict[str, Any]  # exactly what was given, NumPy arrays and tuples included


# --- Saving ---


def save_checkpoint(
    directory: Path,
    step: int,
    *,
    policy: Mapping[str, Tensor],
    config: Mapping[str, Any],
    spaces: Mapping[str, Any],
    trainer: Mapping[str, Any],
    keep: int,
) -> Path:
    """Write `directory/step_<12 digits>`, point `latest` to it, and remove the checkpoints beyond `keep`.

    Saving a step that exists replaces it, and `latest` never stops loading meanwhile. The first to be removed are
    checkpoints *later* than `step`: they belong to a continuation that was abandoned by resuming from an earlier one.

    Args:
        directory: the run's `checkpoints` folder; created if missing.
        step: environment steps trained so far, at least 0.
        policy: name -> tensor on any device.
        config: plain values that YAML can hold.
        spaces: plain values that JSON can hold.
        trainer: nested dicts, lists and tuples of str, bytes, int of any size, float, bool, None, tensors, NumPy arrays
            and NumPy scalars. All come back with their type, dtype and shape.
        keep: checkpoints left afterwards, at least 1.

    Returns:
        The new step folder.

    Raises:
        CheckpointError: a value cannot be stored (named by its path, nothing was written), or the disk refused; then
            the checkpoints that were there still load.
    """
    step, keep = _at_least("step", step, 0), _at_least("keep", keep, 1)
    directory = Path(directory)
    target = directory / f"step_{step:012d}"
    try:
        contents: dict[str, bytes | memoryview] = {
            POLICY: _policy_bytes(policy),
            CONFIG: _plain_bytes(CONFIG, config),
            SPACES: _plain_bytes(SPACES, spaces),
            TRAINER: _trainer_bytes(step, trainer),
        }
        directory.mkdir(parents=True, exist_ok=True)
        _sweep(directory)
        _publish(_write_aside(directory, contents), target)
        _prune(directory, step, keep)
        _sweep(directory)
    except OSError as error:
        with suppress(OSError):  # the disk may still refuse; what is left over is hidden, and swept by the next save
            _tidy(directory, target)
        link = _link_target(directory / LATEST)
        now = f"`{LATEST}` is {link.name}" if link else f"there is no `{LATEST}` yet"
        raise CheckpointError(f"saving checkpoint {target} failed: {error.strerror or error}; {now}") from error
    return target


def _at_least(name: str, value: int, minimum: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise CheckpointError(f"{name} is {value!r}: it must be a whole number") from None
    if number < minimum:
        raise CheckpointError(f"{name} is {number}: it must be at least {minimum}")
    return number


def _policy_bytes(policy: Mapping[str, Tensor]) -> bytes:
    for name, tensor in policy.items():
        if not isinstance(tensor, Tensor):
            raise CheckpointError(f"policy[{name!r}] is {type(tensor).__name__}: it must be a tensor")
    # clones, because safetensors refuses tensors that share memory (tied weights)
    return safetensors.torch.save({name: tensor.detach().cpu().contiguous().clone() for name, tensor in policy.items()})


def _plain_bytes(name: str, value: Mapping[str, Any]) -> bytes:
    try:
        if name == CONFIG:
            text = str(yaml.safe_dump(dict(value), sort_keys=False, allow_unicode=True))
        else:
            text = json.dumps(dict(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        return text.encode()
    except (TypeError, ValueError, yaml.YAMLError) as error:
        raise CheckpointError(f"{name} cannot hold this: {_first_line(error)}") from error


def _trainer_bytes(step: int, trainer: Mapping[str, Any]) -> memoryview:
    # Through memory, because torch.save turns an OSError of a file object into a RuntimeError about positions.
    buffer = io.BytesIO()
    try:
        stored = encode(trainer, "trainer")
    except ValueError as error:
        raise CheckpointError(str(error)) from error
    torch.save({"format": FORMAT, "step": step, "trainer": stored}, buffer)
    return buffer.getbuffer()


def _write_aside(directory: Path, contents: Mapping[str, bytes | memoryview]) -> Path:
    aside = _hidden(directory)
    aside.mkdir()
    for name, data in contents.items():
        with open(aside / name, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    _flush_folder(aside)
    return aside


def _publish(aside: Path, target: Path) -> None:
    if os.path.lexists(target):
        # A folder cannot be replaced in one move, so `latest` spends the exchange on a hidden twin of the new one.
        _point_latest(_twin(aside))
        _discard(target)
    os.replace(aside, target)
    _flush_folder(target.parent)
    _point_latest(target)


def _twin(folder: Path) -> Path:
    twin = _hidden(folder.parent)
    twin.mkdir()
    for file in folder.iterdir():
        try:
            os.link(file, twin / file.name)
        except OSError:  # a file system without hard links
            shutil.copyfile(file, twin / file.name)
    _flush_folder(twin)
    return twin


def _point_latest(folder: Path) -> None:
    link = _hidden(folder.parent)
    os.symlink(folder.name, link)  # relative, so that a run directory can be moved
    os.replace(link, folder.parent / LATEST)
    _flush_folder(folder.parent)


def _prune(directory: Path, step: int, keep: int) -> None:
    others = [other for other in _step_folders(directory) if other[0] != step]
    others.sort(key=lambda other: (other[0] > step, -other[0]))  # earlier ones newest first, then abandoned ones
    for _, folder in others[keep - 1 :]:
        _discard(folder)


def _discard(folder: Path) -> None:
    retired = _hidden(folder.parent)
    os.replace(folder, retired)  # so that no step folder is ever seen half deleted
    _remove(retired)


def _tidy(directory: Path, target: Path) -> None:
    latest = _link_target(directory / LATEST)
    if latest and latest.name.startswith(_ASIDE) and target.is_dir():
        _point_latest(target)
    _sweep(directory)


def _sweep(directory: Path) -> None:
    """Remove what crashed saves left over, but not a twin that `latest` was left on."""
    in_use = _link_target(directory / LATEST)
    for leftover in list(directory.glob(f"{_ASIDE}*")):
        if leftover != in_use:
            _remove(leftover)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _hidden(directory: Path) -> Path:
    return directory / f"{_ASIDE}{uuid.uuid4().hex}"


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- Finding ---


def resolve_checkpoint(path: Path) -> Path:
    """Find the step folder that `path` means.

    Args:
        path: a run directory, its `checkpoints` folder, `checkpoints/latest`, or a step folder. Where `latest` is
            missing or leads nowhere, the newest checkpoint that loads is used, with a warning.

    Raises:
        CheckpointError: there is none; says what was looked for and what is there.
    """
    path = Path(path)
    if path.is_dir():
        if _is_step_folder(path):
            return _link_target(path) or path
        home = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    elif path.name == LATEST and path.parent.is_dir():
        home = path.parent
    else:
        raise _not_there(path)
    latest = home / LATEST
    if latest.is_dir():
        return _link_target(latest) or latest
    newest = _newest_complete(home)
    if newest is None:
        raise _nothing_in(path, home)
    state = "leads nowhere" if latest.is_symlink() else "is missing"
    warnings.warn(f"{latest} {state}: using the newest complete checkpoint, {newest}", stacklevel=2)
    return newest


def _is_step_folder(path: Path) -> bool:
    name = (_link_target(path) or path).name
    return bool(_STEP_FOLDER.fullmatch(name)) or any((path / file).is_file() for file in (POLICY, TRAINER))


def _step_folders(directory: Path) -> list[tuple[int, Path]]:
    """Return (step, folder) of every step folder, newest first."""
    names = os.listdir(directory) if directory.is_dir() else []
    matches = [match for match in map(_STEP_FOLDER.fullmatch, names) if match]
    return sorted(((int(match[1]), directory / match[0]) for match in matches), reverse=True)


def _newest_complete(directory: Path, besides: Path | None = None) -> Path | None:
    for _, folder in _step_folders(directory):
        if folder != besides:
            with suppress(CheckpointError):
                return _read(folder).path
    return None


def _link_target(path: Path) -> Path | None:
    return path.parent / os.readlink(path) if path.is_symlink() else None


def _not_there(path: Path) -> CheckpointError:
    if path.is_file():
        return CheckpointError(f"{path} is a file: give a run directory, its checkpoints folder, or a step folder")
    home = path.parent
    while not home.is_dir():
        home = home.parent
    missing = path.relative_to(home).parts[0] if home in path.parents else path.name
    names = sorted(entry.name for entry in home.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    steps = [name for name in names if _STEP_FOLDER.fullmatch(name)]
    near = difflib.get_close_matches(missing, names, n=1)
    there = f"the newest checkpoint in {home} is {max(steps)}" if steps else f"{home} holds {_listing(names)}"
    return CheckpointError(
        f"no checkpoint {path}: there is no {missing} in {home}; {there}"
        + (f"; did you mean {near[0]}?" if near else "")
    )


def _nothing_in(path: Path, home: Path) -> CheckpointError:
    damaged = [folder for _, folder in _step_folders(home)]
    if damaged:
        try:
            _read(damaged[0])
        except CheckpointError as error:
            return CheckpointError(f"no complete checkpoint in {home}: {error}")
    names = sorted(entry.name for entry in home.iterdir() if not entry.name.startswith("."))
    looked_for = f"looked for {LATEST} and step_<12 digits> in {home}"
    return CheckpointError(f"no checkpoint in {path}: {looked_for}, which holds {_listing(names)}")


def _listing(names: list[str], most: int = 8) -> str:
    shown = ", ".join(names[:most]) or "nothing"
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")


# --- Loading ---


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint from any path that `resolve_checkpoint` takes. Loading never executes code.

    Raises:
        CheckpointError: there is none, or a file of it is missing, cut short or not data; names the file and the cause,
            and the newest complete checkpoint beside it.
    """
    folder = resolve_checkpoint(path)
    try:
        return _read(folder)
    except CheckpointError as error:
        other = _newest_complete(folder.parent, besides=folder)
        advice = f"the newest complete checkpoint beside it is {other}" if other else "there is no other beside it"
        raise CheckpointError(f"{error}; {advice}") from error


def _read(folder: Path) -> Checkpoint:
    missing = [name for name in _FILES if not (folder / name).is_file()]
    if missing:
        raise CheckpointError(f"checkpoint {folder} is half-written: {', '.join(missing)} is missing")
    policy = _read_file(folder / POLICY, safetensors.torch.load_file)
    config = _read_file(folder / CONFIG, lambda file: _mapping(yaml.safe_load(file.read_text("utf-8"))))
    spaces = _read_file(folder / SPACES, lambda file: _mapping(json.loads(file.read_text("utf-8"))))
    step, trainer = _read_file(folder / TRAINER, _read_trainer)
    return Checkpoint(folder, step, policy, config, spaces, trainer)


def _read_file(file: Path, read: Callable[[Path], T]) -> T:
    try:
        return read(file)
    except Exception as error:  # a damaged file fails in every way: zip, pickle, JSON, YAML, Unicode, shapes
        raise CheckpointError(f"checkpoint {file.parent} is damaged: {file.name}: {_first_line(error)}") from error


def _mapping(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"holds {type(value).__name__}, not a mapping")
    return value


def _read_trainer(file: Path) -> tuple[int, dict[str, Any]]:
    try:
        content = _mapping(torch.load(file, map_location="cpu", weights_only=True))
    except pickle.UnpicklingError as error:
        named = re.search(r"GLOBAL (\S+)", str(error))
        what = f"names {named[1]}" if named else "is cut short or holds more than plain values"
        raise ValueError(f"{what}; refused, because only data is read and no code is run") from error
    if content.get("format") != FORMAT:
        raise ValueError(f"has format {content.get('format')!r}; this version reads format {FORMAT}")
    return int(content["step"]), _mapping(decode(content["trainer"]))


def _first_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error).strip() or type(error).__name__).splitlines()[0]
