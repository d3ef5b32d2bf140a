"""The manifest of a checkpoint: a checksum of every file, and the signature of the installation that wrote it.

`manifest.json` holds:

    files       name -> SHA-256 of the file's content, in hexadecimal
    seconds     training time; null: unknown
    score       of evaluations, or of training episodes; null: unknown
    signature   HMAC-SHA256 of the entries above, by the key of the installation; null: it had no key
    checksum    SHA-256 of all entries above

The key is 32 random bytes in `enn_ppo/key` of the user's configuration folder, readable by that user alone. It is made when a
checkpoint is first saved. Whoever cannot read it cannot sign, so a signed checkpoint names no code that this user did not name.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from enn_ppo.training.files import write_file
from entity_gym.untrusted import parse_json

MANIFEST = "manifest.json"
_ENTRIES = {"files", "seconds", "score", "signature", "checksum"}
_FILE_NAME = re.compile(r"\w+\.\w+")  # no path: a stranger's manifest names files of its folder only
_KEY_BYTES = 32


@dataclass(frozen=True)
class Manifest:
    """A checkpoint's checksums and numbers for retention."""

    files: Mapping[str, str]  # name -> checksum
    seconds: float | None = None  # training time; None: unknown
    score: float | None = None  # None: unknown
    is_own: bool = False  # whether this installation has signed it


def checksum_of(data: bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def manifest_bytes(manifest: Manifest) -> bytes:
    """The content of `manifest.json`; signed if `is_own` and there is a key, which is made if there is none."""
    content: dict[str, Any] = {
        "files": dict(manifest.files),
        "seconds": manifest.seconds,
        "score": manifest.score,
    }
    content["signature"] = _signature(content, _own_key()) if manifest.is_own else None
    return _with_checksum(content)


def parse_manifest(data: bytes) -> Manifest:
    """Read the content of `manifest.json`.

    Raises:
        ValueError: it is damaged.
    """
    content = parse_json(data)
    if not isinstance(content, dict) or set(content) != _ENTRIES:
        raise ValueError(f"it must have the entries {', '.join(sorted(_ENTRIES))}")
    without = {name: value for name, value in content.items() if name != "checksum"}
    if data != _with_checksum(without):  # compares every byte, so that a file has one form only
        raise ValueError("its checksum does not fit its content")
    files = content["files"]
    if not isinstance(files, dict) or not all(_FILE_NAME.fullmatch(name) for name in files):
        raise ValueError("its files must be names of files in the same folder")
    signature, key = without.pop("signature"), _read_key(_key_path())
    is_own = bool(key and signature) and hmac.compare_digest(str(signature), str(_signature(without, key)))
    seconds, score = (_number(name, content[name]) for name in ("seconds", "score"))
    if seconds is not None and seconds < 0:
        raise ValueError(f"its seconds are {seconds}, and cannot be below 0")
    return Manifest(files, seconds, score, is_own)


def _number(name: str, value: object) -> float | None:
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= sys.float_info.max:
        raise ValueError(f"its {name} is {value!r:.80}; expected a finite number or null")
    return float(value)


def _with_checksum(content: Mapping[str, Any]) -> bytes:
    whole = {**content, "checksum": checksum_of(_canonical(content))}
    return json.dumps(whole, indent=2, allow_nan=False).encode() + b"\n"


def _signature(content: Mapping[str, Any], key: bytes | None) -> str | None:
    return hmac.new(key, _canonical(content), hashlib.sha256).hexdigest() if key else None


def _canonical(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, allow_nan=False).encode()


# --- The key of this installation ---


def _key_path() -> Path | None:
    """The file of the key; None if the user has no configuration folder."""
    given = os.environ.get("XDG_CONFIG_HOME", "")
    if os.path.isabs(given):
        return Path(given) / "enn_ppo" / "key"
    with suppress(RuntimeError):
        return Path.home() / ".config" / "enn_ppo" / "key"
    return None


def _read_key(path: Path | None) -> bytes | None:
    with suppress(OSError):
        if path and len(key := path.read_bytes()) == _KEY_BYTES:
            return key
    return None


def _own_key() -> bytes | None:
    """The key, made if there is none; None if it cannot be written."""
    path = _key_path()
    if path is None or (key := _read_key(path)):
        return None if path is None else key
    aside = path.with_name(f".key_{secrets.token_hex(8)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_file(aside, secrets.token_bytes(_KEY_BYTES), mode=0o600)
        os.link(aside, path)  # fails if another process has just made one, which is then read
    except OSError:
        pass
    finally:
        with suppress(OSError):
            aside.unlink()
    return _read_key(path)
