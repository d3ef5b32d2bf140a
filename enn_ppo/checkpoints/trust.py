"""Whether a checkpoint is of this installation, or its user trusts it: otherwise its settings run no code on this machine.

Reading a checkpoint never executes code, but its settings name code: an importable environment, or a program. A checkpoint that
this installation has signed names only what its user has chosen. Any other one asks, unless its environment is registered.

The signature is an HMAC-SHA256. Its key is 32 random bytes in `enn_ppo/key` of the user's configuration folder, readable by that
user alone, and is made when a checkpoint is first saved.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from enn_ppo.training.files import write_file
from entity_gym.registry import list_envs

if TYPE_CHECKING:
    from enn_ppo.checkpoints.policy_file import Checkpoint

_KEY_BYTES = 32


def check_trust(checkpoint: Checkpoint, code: Sequence[str]) -> None:
    """Refuse to use `code`, which the settings of `checkpoint` name, unless this installation has written it.

    Raises:
        ValueError: the message says what would have been used, and that `trust=true` allows it.
    """
    if code and not checkpoint.is_own:
        raise ValueError(
            f"checkpoint {checkpoint.path} is not signed by this installation of enn-ppo, and its settings would run or use "
            f"{', '.join(code)}. Nothing was run. Add trust=true if you trust whoever made it"
        )


def code_of_environment(env: Mapping[str, Any]) -> list[str]:
    """The settings of `env` that name code to import or programs to start. Registered environments run nothing."""
    id_, api = str(env.get("id", "")), env.get("api", "entity")
    if api == "entity" and (id_ in list_envs() or ":" not in id_):
        return []  # other unknown names import nothing, and are an error
    return [f"env.{name}={env[name]}" for name in ("api", "id", "kwargs", "wrappers") if env.get(name)]


def code_of_training(settings: Mapping[str, Any]) -> list[str]:
    """Settings that name code and clusters."""
    distributed = settings.get("distributed") or {}
    found = code_of_environment(settings["env"])
    address = distributed.get("address", "local")
    if distributed.get("mode") == "ray" and address.startswith("ray://"):
        found.append(f"distributed.address={address}")
    return found


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
