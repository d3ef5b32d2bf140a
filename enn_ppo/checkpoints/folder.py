"""The checkpoints of a run: saving, finding and reading them."""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from enn_ppo.checkpoints.policy_file import (
    Checkpoint,
    CheckpointError,
    first_line,
    policy_bytes,
    read_policy_file,
    seconds_and_score,
)
from enn_ppo.checkpoints.retention import Retention, Saved, best_of, which_to_remove
from enn_ppo.training.files import ASIDE, flush_folder, make_folder, replace_file
from enn_ppo.training.learning.return_scale import value_unit

LATEST, BEST = "latest", "best"
_STEP = re.compile(r"step_(\d{12,})")
_SUFFIX = ".safetensors"


# --- Saving


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
    """Write `directory/step_<12 digits>.safetensors`, and remove the checkpoints that `retention` does not keep.

    Saving an existing step replaces it. Checkpoints later than `step` are removed as well: they were abandoned when the run was
    resumed from an earlier one.

    Args:
        directory: the run's `checkpoints` folder; created if missing.
        step: environment steps trained so far, at least 0.
        policy: name -> tensor on any device.
        config: plain values that JSON can hold.
        spaces: plain values that JSON can hold.
        trainer: nested dicts, lists and tuples of str, bytes, int, float, bool, None, tensors, NumPy arrays and NumPy scalars.
            All come back with their type, dtype and shape.
        retention: rules about which checkpoints are kept.
        more_weights: name of another network, such as `value_net` -> its weights.
        seconds: training time so far.
        score: for `keep_best` and `best`; higher is better. None: not known yet; see `record_score`.

    Returns:
        The new file.

    Raises:
        NotFinite: a weight or the optimizer's state is NaN or infinite; nothing was written.
        CheckpointError: a value cannot be stored (the message has its path; nothing was written), or the disk cannot be
            written; earlier checkpoints still load.
    """
    if not isinstance(step, int) or step < 0:
        raise CheckpointError(f"step is {step!r}: it must be a whole number of at least 0")
    file = step_file(Path(directory), step)
    checkpoint = Checkpoint(
        path=file,
        step=step,
        policy=policy,
        config=config,
        spaces=spaces,
        value_unit=value_unit(config.get("ppo", {}).get("normalize", "none"), trainer.get("scale")),
        more_weights=more_weights or {},
        trainer=trainer,
        seconds=seconds,
        score=_known(score),
        is_own=True,
    )
    data = policy_bytes(checkpoint)
    try:
        make_folder(file.parent)
        for leftover in file.parent.iterdir():  # of a save that was killed
            if re.fullmatch(ASIDE, leftover.name):
                leftover.unlink()
        replace_file(file, data)
        flush_folder(file.parent)
        removed = which_to_remove(_saved(file.parent), step, retention)
        for other in sorted(removed, key=lambda other: (other <= step, other)):  # abandoned ones, then the oldest
            step_file(file.parent, other).unlink()
    except OSError as error:
        raise CheckpointError(
            f"saving checkpoint {file} failed: {error.strerror or error}; {what_is_there(file.parent)}"
        ) from error
    return file


def record_score(directory: Path, step: int, score: float) -> None:
    """Write the score of a checkpoint; higher is better. Does nothing if the checkpoint is gone.

    Raises:
        CheckpointError: the disk cannot be written, or the file is damaged; the checkpoint is unchanged.
    """
    file = step_file(Path(directory), step)
    if not file.is_file():
        return
    try:
        # a stranger's checkpoint stays unsigned, as `is_own` is False
        replace_file(file, policy_bytes(replace(read_policy_file(file), score=_known(score))))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"the score of checkpoint {file} cannot be written: {first_line(error)}") from error


def save_policy(path: str | Path, file: str | Path) -> Path:
    """Copy a checkpoint without the trainer's state, which `load_policy` and all commands but `train` take.

    Args:
        path: a run directory, one of its checkpoints, or a policy file.
        file: the file to write; only an existing policy file is replaced.

    Returns:
        `file`.

    Raises:
        CheckpointError: there is no policy at `path`, or the file cannot be written or exists and is no policy file.
    """
    file, found = Path(file), load_checkpoint(Path(path))
    if file.is_file():
        try:
            seconds_and_score(file)
        except ValueError:
            raise CheckpointError(
                f"{file} is there already and is no policy file, so it is not replaced; name another file"
            ) from None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, policy_bytes(replace(found, trainer={})))
    except OSError as error:
        raise CheckpointError(f"{file} cannot be written: {first_line(error)}") from error
    return file


def what_is_there(directory: Path) -> str:
    """The end of an error message: the checkpoint in this folder from which the run can be resumed."""
    for _, file in step_files(directory)[:1]:
        return f"the newest checkpoint is {file.stem}, and resume={directory.parent} goes on from there"
    return "there is no checkpoint yet"


