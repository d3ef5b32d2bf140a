"""Writing checkpoints. After a crash, a full disk or `kill -9` the previous one still loads."""

from __future__ import annotations

import io
import json
import math
import operator
import os
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import yaml
from torch import Tensor

from enn_ppo.checkpoints.layout import (
    ASIDE,
    BEST,
    CONFIG,
    FORMAT,
    LATEST,
    POLICY,
    SPACES,
    SUMMARY,
    TRAINER,
    WEIGHTS,
    CheckpointError,
    first_line,
    hidden,
    link_target,
    step_folder,
    step_folders,
)
from enn_ppo.checkpoints.reading import read_summary
from enn_ppo.checkpoints.retention import Retention, Saved, best_of, which_to_remove
from enn_ppo.checkpoints.stored_values import encode
from enn_ppo.files import replace_file, write_file


def save_checkpoint(
    directory: Path,
    step: int,
    *,
    policy: Mapping[str, Tensor],
    config: Mapping[str, Any],
    spaces: Mapping[str, Any],
    trainer: Mapping[str, Any],
    retention: Retention,
    more_weights: Mapping[str, Mapping[str, Tensor]] | None = None,
    seconds: float | None = None,
    score: float | None = None,
) -> Path:
    """Write `directory/step_<12 digits>`, point `latest` to it, and remove the checkpoints that `retention` does not keep.

    Saving an existing step replaces it; `latest` can be loaded all the time. Checkpoints later than `step` are removed first:
    they were abandoned when the run was resumed from an earlier one.

    Args:
        directory: the run's `checkpoints` folder; created if missing.
        step: environment steps trained so far, at least 0.
        policy: name -> tensor on any device.
        config: plain values that YAML can hold.
        spaces: plain values that JSON can hold.
        trainer: nested dicts, lists and tuples of str, bytes, int of any size, float, bool, None, tensors, NumPy arrays
            and NumPy scalars. All come back with their type, dtype and shape.
        retention: which checkpoints stay.
        more_weights: name of another network, such as `value_net` -> its weights; each has a file of its own.
        seconds: of training so far, for `keep_every_minutes`.
        score: for `keep_best` and the link `best`; higher is better. None: not known yet; see `record_score`.

    Returns:
        The new step folder.

    Raises:
        CheckpointError: a value cannot be stored (the message has its path; nothing was written), or the disk cannot be
            written; earlier checkpoints still load.
    """
    step = _at_least("step", step, 0)
    directory = Path(directory)
    target = step_folder(directory, step)
    try:
        contents: dict[str, bytes] = {
            POLICY: _weights_bytes("policy", policy),
            CONFIG: _plain_bytes(CONFIG, config),
            SPACES: _plain_bytes(SPACES, spaces),
            TRAINER: trainer_bytes(step, trainer),
            SUMMARY: _summary_bytes(seconds, score),
        }
        for name, weights in (more_weights or {}).items():
            contents[_weights_file(name)] = _weights_bytes(name, weights)
        directory.mkdir(parents=True, exist_ok=True)
        _sweep(directory)
        _publish(_write_aside(directory, contents), target)
        _prune(directory, step, retention)
        _sweep(directory)
    except OSError as error:
        with suppress(OSError):  # what is left is hidden, and removed by the next save
            _tidy(directory, target)
        raise CheckpointError(
            f"saving checkpoint {target} failed: {error.strerror or error}; {what_is_there(directory)}"
        ) from error
    return target


def record_score(directory: Path, step: int, score: float) -> None:
    """Write the score of a checkpoint, and update the link `best`. Does nothing if the checkpoint is gone.

    Args:
        directory: the run's `checkpoints` folder.
        step: of the checkpoint.
        score: higher is better.

    Raises:
        CheckpointError: the disk cannot be written; the checkpoint is unchanged.
    """
    directory = Path(directory)
    folder = step_folder(directory, step)
    try:
        if folder.is_dir():
            replace_file(folder / SUMMARY, _summary_bytes(read_summary(folder).seconds, score), aside=hidden(directory))
            _flush_folder(folder)
            latest = link_target(directory / LATEST)
            _point_best(directory, now=_step_of(latest) if latest else step)
    except OSError as error:
        raise CheckpointError(
            f"the score of checkpoint {folder} cannot be written: {error.strerror or error}; {what_is_there(directory)}"
        ) from error


def what_is_there(directory: Path) -> str:
    """From which checkpoint in this folder a run can be resumed, as the end of a message."""
    link = link_target(directory / LATEST)
    if link is None:
        return f"there is no `{LATEST}` yet"
    return f"`{LATEST}` is {link.name}, and resume={directory.parent} goes on from there"


# --- Contents ---


