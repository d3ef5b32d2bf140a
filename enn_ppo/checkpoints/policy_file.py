"""The policy file: networks, all that is needed to use them, and of a checkpoint the trainer's state, in one safetensors file.

docs/training.md describes it for other readers. This module is the only one that reads and writes its bytes.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from enn_ppo.checkpoints.trainer_state import decode, encode
from enn_ppo.checkpoints.trust import is_signature, signature_of
from entity_gym.untrusted import JSON_BYTES, open_regular, parse_json, read_regular
from rogue_net.finite import NotFinite

FORMAT = 8  # raised when older files can no longer be read
STEP = re.compile(r"step_(\d{12,})")  # a checkpoint's name
_FILE_BYTES = 2**34
_CONFIG_BYTES = 2**20
_METADATA = "__metadata__"
_BLANK = "0" * 64  # stands for a hash or signature while it is computed
_VALUE_NET, _TRAINER, _VALUES = "value_net/", "trainer/", "trainer/values"
#: Entries of the trainer's state that must be finite; environments may hold NaN.
_FINITE = ("optimizer", "scale")


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


#: Entry of the metadata -> whether a value is allowed.
_ENTRIES: Mapping[str, Callable[[Any], bool]] = {
    "format": lambda value: value == FORMAT,
    "step": lambda value: type(value) is int and 0 <= value < 2**63,
    "config": lambda value: type(value) is dict,
    "spaces": lambda value: type(value) is dict,
    "score": lambda value: value is None or _is_number(value),
}


class CheckpointError(ValueError):
    """A checkpoint cannot be saved, found or read. The message says which, why, and names an alternative."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Checkpoint:
    """A checkpoint in memory. Every tensor that was read is on the CPU."""

    path: Path
    step: int  # environment steps trained so far
    policy: Mapping[str, Tensor]
    config: Mapping[str, Any]  # settings of the run; tuples have become lists, as in every JSON file
    spaces: Mapping[str, Any]  # see `entity_gym.batch.saving.spaces_from_dict`
    value_net: Mapping[str, Tensor] = field(default_factory=dict)  # empty: the policy estimates values
    #: The state of the trainer, empty for a policy alone: nested dicts, lists and tuples of str, bytes, int, float, bool, None,
    #: tensors, NumPy arrays and NumPy scalars. All come back with their type, dtype and shape.
    trainer: Mapping[str, Any] = field(default_factory=dict)
    score: float | None = None  # higher is better; None: unknown
    is_own: bool = False  # whether this installation of enn-ppo has written and signed it


def policy_bytes(checkpoint: Checkpoint) -> bytes:
    """Return the content of a file; signed if `is_own` and there is a key, which is made if there is none.

    Raises:
        NotFinite: a weight or the optimizer's state is NaN or infinite.
        CheckpointError: a value cannot be stored; the message has its place.
    """
    check_finite(checkpoint.policy, "policy")
    check_finite(checkpoint.value_net, "value_net")
    check_finite({name: checkpoint.trainer.get(name) for name in _FINITE}, "trainer")
    score = checkpoint.score if checkpoint.score is not None and math.isfinite(checkpoint.score) else None
    tensors = {**checkpoint.policy, **{_VALUE_NET + name: tensor for name, tensor in checkpoint.value_net.items()}}
    try:
        values = {name: getattr(checkpoint, name) for name in _ENTRIES if name not in ("format", "score")}
        texts = {name: _to_json(value) for name, value in {"format": FORMAT, **values, "score": score}.items()}
        if checkpoint.trainer:
            tensors |= _trainer_tensors(checkpoint.trainer)
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{checkpoint.path} cannot hold a value: {first_line(error)}") from error
    # clones, because safetensors refuses tensors that share memory (tied weights)
    stored = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    header, content = _split(safetensors.torch.save(stored))
    metadata = {**texts, "signature": "", "hash": _BLANK}
    header = {_METADATA: metadata, **header}
    if checkpoint.is_own:
        metadata["signature"] = _BLANK
        metadata["signature"] = signature_of(_sha256(_start(header), content))
    metadata["hash"] = _sha256(_start(header), content)
    return _start(header) + content