# --- Finding and reading


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint or a policy file from any path that `resolve_checkpoint` takes. Loading never executes code.

    Raises:
        CheckpointError: the checkpoint does not exist, has another format, holds NaN, or is damaged; the message names
            the file, the cause, and the newest checkpoint beside it that loads.
    """
    file = resolve_checkpoint(Path(path))
    try:
        return _read(file)
    except CheckpointError as error:
        if not _STEP.fullmatch(file.stem):
            raise
        other = _newest_whole(file.parent)
        advice = f"the newest checkpoint beside it that loads is {other}" if other else "there is no other beside it"
        raise CheckpointError(f"{error}; {advice}") from error


def load_common(run_dirs: Sequence[Path]) -> list[Checkpoint]:
    """Read one checkpoint of each run, at the newest step of which all runs have one that loads.

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
    files = [dict(step_files(run_dir / "checkpoints")) for run_dir in run_dirs]
    for step in sorted(set.intersection(*map(set, files)), reverse=True):
        with suppress(CheckpointError):
            return [_read(of_run[step]) for of_run in files]
    newest = [next((str(file) for file in of_run.values()), "nothing") for of_run in files]
    raise CheckpointError(f"no step that all policies have saved: the newest are {', '.join(newest)}")


def runs_in(directory: Path) -> list[Path]:
    """List the run directories of policies that train together; empty if `directory` is itself a run directory, or missing."""
    if not directory.is_dir() or (directory / "checkpoints").exists():
        return []
    return sorted(entry for entry in directory.iterdir() if (entry / "checkpoints").is_dir())


def resolve_checkpoint(path: Path) -> Path:
    """Find the file of a checkpoint.

    Args:
        path: a run directory or its `checkpoints` folder, which stand for the newest checkpoint; `checkpoints/latest`;
            `checkpoints/best`; or a file, whose suffix may be left out.

    Raises:
        CheckpointError: there is no checkpoint; the message says what was looked for and what exists.
    """
    for file in (path, path.with_name(path.name + _SUFFIX)) if path.name else ():
        if file.exists() and not file.is_dir():
            return file
    if path.name == BEST and path.parent.is_dir():
        if best := best_of(_saved(path.parent)):
            return step_file(path.parent, best[0].step)
    elif path.is_dir() or (path.name == LATEST and path.parent.is_dir()):
        home = path if path.is_dir() else path.parent
        home = home / "checkpoints" if (home / "checkpoints").is_dir() else home
        for _, newest in step_files(home)[:1]:
            return newest
        raise CheckpointError(_nothing_in(path, home))
    raise CheckpointError(_not_there(path))


def step_file(directory: Path, step: int) -> Path:
    """The file of a step's checkpoint."""
    return directory / f"step_{step:012d}{_SUFFIX}"


def step_files(directory: Path) -> list[tuple[int, Path]]:
    """(step, file) of every checkpoint in `directory`, newest first."""
    paths = [Path(name) for name in os.listdir(directory)] if directory.is_dir() else []
    matches = [match for path in paths if path.suffix == _SUFFIX and (match := _STEP.fullmatch(path.stem))]
    return sorted(((int(match[1]), directory / f"{match[0]}{_SUFFIX}") for match in matches), reverse=True)


def _read(file: Path) -> Checkpoint:
    try:
        checkpoint = read_policy_file(file)
        of_name = _STEP.fullmatch(file.stem)
        if of_name and checkpoint.step != int(of_name[1]):
            raise ValueError(f"it belongs to the checkpoint of step {checkpoint.step}")
        return checkpoint
    except CheckpointError:
        raise
    except ValueError as error:
        raise CheckpointError(
            f"{file} is no whole checkpoint or policy file: {error}; give a run directory, one of its checkpoints, or a "
            "file that enn_ppo.export wrote"
        ) from error


def _newest_whole(directory: Path) -> Path | None:
    """The newest checkpoint of a folder that loads; None if there is none."""
    for _, file in step_files(directory):
        with suppress(CheckpointError):
            return _read(file).path
    return None


def _saved(directory: Path) -> list[Saved]:
    saved = []
    for step, file in step_files(directory):
        seconds = score = None
        with suppress(ValueError):  # damage of one checkpoint does not stop the saving of others
            seconds, score = seconds_and_score(file)
        saved.append(Saved(step, seconds, score))
    return saved


def _known(score: float | None) -> float | None:
    return None if score is None or not math.isfinite(score) else float(score)


def _not_there(path: Path) -> str:
    """The error message for a path that does not exist."""
    home = next(parent for parent in path.parents if parent.is_dir())
    missing = path.relative_to(home).parts[0]
    names = sorted(entry.name for entry in home.iterdir() if not entry.name.startswith("."))
    steps = step_files(home)
    there = f"the newest checkpoint in {home} is {steps[0][1].name}" if steps else f"{home} holds {_listing(names)}"
    if missing == BEST and steps:
        there += "; none of them has a score yet"
    near = difflib.get_close_matches(missing, names, n=1)
    return f"no checkpoint {path}: there is no {missing} in {home}; {there}" + (
        f"; did you mean {near[0]}?" if near else ""
    )


def _nothing_in(path: Path, home: Path) -> str:
    """The error message for a folder without checkpoints."""
    names = sorted(entry.name for entry in home.iterdir() if not entry.name.startswith("."))
    if any(_STEP.fullmatch(name) for name in names):
        return (
            f"{home} has checkpoints of format 3, which are folders; commit 6b82b570 of enn-ppo reads them, and this version "
            "reads files"
        )
    if (path / "config.yaml").is_file():
        return f"no checkpoint in {path}: its training ended before it saved one; begin again with overwrite=true"
    return f"no checkpoint in {path}: looked for step_<12 digits>{_SUFFIX} in {home}, which holds {_listing(names)}"


def _listing(names: Sequence[str], most: int = 8) -> str:
    """At most `most` of the names, for the end of a message."""
    shown = ", ".join(names[:most]) or "nothing"
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")
