"""Signatures of policy files: HMAC-SHA256 by the key of this installation.

The key is 32 random bytes in `enn_ppo/key` of the user's configuration folder, readable by that user alone. It is made when a
checkpoint is first saved. Whoever cannot read it cannot sign, so a signed checkpoint names no code that this user did not name.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from contextlib import suppress
from pathlib import Path

from enn_ppo.training.files import write_file

_KEY_BYTES = 32


def signature_of(hash_: str) -> str:
    """Sign a file's hash with the key, which is made if there is none; empty if it cannot be written."""
    key = _own_key()
    return hmac.new(key, hash_.encode(), hashlib.sha256).hexdigest() if key else ""


def is_signature(signature: str, hash_: str) -> bool:
    """Whether this installation has signed a file with this hash."""
    key = _read_key(_key_path())
    if key is None or not signature.isascii():
        return False
    return hmac.compare_digest(signature, hmac.new(key, hash_.encode(), hashlib.sha256).hexdigest())


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
