"""Finding and reading checkpoints and agent files. Reading never executes code."""

from __future__ import annotations

import difflib
import io
import math
import os
import pickle
import re
import warnings
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from enn_ppo.checkpoints.manifest import MANIFEST, Manifest, checksum_of, parse_manifest
from enn_ppo.checkpoints.stored_values import decode
from enn_ppo.checkpoints.trainer_state import check_trainer
from enn_ppo.training.files import is_link
from entity_gym.untrusted import JSON_BYTES, YAML_BYTES, open_regular, parse_json, parse_yaml, read_regular
from rogue_net.finite import NotFinite

FORMAT = 2  # of checkpoints and agent files; raised when older ones can no longer be read

POLICY, CONFIG, SPACES, TRAINER = "policy.safetensors", "config.yaml", "spaces.json", "trainer.pt"
FILES = (POLICY, CONFIG, SPACES, TRAINER)  # required in every checkpoint
WEIGHTS = ".safetensors"  # suffix of the weights of further networks
ABOUT = "agent.json"  # {"format": ..., "step": ...}
AGENT_FILES = (ABOUT, POLICY, CONFIG, SPACES)  # in an agent file
LEARNING = ("optimizer", "scale")  # entries of the trainer that must be finite; environments may hold NaN
_TENSOR_BYTES = 2**34  # of weights and trainer states
LATEST, BEST = "latest", "best"
BROKEN_ZIP = (zipfile.BadZipFile, NotImplementedError)  # the latter for a version of the format that cannot be
_STEP_FOLDER = re.compile(r"step_(\d{12,})")


class CheckpointError(ValueError):
    """A checkpoint cannot be saved, found or read. The message says which, why, and names an alternative."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A checkpoint in memory. Every tensor is on the CPU."""

    path: Path  # its step folder
    step: int  # environment steps trained so far
    policy: dict[str, Tensor]
    config: dict[str, Any]  # tuples have become lists, as in every YAML and JSON file
    spaces: dict[str, Any]
    trainer: dict[
        str, Any
    ]  # exactly as given to `save_checkpoint`, with NumPy arrays and tuples; of agent files only `value_unit`
    more_weights: dict[str, dict[str, Tensor]] = field(default_factory=dict)  # network -> weights
    seconds: float | None = None  # training time; None: unknown
    score: float | None = None  # None: unknown
    is_own: bool = False  # whether this installation of enn-ppo has written and signed it


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint from any path that `resolve_checkpoint` takes. Loading never executes code.

    Raises:
        CheckpointError: the checkpoint does not exist, has another format, holds NaN, or a file is missing, damaged or not data;
            the message names the file, the cause, and the newest complete checkpoint beside it.
    """
    folder = resolve_checkpoint(path)
    try:
        return _read_folder(folder)
    except CheckpointError as error:
        other = _newest_complete(folder.parent)
        advice = f"the newest complete checkpoint beside it is {other}" if other else "there is no other beside it"
        raise CheckpointError(f"{error}; {advice}") from error


def load_checkpoint_or_agent(path: Path) -> Checkpoint:
    """Read a checkpoint from any path that `resolve_checkpoint` takes, or an agent file: networks and the unit of values.

    Raises:
        CheckpointError: as in `load_checkpoint`; or the file is no agent file, is damaged, or has another format.
    """
    return _read_agent(path) if path.is_file() and not link_target(path) else load_checkpoint(path)


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


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a checkpoint.

    Raises:
        ValueError: it is missing or damaged; the message names the file and the cause.
    """
    manifest: Manifest = _read_part(folder / MANIFEST)
    return manifest


