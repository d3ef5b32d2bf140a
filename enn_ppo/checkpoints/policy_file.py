"""The policy file: networks, all that is needed to use them, and of a checkpoint the trainer's state, in one safetensors file.

The policy's weights stand under their own names, those of another network such as `value_net` under `value_net/<name>`. The
trainer's state stands under `trainer/`: `trainer/values` holds bytes of JSON, which name tensors `trainer/0` and so on; see
`stored_values.py`. The metadata of the header are texts; all but `hash` and `signature` are JSON:

    format      version of this form, 4
    step        environment steps trained so far
    config      settings of the run
    spaces      observation and action spaces; each action has its kind
    value_unit  the reward that equals a value of 1
    seconds     training time; null: unknown
    score       of evaluations, or of training episodes; null: unknown
    signature   HMAC-SHA256 of the SHA-256 of the above and of all tensors, by the key of the installation that wrote the file;
                empty: it had no key
    hash        SHA-256 of all of the above and of all tensors
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

from enn_ppo.checkpoints.signing import is_signature, signature_of
from enn_ppo.checkpoints.stored_values import decode, encode
from entity_gym.untrusted import JSON_BYTES, open_regular, parse_json, read_regular
from rogue_net.finite import NotFinite

FORMAT = 4  # raised when older files can no longer be read
TENSOR_BYTES = 2**34  # of weights and trainer states
_CONFIG_BYTES = 2**20
_METADATA = "__metadata__"
_NETWORK = re.compile(r"\w+")
_TRAINER, _VALUES = "trainer", "values"
#: Entries of the trainer's state that must be finite; environments may hold NaN.
_FINITE = ("optimizer", "scale")


def _is_number(value: Any, low: float) -> bool:
    return type(value) in (int, float) and low <= value <= sys.float_info.max


#: Entry of the header -> whether a value is allowed.
_HEADER: Mapping[str, Callable[[Any], bool]] = {
    "format": lambda value: value == FORMAT,
    "step": lambda value: type(value) is int and 0 <= value < 2**63,
    "config": lambda value: type(value) is dict,
    "spaces": lambda value: type(value) is dict,
    "value_unit": lambda value: _is_number(value, sys.float_info.min),
    "seconds": lambda value: value is None or _is_number(value, 0),
    "score": lambda value: value is None or _is_number(value, -sys.float_info.max),
}


class CheckpointError(ValueError):
    """A checkpoint cannot be saved, found or read. The message says which, why, and names an alternative."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Checkpoint:
    """A checkpoint in memory. Every tensor is on the CPU."""

    path: Path
    step: int  # environment steps trained so far
    policy: Mapping[str, Tensor]
    config: Mapping[str, Any]  # tuples have become lists, as in every JSON file
    spaces: Mapping[str, Any]
    value_unit: float = 1.0  # the reward that equals a value of 1
    #: Name of another network, such as `value_net` -> its weights.
    more_weights: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    #: The state of the trainer, as given to `save_checkpoint`; empty for a policy alone.
    trainer: Mapping[str, Any] = field(default_factory=dict)
    seconds: float | None = None  # training time; None: unknown
    score: float | None = None  # None: unknown
    is_own: bool = False  # whether this installation of enn-ppo has written and signed it


def policy_bytes(checkpoint: Checkpoint) -> bytes:
    """Return the content of a file; signed if `is_own` and there is a key, which is made if there is none.

    Raises:
        NotFinite: a weight or the optimizer's state is NaN or infinite.
        CheckpointError: a network has no proper name, or a value cannot be stored.
    """
    weights = dict(_to_store("policy", checkpoint.policy))
    for network, more in checkpoint.more_weights.items():
        if not _NETWORK.fullmatch(network) or network in ("policy", _TRAINER):
            raise CheckpointError(
                f"more_weights has {network!r}: a network's name is made of letters, digits and _, and neither "
                "'policy' nor 'trainer'"
            )
        weights |= {f"{network}/{name}": tensor for name, tensor in _to_store(network, more).items()}
    if checkpoint.trainer:
        weights |= _trainer_tensors(checkpoint.trainer)
    metadata = {
        "format": FORMAT,
        "step": checkpoint.step,
        "config": checkpoint.config,
        "spaces": checkpoint.spaces,
        "value_unit": checkpoint.value_unit,
        "seconds": checkpoint.seconds,
        "score": checkpoint.score,
    }
    header, content = _split(safetensors.torch.save(weights))
    header[_METADATA] = {name: _to_json(name, value) for name, value in metadata.items()}
    header[_METADATA]["signature"] = signature_of(_hash(header, content)) if checkpoint.is_own else ""
    header[_METADATA]["hash"] = _hash(header, content)
    packed = _header_bytes(header)
    return len(packed).to_bytes(8, "little") + packed + content


