"""Asking before the settings of a stranger's checkpoint run code on this machine.

Reading a checkpoint never executes code, but its settings name code: an importable environment, or a program. A checkpoint that
this installation has signed names only what its user has chosen. Any other one asks, unless its environment is registered.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from enn_ppo.checkpoints import Checkpoint, load_checkpoint
from enn_ppo.checkpoints.policy import saved_config
from enn_ppo.settings.schema import to_dict
from entity_gym.registry import list_envs


def code_of_environment(env: Mapping[str, Any]) -> dict[str, str]:
    """Code that making the environment of the settings `env` would run: settings -> description. Registered ones run nothing."""
    id_, api, kwargs = env.get("id", ""), env.get("api", "entity"), env.get("kwargs") or {}
    given = f"({', '.join(f'{name}={value!r}' for name, value in kwargs.items())})"
    if api == "program":
        if (command := kwargs.get("command")) is None:
            listen = kwargs.get("listen")
            return {f"env.api=program env.kwargs.listen={listen}": f"wait at {listen} for a program"}
        words = [command] if isinstance(command, str) else list(command)
        line = shlex.join(map(str, words))
        return {f"env.api=program env.kwargs.command={words}": f"run the program `{line}`"}
    if api != "entity":
        around = [str(each) for each in env.get("wrappers") or ()]
        wrappers = {f"env.wrappers={around}": f"put {', '.join(around)} around it"} if around else {}
        return wrappers | {f"env.api={api} env.id={id_}": f"import {api} and make its environment {id_!r} with {given}"}
    module, colon, name = str(id_).partition(":")
    if id_ in list_envs() or not colon:  # an unknown name without a module is an error later, and imports nothing
        return {}
    return {f"env.id={id_}": f"import the module {module} and call its {name}{given}"}


def code_of_training(settings: Mapping[str, Any]) -> dict[str, str]:
    """Code, clusters and files outside of the run directory that training with these settings uses: settings -> description."""
    distributed, record = settings.get("distributed") or {}, settings.get("record")
    found = code_of_environment(settings["env"])
    address = distributed.get("address", "local")
    if distributed.get("mode") == "ray" and address.startswith("ray://"):
        found[f"distributed.address={address}"] = f"join the Ray cluster {address}, which can run code here"
    if record is not None:
        found[f"record={record}"] = f"write into the folder {record}"
    return found


def load_trusted(path: Path | str, trusted: bool) -> Checkpoint:
    """Load a checkpoint whose environment will be made here.

    Raises:
        ValueError: there is none, or its settings name code, this installation has not written it, and `trusted` is false.
    """
    checkpoint = load_checkpoint(Path(path))
    if not trusted:
        check_trust(checkpoint, code_of_environment(to_dict(saved_config(checkpoint).env)))
    return checkpoint


def check_trust(checkpoint: Checkpoint, code: Mapping[str, str]) -> None:
    """Refuse to run `code`, which the settings of `checkpoint` name, unless this installation has written it.

    Raises:
        ValueError: the message says what would have been run, and that `trust=true` allows it.
    """
    if checkpoint.is_own or not code:
        return
    listed = " and ".join(f"{description} ({settings})" for settings, description in code.items())
    raise ValueError(
        f"checkpoint {checkpoint.path} is not signed by this installation of enn-ppo, and its settings would {listed}. Nothing "
        "was run. Add trust=true if you trust whoever made it"
    )