def check_finite(value: Any, where: str) -> None:
    """Check that all floats and tensors in nested dictionaries and lists are finite; `where` is the name of `value` in errors.

    Raises:
        NotFinite: one is NaN or infinite; the message has its place.
    """
    if isinstance(value, Mapping):
        for key, item in value.items():
            check_finite(item, f"{where}[{key!r}]")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            check_finite(item, f"{where}[{index}]")
    elif (isinstance(value, float) and not math.isfinite(value)) or (
        isinstance(value, Tensor) and not bool(value.isfinite().all())
    ):
        raise NotFinite(f"{where} is NaN or infinite")


def is_agent(file: Path) -> bool:
    """Whether a file is an agent file of any version."""
    try:
        with zipfile.ZipFile(file) as archive:
            return set(AGENT_FILES) <= set(archive.namelist())
    except (*BROKEN_ZIP, OSError):
        return False


def first_line(error: BaseException) -> str:
    """The first line of an error's message."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _read_folder(folder: Path) -> Checkpoint:
    _check_present(folder, (*FILES, MANIFEST))
    try:
        manifest = read_manifest(folder)
        _check_present(folder, manifest.files)
        if unlisted := [name for name in FILES if name not in manifest.files]:
            raise ValueError(f"{MANIFEST}: it has no checksum of {', '.join(unlisted)}")
        parts = {name: _read_part(folder / name, checksum) for name, checksum in manifest.files.items()}
    except ValueError as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"checkpoint {folder} is damaged: {error}") from error
    policy, config, spaces, saved = (parts.pop(name) for name in FILES)
    if saved.get("format") != FORMAT:
        raise CheckpointError(
            f"checkpoint {folder} has format {saved.get('format')!r}, and this version of enn-ppo reads format {FORMAT}: install "
            "the version that has written it"
        )
    step, of_name = saved["step"], _STEP_FOLDER.fullmatch(folder.name)
    if of_name and step != int(of_name[1]):
        raise CheckpointError(f"checkpoint {folder} is damaged: {TRAINER}: it belongs to the checkpoint of step {step}")
    more_weights = {name.removesuffix(WEIGHTS): part for name, part in parts.items() if name.endswith(WEIGHTS)}
    trainer, numbers = saved["trainer"], (manifest.seconds, manifest.score)
    return Checkpoint(folder, step, policy, config, spaces, trainer, more_weights, *numbers, manifest.is_own)


def _check_present(folder: Path, names: Iterable[str]) -> None:
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise CheckpointError(f"checkpoint {folder} is half-written: {', '.join(missing)} is missing")


def _read_agent(file: Path) -> Checkpoint:
    try:
        with open_regular(file) as content, zipfile.ZipFile(content) as archive:
            members = {info.filename: info for info in archive.infolist()}
            if missing := [name for name in AGENT_FILES if name not in members]:
                raise ValueError(f"{', '.join(missing)} is not in it")
            more = [name for name in members if name.endswith(WEIGHTS) and name != POLICY]
            if any(members[name].compress_type != zipfile.ZIP_STORED for name in (*AGENT_FILES, *more)):
                raise ValueError("it is compressed, and such files never are")  # and may be far larger than they look
            about, policy, config, spaces = (_read_part(zipfile.Path(archive, name)) for name in AGENT_FILES)
            more_weights = {name.removesuffix(WEIGHTS): _read_part(zipfile.Path(archive, name)) for name in more}
        if type(about.get("format")) is not int or type(about.get("step")) is not int or about["step"] < 0:
            raise ValueError(f"{ABOUT} holds {about!r:.200}")
        unit = about.get("value_unit")  # older versions wrote none
        if unit is not None and not (type(unit) in (int, float) and 0 < unit < math.inf):
            raise ValueError(f"{ABOUT} has the value_unit {unit!r:.200}")
        if about["format"] != FORMAT:
            raise ValueError(f"its format is {about['format']}, and this version of enn-ppo reads format {FORMAT}")
    except (OSError, ValueError, *BROKEN_ZIP) as error:
        raise CheckpointError(
            f"{file} is no agent that enn_ppo.export or save_agent wrote: {first_line(error)}"
        ) from error
    trainer = {} if unit is None else {"value_unit": float(unit)}
    return Checkpoint(file, about["step"], policy, config, spaces, trainer, more_weights)


def _read_part(file: Path | zipfile.Path, checksum: str | None = None) -> Any:
    """Read a file of a checkpoint or an agent file.

    Args:
        file: the file.
        checksum: of its content, which is compared before it is parsed; None: unknown.

    Returns:
        Name -> tensor for weights, the `Manifest` for `manifest.json`, and the content as a dictionary for other files.

    Raises:
        ValueError: the file cannot be read, is damaged or holds NaN; the message names it and the cause.
    """
    try:
        is_weights = file.name.endswith(WEIGHTS)
        most = (
            _TENSOR_BYTES if is_weights or file.name == TRAINER else YAML_BYTES if file.name == CONFIG else JSON_BYTES
        )
        # a member of an agent file is no larger than the file, since it is not compressed
        data = read_regular(file, most) if isinstance(file, Path) else file.read_bytes()
        if len(data) > most:
            raise ValueError(f"it has {len(data):,} bytes, and at most {most:,} are read")
        if checksum is not None and checksum_of(data) != checksum:
            raise ValueError(f"its checksum is not the one in {MANIFEST}")
        if not data:
            raise ValueError("is empty")
        if is_weights:
            weights = safetensors.torch.load(data)
            check_finite(weights, file.name.removesuffix(WEIGHTS))
            return weights
        if file.name == TRAINER:
            return _read_trainer(data)
        if file.name == MANIFEST:
            return parse_manifest(data)
        return _mapping(parse_yaml(data) if file.name == CONFIG else parse_json(data))
    except Exception as error:  # a damaged file can raise many types: zip, pickle, JSON, YAML, Unicode, shapes
        raise ValueError(f"{file.name}: {first_line(error)}") from error


def _read_trainer(data: bytes) -> dict[str, Any]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = archive.infolist()
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise ValueError("it is compressed, and such files never are")  # and may be far larger than they look
    if sum(entry.file_size for entry in entries) > len(data):
        raise ValueError("its entries claim to be larger than the file")
    try:
        content = _mapping(torch.load(io.BytesIO(data), map_location="cpu", weights_only=True))
    except pickle.UnpicklingError as error:
        named = re.search(r"GLOBAL (\S+)", str(error))
        cause = f"names {named[1]}" if named else "is cut short or holds more than plain values"
        raise ValueError(f"{cause}; refused, because only data is read and no code is run") from error
    if content.get("format") == FORMAT:  # other formats are refused later, with advice
        trainer = _mapping(decode(content["trainer"], len(data)))
        check_finite({name: trainer[name] for name in LEARNING if name in trainer}, "trainer")
        check_trainer(trainer, content["step"])
        content["trainer"] = trainer
    return content


def _mapping(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"holds {type(value).__name__}, not a mapping")
    return value


def _newest_complete(directory: Path) -> Path | None:
    """The newest step folder that loads; None if there is none."""
    for _, folder in step_folders(directory):
        with suppress(CheckpointError):
            return _read_folder(folder).path
    return None


def _not_there(path: Path) -> str:
    """The error message for a path that is no folder."""
    if path.is_file():
        hint = "; it is an agent that enn_ppo.export wrote, which load_agent and enn_ppo.serve take"
        return f"{path} is a file: give a run directory, its checkpoints folder, or a step folder" + (
            hint if is_agent(path) else ""
        )
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
    if (path / CONFIG).is_file():
        return f"no checkpoint in {path}: its training ended before it saved one; begin again with overwrite=true"
    return f"no checkpoint in {path}: {looked_for}, which holds {_listing(names)}"


def _listing(names: Sequence[str], most: int = 8) -> str:
    """At most `most` of the names, for the end of a message."""
    shown = ", ".join(names[:most]) or "nothing"
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")