def read_policy_file(path: Path) -> Checkpoint:
    """Read a policy file.

    Raises:
        CheckpointError: the file has another format; the message says which version reads it.
        ValueError: the file cannot be read, is damaged or holds NaN; the message names it and the cause.
    """
    try:
        data = read_regular(path, TENSOR_BYTES)
        header, content = _split(data)
        metadata = _metadata(header, path)
        if set(metadata) != {*_HEADER, "signature", "hash"}:
            raise ValueError(f"its header must have the entries {', '.join(_HEADER)}, signature, hash")
        # every byte is compared, so that a header has one form only, and other readers find the same in it
        if data[8 : len(data) - len(content)] != _header_bytes(header):
            raise ValueError("its header is not written as this version writes it")
        if metadata.pop("hash") != _hash(header, content):
            raise ValueError("its hash does not fit its content")
        signature = metadata.pop("signature")
        is_own = is_signature(signature, _hash(header, content))
        values = {name: _from_json(name, metadata[name]) for name in _HEADER}
        networks: dict[str, dict[str, Tensor]] = {"policy": {}, _TRAINER: {}}
        for name, tensor in safetensors.torch.load(data).items():
            network, slash, rest = name.partition("/")
            of_other = bool(slash) and bool(_NETWORK.fullmatch(network))
            networks.setdefault(network if of_other else "policy", {})[rest if of_other else name] = tensor
        trainer = _trainer_of(networks.pop(_TRAINER))
        for network, weights in networks.items():
            check_finite(weights, network)
    except CheckpointError:
        raise
    except Exception as error:  # a damaged file can raise many types: safetensors, JSON, Unicode, shapes
        raise ValueError(f"{path.name}: {first_line(error)}") from error
    del values["format"]
    return Checkpoint(
        path=path, policy=networks.pop("policy"), more_weights=networks, trainer=trainer, is_own=is_own, **values
    )


def seconds_and_score(path: Path) -> tuple[float | None, float | None]:
    """Read training time and score from a policy file's header, whose hash is not compared; None where they are unknown.

    Raises:
        ValueError: the file cannot be read, or is no policy file of this version.
    """
    try:
        with open_regular(path) as file:
            start = file.read(8)
            header, _ = _split(start + file.read(min(int.from_bytes(start, "little"), JSON_BYTES + 1)))
        metadata = _metadata(header, path)
        return _from_json("seconds", metadata["seconds"]), _from_json("score", metadata["score"])
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


def _to_store(network: str, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    for name, tensor in weights.items():
        if not isinstance(tensor, Tensor):
            raise CheckpointError(f"{network}[{name!r}] is {type(tensor).__name__}: it must be a tensor")
    check_finite(weights, network)
    # clones, because safetensors refuses tensors that share memory (tied weights)
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in weights.items()}


def _trainer_tensors(trainer: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of a trainer's state.

    Raises:
        NotFinite: an entry that must be finite is not.
        CheckpointError: a value cannot be stored; the message names its place.
    """
    check_finite({name: trainer[name] for name in _FINITE if name in trainer}, _TRAINER)
    tensors: list[Tensor] = []
    try:
        values = json.dumps(encode(trainer, _TRAINER, tensors), separators=(",", ":")).encode()
    except (ValueError, RecursionError) as error:
        raise CheckpointError(first_line(error)) from error
    named = {f"{_TRAINER}/{number}": tensor for number, tensor in enumerate(tensors)}
    return named | {f"{_TRAINER}/{_VALUES}": torch.from_numpy(np.frombuffer(values, np.uint8).copy())}


def _trainer_of(tensors: dict[str, Tensor]) -> dict[str, Any]:
    """The inverse of `_trainer_tensors`; empty without tensors.

    Raises:
        ValueError: no trainer has written them.
    """
    if not tensors:
        return {}
    values = json.loads(tensors.pop(_VALUES).numpy().tobytes())
    trainer = decode(values, {int(name): tensor for name, tensor in tensors.items()})
    if not isinstance(trainer, dict):
        raise ValueError("the trainer's state is no mapping")
    check_finite({name: trainer[name] for name in _FINITE if name in trainer}, _TRAINER)
    return trainer


def _split(data: bytes) -> tuple[dict[str, Any], memoryview]:
    """Split a file into its header and the bytes of its weights."""
    length = int.from_bytes(data[:8], "little")
    if not 0 < length <= min(JSON_BYTES, len(data) - 8):
        raise ValueError("it is no safetensors file, or is cut short")
    header = parse_json(data[8 : 8 + length])
    if not isinstance(header, dict):
        raise ValueError("its header is no mapping")
    return header, memoryview(data)[8 + length :]


def _metadata(header: Mapping[str, Any], path: Path) -> dict[str, str]:
    metadata = header.get(_METADATA) or {}
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("the metadata of its header are not texts")
    this = f"this version of enn-ppo reads format {FORMAT}"
    if metadata.get("format") != str(FORMAT):
        version = metadata.get("format", "none of enn-ppo")
        raise CheckpointError(f"{path} has format {version:.80}, and {this}: install the version that has written it")
    return metadata


def _header_bytes(header: Mapping[str, Any]) -> bytes:
    packed = json.dumps(header, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()
    return packed + b" " * (-len(packed) % 8)


def _hash(header: Mapping[str, Any], content: memoryview) -> str:
    digest = hashlib.sha256(_header_bytes(header))
    digest.update(content)
    return digest.hexdigest()


def _to_json(name: str, value: object) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False)
        text.encode()  # half of a surrogate pair cannot be
        return text
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"the {name} of a checkpoint cannot hold this: {first_line(error)}") from error


def _from_json(name: str, text: str) -> Any:
    if name == "config" and len(text) > _CONFIG_BYTES:
        raise ValueError(f"its config has {len(text):,} characters, and at most {_CONFIG_BYTES:,} are read")
    try:
        value = parse_json(text)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    if not _HEADER[name](value):
        raise ValueError(f"{name} is {value!r:.80}, which no trainer has written")
    return value