def _at_least(name: str, value: int, minimum: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise CheckpointError(f"{name} is {value!r}: it must be a whole number") from None
    if number < minimum:
        raise CheckpointError(f"{name} is {number}: it must be at least {minimum}")
    return number


def _weights_file(name: str) -> str:
    if not re.fullmatch(r"\w+", name) or name + WEIGHTS == POLICY:
        raise CheckpointError(
            f"more_weights has {name!r}: a network's name is made of letters, digits and _, and not 'policy'"
        )
    return name + WEIGHTS


def _weights_bytes(network: str, weights: Mapping[str, Tensor]) -> bytes:
    for name, tensor in weights.items():
        if not isinstance(tensor, Tensor):
            raise CheckpointError(f"{network}[{name!r}] is {type(tensor).__name__}: it must be a tensor")
    # clones, because safetensors refuses tensors that share memory (tied weights)
    return safetensors.torch.save(
        {name: tensor.detach().cpu().contiguous().clone() for name, tensor in weights.items()}
    )


def _plain_bytes(name: str, value: Mapping[str, Any]) -> bytes:
    try:
        if name == CONFIG:
            text = str(yaml.safe_dump(dict(value), sort_keys=False, allow_unicode=True))
        else:
            text = json.dumps(dict(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        return text.encode()
    except (TypeError, ValueError, yaml.YAMLError) as error:
        raise CheckpointError(f"{name} cannot hold this: {first_line(error)}") from error


def _summary_bytes(seconds: float | None, score: float | None) -> bytes:
    known = None if score is None or not math.isfinite(score) else float(score)
    return _plain_bytes(SUMMARY, {"seconds": seconds, "score": known})


def trainer_bytes(step: int, trainer: Mapping[str, Any]) -> bytes:
    """The contents of `trainer.pt`."""
    # through memory: torch.save would turn an OSError of a file into a RuntimeError
    buffer = io.BytesIO()
    try:
        stored = encode(trainer, "trainer")
    except ValueError as error:
        raise CheckpointError(str(error)) from error
    torch.save({"format": FORMAT, "step": step, "trainer": stored}, buffer)
    return buffer.getvalue()


# --- Publishing ---


def _write_aside(directory: Path, contents: Mapping[str, bytes]) -> Path:
    aside = hidden(directory)
    aside.mkdir()
    for name, data in contents.items():
        write_file(aside / name, data)
    _flush_folder(aside)
    return aside


def _publish(aside: Path, target: Path) -> None:
    if os.path.lexists(target):
        # a folder cannot be replaced atomically: meanwhile `latest` points to a hidden copy of the new one
        _point(target.parent / LATEST, _twin(aside))
        _discard(target)
    os.replace(aside, target)
    _flush_folder(target.parent)
    _point(target.parent / LATEST, target)


def _twin(folder: Path) -> Path:
    twin = hidden(folder.parent)
    twin.mkdir()
    for file in folder.iterdir():
        try:
            os.link(file, twin / file.name)
        except OSError:  # a file system without hard links
            shutil.copyfile(file, twin / file.name)
    _flush_folder(twin)
    return twin


def _point(link: Path, folder: Path) -> None:
    """Make `link` point to the folder beside it, atomically."""
    aside = hidden(folder.parent)
    os.symlink(folder.name, aside)  # relative, so that a run directory can be moved
    os.replace(aside, link)
    _flush_folder(folder.parent)


def _prune(directory: Path, step: int, retention: Retention) -> None:
    _point_best(directory, now=step)
    removable = which_to_remove(_saved(directory), step, retention)
    for other in sorted(removable, key=lambda other: (other <= step, other)):  # abandoned ones first, then the oldest
        _discard(step_folder(directory, other))
    _point_best(directory, now=step)  # with keep_best=0 the best one may have been removed


def _point_best(directory: Path, now: int) -> None:
    """Make `best` point to the best checkpoint up to step `now`."""
    best = best_of(each for each in _saved(directory) if each.step <= now)
    link = directory / BEST
    if best:
        folder = step_folder(directory, best[0].step)
        if link_target(link) != folder:
            _point(link, folder)
    elif link.is_symlink():
        link.unlink()


def _saved(directory: Path) -> list[Saved]:
    return [Saved(step, *read_summary(folder)) for step, folder in step_folders(directory)]


def _step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step_")) if folder.name.startswith("step_") else 0


def _discard(folder: Path) -> None:
    retired = hidden(folder.parent)
    os.replace(folder, retired)  # so that no step folder is ever seen half deleted
    _remove(retired)


def _tidy(directory: Path, target: Path) -> None:
    latest = link_target(directory / LATEST)
    if latest and latest.name.startswith(ASIDE) and target.is_dir():
        _point(directory / LATEST, target)
    _sweep(directory)


def _sweep(directory: Path) -> None:
    """Remove what crashed saves have left, except a folder that `latest` points to."""
    in_use = link_target(directory / LATEST)
    for leftover in list(directory.glob(f"{ASIDE}*")):
        if leftover != in_use:
            _remove(leftover)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
