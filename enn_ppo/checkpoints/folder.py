"""The checkpoints of a run: saving, finding and reading them."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from enn_ppo.checkpoints.policy_file import (
    STEP,
    Checkpoint,
    CheckpointError,
    first_line,
    policy_bytes,
    read_policy_file,
    score_of,
)
from enn_ppo.training.files import ASIDE, flush_folder, make_folder, replace_file
from entity_gym.errors import nearest

LATEST, BEST = "latest", "best"
_SUFFIX = ".safetensors"


# --- Which are kept


def to_remove(
    scores: Mapping[int, float | None], now: int, keep_last: int, protected: Collection[int] = ()
) -> set[int]:
    """The steps of the checkpoints to remove: all but the `keep_last` newest, the best, and the protected ones.

    Removing after every save leaves the same checkpoints as removing once at the end, unless scores change.

    `scores` maps the step of every checkpoint to its score, None where it is unknown. The last save, of step `now`, is kept;
    later checkpoints were abandoned when the run was resumed from an earlier one, and are removed.
    """
    ours = sorted((step for step in scores if step <= now), reverse=True)
    best = best_of({step: scores[step] for step in ours})
    return scores.keys() - {*ours[:keep_last], *best[:1], *protected, now}


def best_of(scores: Mapping[int, float | None]) -> list[int]:
    """Steps of the checkpoints with a score, best first; of equal scores, the later checkpoint first."""
    scored = [(score, step) for step, score in scores.items() if score is not None]
    return [step for _, step in sorted(scored, reverse=True)]


# --- Saving


def save_checkpoint(checkpoint: Checkpoint, keep_last: int, protected: Collection[int] = ()) -> Path:
    """Write a signed checkpoint to its path, a `step_file`, and remove those beside it that are not kept; see `to_remove`.

    Saving an existing step replaces it. `protected` are steps of checkpoints that are being evaluated.

    Returns:
        The file.

    Raises:
        NotFinite: a weight or the optimizer's state is NaN or infinite; nothing was written.
        CheckpointError: a value cannot be stored (the message has its path; nothing was written), or the disk cannot be
            written; earlier checkpoints still load.
    """
    file, step = checkpoint.path, checkpoint.step
    data = policy_bytes(replace(checkpoint, is_own=True))
    try:
        make_folder(file.parent)
        for leftover in file.parent.iterdir():  # of a save that was killed
            if re.fullmatch(ASIDE, leftover.name):
                leftover.unlink()
        replace_file(file, data)
        flush_folder(file.parent)
        removed = to_remove(_scores(file.parent), step, keep_last, protected)
        for other in sorted(removed, key=lambda other: (other <= step, other)):  # abandoned ones, then the oldest
            step_file(file.parent, other).unlink()
    except OSError as error:
        raise CheckpointError(f"saving checkpoint {file} failed: {first_line(error)}") from error
    return file


def record_score(directory: Path, step: int, score: float) -> None:
    """Write the score of a checkpoint; higher is better. Does nothing if the checkpoint is gone.

    Raises:
        CheckpointError: the disk cannot be written, or the file is damaged; the checkpoint is unchanged.
    """
    file = step_file(directory, step)
    if not file.is_file():
        return
    try:
        # a stranger's checkpoint stays unsigned, as `is_own` is False
        replace_file(file, policy_bytes(replace(read_policy_file(file), score=score)))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"the score of checkpoint {file} cannot be written: {first_line(error)}") from error


def save_policy(path: str | Path, file: str | Path) -> Path:
    """Copy a checkpoint without the trainer's state, which `load_policy` and all commands but `train` take.

    `path` is a run directory, one of its checkpoints, or a policy file. The name of `file` ends in .safetensors; only an existing
    policy file is replaced. Returns `file`.

    Raises:
        CheckpointError: there is no policy at `path`, or the file cannot be written or exists and is no policy file.
    """
    file, found = Path(file), load_checkpoint(Path(path))
    if file.suffix != _SUFFIX:
        raise CheckpointError(
            f"{file} cannot be written: a policy is a safetensors file; its name must end in {_SUFFIX}"
        )
    try:
        if file.is_file():
            score_of(file)
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


# --- Finding and reading


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint or a policy file from any path that `resolve_checkpoint` takes. Loading never executes code.

    Raises:
        CheckpointError: the checkpoint does not exist, has another format, holds NaN, or is damaged; the message names
            the file, the cause, and the newest checkpoint beside it that loads.
    """
    file = resolve_checkpoint(Path(path))
    try:
        return read_policy_file(file)
    except CheckpointError as error:
        for _, other in step_files(file.parent) if STEP.fullmatch(file.stem) else ():
            with suppress(CheckpointError):
                whole = read_policy_file(other).path
                break
        else:
            raise
        raise CheckpointError(f"{error}; the newest checkpoint beside it that loads is {whole}") from error


