"""Writing checkpoints. After a crash, a full disk or `kill -9` the previous checkpoint still loads."""

from __future__ import annotations

import errno
import hashlib
import io
import math
import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from enn_ppo.checkpoints.policy_file import (
    TENSOR_BYTES,
    Checkpoint,
    CheckpointError,
    check_finite,
    first_line,
    policy_bytes,
    read_policy_file,
    seconds_and_score,
)
from enn_ppo.checkpoints.reading import (
    BEST,
    LATEST,
    LEARNING,
    POLICY,
    TRAINER,
    link_target,
    load_checkpoint,
    step_folder,
    step_folders,
)
from enn_ppo.checkpoints.retention import Retention, Saved, best_of, which_to_remove
from enn_ppo.checkpoints.stored_values import encode
from enn_ppo.checkpoints.trainer_state import check_trainer
from enn_ppo.training.files import flush_folder, is_link, make_folder, replace_file, write_file
from enn_ppo.training.learning.return_scale import value_unit
from entity_gym.untrusted import read_regular

_NEW, _SPARE, _OLD, _LINK = ".saving_new", ".saving_spare", ".saving_old", ".saving_link"  # hidden, until renamed


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
        config: plain values that JSON can hold.
        spaces: plain values that JSON can hold.
        trainer: nested dicts, lists and tuples of str, bytes, int of any size, float, bool, None, tensors, NumPy arrays
            and NumPy scalars. All come back with their type, dtype and shape.
        retention: rules about which checkpoints are kept.
        more_weights: name of another network, such as `value_net` -> its weights.
        seconds: training time so far, for `keep_every_minutes`.
        score: for `keep_best` and the link `best`; higher is better. None: not known yet; see `record_score`.

    Returns:
        The new step folder.

    Raises:
        NotFinite: a weight or the optimizer's state is NaN or infinite; nothing was written.
        CheckpointError: a value cannot be stored (the message has its path; nothing was written), or the disk cannot be
            written; earlier checkpoints still load.
    """
    if not isinstance(step, int) or step < 0:
        raise CheckpointError(f"step is {step!r}: it must be a whole number of at least 0")
    directory = Path(directory)
    folder, latest = step_folder(directory, step), directory / LATEST
    try:
        data = trainer_bytes(step, trainer)
        normalize = config.get("ppo", {}).get("normalize", "none")
        checkpoint = Checkpoint(
            path=folder,
            step=step,
            policy=policy,
            config=config,
            spaces=spaces,
            value_unit=value_unit(normalize, trainer.get("scale")),
            more_weights=more_weights or {},
            trainer_hash=hashlib.sha256(data).hexdigest(),
            seconds=seconds,
            score=_known(score),
            is_own=True,
        )
        files = {POLICY: policy_bytes(checkpoint), TRAINER: data}
        make_folder(directory)
        _sweep(directory)
        try:
            _write_folder(directory / _NEW, files)
            if folder.exists():
                if (
                    link_target(latest) == folder
                ):  # two folders cannot be swapped atomically: `latest` points to a spare copy meanwhile
                    _write_folder(directory / _SPARE, files)
                    _point(latest, directory / _SPARE)
                _remove(folder)
            _rename(directory / _NEW, folder)
            _point(latest, folder)
            saved = _saved(directory)
            removed = which_to_remove(saved, step, retention)
            _point_best(directory, [each for each in saved if each.step <= step and each.step not in removed])
            for other in sorted(removed, key=lambda other: (other <= step, other)):  # abandoned ones, then the oldest
                _remove(step_folder(directory, other))
        finally:
            _sweep(directory)
    except OSError as error:
        raise CheckpointError(
            f"saving checkpoint {folder} failed: {error.strerror or error}; {what_is_there(directory)}"
        ) from error
    return folder


def record_score(directory: Path, step: int, score: float) -> None:
    """Write the score of a checkpoint, and update the link `best`. Does nothing if the checkpoint is gone.

    Args:
        directory: the run's `checkpoints` folder.
        step: of the checkpoint.
        score: higher is better.

    Raises:
        CheckpointError: the disk cannot be written, or the policy file is damaged; the checkpoint is unchanged.
    """
    directory = Path(directory)
    folder = step_folder(directory, step)
    if not folder.is_dir():
        return
    try:
        # a stranger's checkpoint stays unsigned, as `is_own` is False
        scored = replace(read_policy_file(folder / POLICY), score=_known(score))
        replace_file(folder / POLICY, policy_bytes(scored))
        flush_folder(folder)
        latest = link_target(directory / LATEST)
        last = next((saved for saved, each in step_folders(directory) if each == latest), step)
        _point_best(directory, [each for each in _saved(directory) if each.step <= last])
    except OSError as error:
        raise CheckpointError(
            f"the score of checkpoint {folder} cannot be written: {error.strerror or error}; {what_is_there(directory)}"
        ) from error
    except ValueError as error:
        raise CheckpointError(f"the score of checkpoint {folder} is not written, for it is damaged: {error}") from error


def save_policy(path: str | Path, file: str | Path) -> Path:
    """Copy a checkpoint's policy file: networks, settings and spaces, which `load_policy` and all commands but `train` take.

    Args:
        path: a run directory, one of its checkpoints, or a policy file.
        file: the file to write; only an existing policy file is replaced.

    Returns:
        `file`.

    Raises:
        CheckpointError: there is no policy at `path`, or the file cannot be written or exists and is no policy file.
    """
    file = Path(file)
    found = load_checkpoint(Path(path)).path
    if file.is_file():
        try:
            seconds_and_score(file)
        except ValueError:
            raise CheckpointError(
                f"{file} is there already and is no policy file, so it is not replaced; name another file"
            ) from None
    try:
        data = read_regular(found if found.is_file() else found / POLICY, TENSOR_BYTES)
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, data)
    except OSError as error:
        raise CheckpointError(f"{file} cannot be written: {first_line(error)}") from error
    return file


def what_is_there(directory: Path) -> str:
    """The end of an error message: the checkpoint in this folder from which the run can be resumed."""
    link = link_target(directory / LATEST)
    if link is None:
        return f"there is no `{LATEST}` yet"
    return f"`{LATEST}` is {link.name}, and resume={directory.parent} goes on from there"


# --- Contents ---


def _known(score: float | None) -> float | None:
    return None if score is None or not math.isfinite(score) else float(score)


def trainer_bytes(step: int, trainer: Mapping[str, Any]) -> bytes:
    """The contents of `trainer.pt`."""
    check_finite({name: trainer[name] for name in LEARNING if name in trainer}, "trainer")
    try:
        check_trainer(trainer, step)
        stored = encode(trainer, "trainer")
    except ValueError as error:
        raise CheckpointError(str(error)) from error
    buffer = io.BytesIO()  # torch.save turns an OSError of a file into a RuntimeError
    torch.save(stored, buffer)
    return buffer.getvalue()


# --- Folders and links ---


def _write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    folder.mkdir()
    for name, data in files.items():
        write_file(folder / name, data)
    flush_folder(folder)


def _rename(path: Path, target: Path) -> None:
    os.replace(path, target)
    flush_folder(target.parent)


def _remove(folder: Path) -> None:
    retired = folder.with_name(_OLD)
    _rename(folder, retired)  # atomic: no step folder is ever half deleted
    shutil.rmtree(retired)


def _point(link: Path, folder: Path) -> None:
    """Make `link` point to the folder beside it, atomically: a symbolic link, or a file that holds the folder's name."""
    aside = link.with_name(_LINK)
    aside.unlink(missing_ok=True)
    try:
        if os.name == "nt":  # needs a privilege, and such a link cannot be replaced
            raise OSError
        os.symlink(folder.name, aside)  # relative, so that a run directory can be moved
    except OSError as error:  # file systems such as FAT have no links
        if error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)):
            raise
        write_file(aside, folder.name.encode())
    _rename(aside, link)


def _point_best(directory: Path, saved: Iterable[Saved]) -> None:
    """Make the link `best` point to the checkpoint with the highest score; remove the link if there are no scores."""
    best = best_of(saved)
    if not best:
        (directory / BEST).unlink(missing_ok=True)
    elif link_target(directory / BEST) != step_folder(directory, best[0].step):
        _point(directory / BEST, step_folder(directory, best[0].step))


def _saved(directory: Path) -> list[Saved]:
    saved = []
    for step, folder in step_folders(directory):
        seconds = score = None
        with suppress(ValueError):  # damage of one checkpoint does not stop the saving of others
            seconds, score = seconds_and_score(folder / POLICY)
        saved.append(Saved(step, seconds, score))
    return saved


def _sweep(directory: Path) -> None:
    """Remove the leftovers of interrupted saves, except a folder that `latest` points to."""
    in_use = link_target(directory / LATEST)
    for leftover in list(directory.glob(".saving_*")):
        if is_link(leftover) or not leftover.is_dir():
            leftover.unlink()
        elif leftover != in_use:
            shutil.rmtree(leftover)