def read_policy_file(path: Path) -> Checkpoint:
    """Read a policy file, or a checkpoint, whose step must be that of its name.

    Raises:
        CheckpointError: the file cannot be read, has another format, is damaged or holds NaN; the message has the cause.
    """
    try:
        data = read_regular(path, _FILE_BYTES)
        header, content = _split(data)
        metadata = _metadata(header, path)
        if set(metadata) != {*_ENTRIES, "signature", "hash"}:
            raise ValueError(f"its metadata must have the entries {', '.join(_ENTRIES)}, signature, hash")
        start = _blanked(data[: len(data) - len(content)], "hash", metadata["hash"])
        if metadata["hash"] != _sha256(start, content):
            raise ValueError("its hash does not fit its content")
        signature = metadata["signature"]
        is_own = bool(signature) and is_signature(signature, _sha256(_blanked(start, "signature", signature), content))
        values = {name: _from_json(name, metadata[name]) for name in _ENTRIES if name != "format"}
        if (of_name := STEP.fullmatch(path.stem)) and values["step"] != int(of_name[1]):
            raise ValueError(f"it belongs to the checkpoint of step {values['step']}")
        networks: dict[str, dict[str, Tensor]] = {"": {}, _VALUE_NET: {}, _TRAINER: {}}
        for name, tensor in safetensors.torch.load(data).items():
            part = next((part for part in (_VALUE_NET, _TRAINER) if name.startswith(part)), "")
            networks[part][name.removeprefix(part)] = tensor
        policy, value_net, tensors = networks.values()
        trainer = _trainer_of(tensors)
        check_finite(policy, "policy")
        check_finite(value_net, "value_net")
        check_finite({name: trainer.get(name) for name in _FINITE}, "trainer")
    except CheckpointError:
        raise
    except Exception as error:  # a damaged file can raise many types: safetensors, JSON, Unicode, shapes
        raise CheckpointError(
            f"{path} is no whole checkpoint or policy file: {first_line(error)}; give a run directory, one of its "
            "checkpoints, or a file that enn_ppo.export wrote"
        ) from error
    return Checkpoint(path=path, policy=policy, value_net=value_net, trainer=trainer, is_own=is_own, **values)


def score_of(path: Path) -> float | None:
    """Read the score from a policy file's header, whose hash is not compared; None: unknown.

    Raises:
        ValueError: the file cannot be read, or is no policy file of this version.
    """
    try:
        with open_regular(path) as file:
            start = file.read(8)
            header, _ = _split(start + file.read(min(int.from_bytes(start, "little"), JSON_BYTES + 1)))
        score: float | None = _from_json("score", _metadata(header, path)["score"])
        return score
    except (OSError, KeyError, ValueError) as error:
        raise ValueError(f"{path.name}: {first_line(error)}") from error


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


def first_line(error: BaseException) -> str:
    """The first line of an error's message."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error).strip() or type(error).__name__).splitlines()[0]


# --- The form of the file


def _split(data: bytes) -> tuple[dict[str, Any], memoryview]:
    """Split a file into its header and the bytes of its tensors."""
    length = int.from_bytes(data[:8], "little")
    if not 0 < length <= min(JSON_BYTES, len(data) - 8):
        raise ValueError("it is no safetensors file, or is cut short")
    header = parse_json(data[8 : 8 + length])
    if not isinstance(header, dict):
        raise ValueError("its header is no mapping")
    return header, memoryview(data)[8 + length :]


def _start(header: Mapping[str, Any]) -> bytes:
    """The bytes before those of the tensors: the length of the header, and the header."""
    packed = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    packed += b" " * (-len(packed) % 8)
    return len(packed).to_bytes(8, "little") + packed


def _blanked(start: bytes, name: str, text: str) -> bytes:
    """The start of a file with zeros in the place of the hash or the signature."""
    return start.replace(f'"{name}":"{text}"'.encode(), f'"{name}":"{_BLANK}"'.encode())


def _sha256(start: bytes, content: memoryview) -> str:
    digest = hashlib.sha256(start)
    digest.update(content)
    return digest.hexdigest()


def _metadata(header: Mapping[str, Any], path: Path) -> dict[str, str]:
    metadata = header.get(_METADATA) or {}
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("its metadata are not texts")
    if metadata.get("format") != str(FORMAT):
        raise CheckpointError(
            f"{path} has format {metadata.get('format', 'none of enn-ppo'):.80}, and this version of enn-ppo reads format "
            f"{FORMAT}: install the version that has written it"
        )
    return metadata


def _to_json(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    text.encode()  # half of a surrogate pair cannot be
    return text


def _from_json(name: str, text: str) -> Any:
    if name == "config" and len(text) > _CONFIG_BYTES:
        raise ValueError(f"its config has {len(text):,} characters, and at most {_CONFIG_BYTES:,} are read")
    try:
        value = parse_json(text)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    if not _ENTRIES[name](value):
        raise ValueError(f"{name} is {value!r:.80}, which no trainer has written")
    return value


def _trainer_tensors(trainer: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of a trainer's state, by their names in the file.

    Raises:
        ValueError: a value cannot be stored; the message names its place.
    """
    tensors: list[Tensor] = []
    values = json.dumps(encode(trainer, "trainer", tensors), separators=(",", ":")).encode()
    named = {f"{_TRAINER}{number}": tensor for number, tensor in enumerate(tensors)}
    return named | {_VALUES: torch.from_numpy(np.frombuffer(values, np.uint8).copy())}


def _trainer_of(tensors: dict[str, Tensor]) -> dict[str, Any]:
    """The inverse of `_trainer_tensors`; empty without tensors.

    Raises:
        ValueError: no trainer has written them.
    """
    if not tensors:
        return {}
    values = json.loads(tensors.pop(_VALUES.removeprefix(_TRAINER)).numpy().tobytes())
    trainer = decode(values, {int(name): tensor for name, tensor in tensors.items()})
    if not isinstance(trainer, dict):
        raise ValueError("the trainer's state is no mapping")
    return trainer