def load_common(run_dirs: Sequence[Path]) -> list[Checkpoint]:
    """Read one checkpoint of each run, at the newest step of which all runs have one that loads.

    Policies that train together save one after the other, so after a crash in between some have a newer checkpoint.

    Raises:
        CheckpointError: a run does not exist, or there is no such step.
    """
    for run_dir in run_dirs:
        if not (run_dir / "checkpoints").is_dir():
            raise CheckpointError(f"there is no run of policy {run_dir.name} in {run_dir.parent}")
    files = [dict(step_files(run_dir / "checkpoints")) for run_dir in run_dirs]
    for step in sorted(set.intersection(*map(set, files)), reverse=True):
        with suppress(CheckpointError):
            return [read_policy_file(of_run[step]) for of_run in files]
    newest = [next((str(file) for file in of_run.values()), "nothing") for of_run in files]
    raise CheckpointError(f"no step that all policies have saved: the newest are {', '.join(newest)}")


def runs_in(directory: Path) -> list[Path]:
    """List the run directories of policies that train together; empty if `directory` is itself a run directory, or missing."""
    if not directory.is_dir() or (directory / "checkpoints").exists():
        return []
    return sorted(entry for entry in directory.iterdir() if (entry / "checkpoints").is_dir())


def resolve_checkpoint(path: Path) -> Path:
    """Find the file of a checkpoint.

    `path` is a run directory or its `checkpoints` folder, which stand for the newest checkpoint; `checkpoints/latest`;
    `checkpoints/best`; or a file, whose suffix may be left out.

    Raises:
        CheckpointError: there is no checkpoint; the message says what exists.
    """
    for file in (path, path.with_name(path.name + _SUFFIX)) if path.name else ():
        if file.exists() and not file.is_dir():
            return file
    home, name = (path, LATEST) if path.is_dir() else (path.parent, path.name)
    home = home / "checkpoints" if (home / "checkpoints").is_dir() else home
    found = [file for _, file in step_files(home)] if name == LATEST else []
    if name == BEST:
        found = [step_file(home, step) for step in best_of(_scores(home))]
    if not found:
        raise CheckpointError(f"no checkpoint {path}: {_why_none(path)}")
    return found[0]


def step_file(directory: Path, step: int) -> Path:
    """The file of a step's checkpoint."""
    return directory / f"step_{step:012d}{_SUFFIX}"


def step_files(directory: Path) -> list[tuple[int, Path]]:
    """(step, file) of every checkpoint in `directory`, newest first."""
    paths = [Path(name) for name in os.listdir(directory)] if directory.is_dir() else []
    matches = [match for path in paths if path.suffix == _SUFFIX and (match := STEP.fullmatch(path.stem))]
    return sorted(((int(match[1]), directory / f"{match[0]}{_SUFFIX}") for match in matches), reverse=True)


def _scores(directory: Path) -> dict[int, float | None]:
    """Step of each checkpoint -> its score; None: unknown."""
    scores: dict[int, float | None] = dict.fromkeys(step for step, _ in step_files(directory))
    for step in scores:
        with suppress(ValueError):  # damage of one checkpoint does not stop the saving of others
            scores[step] = score_of(step_file(directory, step))
    return scores


def _why_none(path: Path) -> str:
    """The cause of a missing checkpoint, and what is there."""
    home = next(parent for parent in (path, *path.parents) if parent.is_dir())
    folder = home / "checkpoints" if (home / "checkpoints").is_dir() else home
    if any(STEP.fullmatch(entry.name) for entry in folder.iterdir()):
        return f"{folder} has checkpoints of format 3, which are folders; commit 6b82b570 of enn-ppo reads them"
    if home == path and (path / "config.yaml").is_file():
        return "its training ended before it saved one; begin again with overwrite=true"
    if path.name == BEST and step_files(home):
        return f"none of those in {home} has a score yet"
    missing = "step_<12 digits>" if home == path else path.relative_to(home).parts[0]
    names = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
    return f"there is no {missing} in {folder}; {nearest(missing, names)}"
