"""A checkpoint as enn-trainer 0.1.16 writes it.

    latest-step000000059392/config.ron                    settings
                            state.ron                     steps, observation and action spaces
                            state.agent.msgpack           the policy's weights, a state_dict
                            state.optimizer.msgpack       its optimizer, a state_dict of AdamW
                            state.value_function.msgpack  with a network for the value function: its weights
                            state.vf_optimizer.msgpack      and its optimizer

Reading executes no code.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from enn_ppo.convert import blobs, ron

CONFIG, STATE = "config.ron", "state.ron"
VERSION = 4  # of enn-trainer's settings
KINDS = {
    "CategoricalActionSpace": "categorical",
    "GlobalCategoricalActionSpace": "global_categorical",
    "SelectEntityActionSpace": "select_entity",
}


class SourceNet(NamedTuple):
    """One of its networks."""

    weights: dict[str, Tensor]
    optimizer: dict[str, Any]  # state_dict() of AdamW


class Source(NamedTuple):
    """A checkpoint of enn-trainer."""

    path: Path
    step: int  # environment steps trained
    config: dict[str, Any]  # nested settings, with enn-trainer's names
    obs_space: dict[str, Any]  # as `rogue_net.transfer.conversion.read_description` takes it
    action_space: dict[str, Any]
    policy: SourceNet
    value_net: SourceNet | None


def read_source(path: Path) -> Source:
    """Read a checkpoint.

    Args:
        path: its folder, or the folder of a run's checkpoints, of which the newest is taken.

    Raises:
        ValueError: there is no checkpoint, or it is not one of enn-trainer 0.1.16, or a file is damaged; the message names it.
    """
    folder = find_source(path)
    config, state = (_read_struct(folder / name) for name in (CONFIG, STATE))
    version = config.pop("version", None)
    if version != VERSION:
        raise ValueError(
            f"{folder / CONFIG} has version {version!r}; allowed: {VERSION}, which enn-trainer 0.1.16 writes. Resume the run "
            "with enn-trainer 0.1.16 for one update, which writes such a checkpoint"
        )
    try:
        spaces = _obs_space(state["obs_space"]), {name: _action(of) for name, of in state["action_space"].items()}
        step = state["step"]
        if type(step) is not int or step < 0:
            raise ValueError(f"step is {step!r}")
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{folder / STATE} is no state of enn-trainer's training: {error!r}") from None
    has_value_net = state.get("value_function") is not None
    return Source(
        folder,
        step,
        config,
        *spaces,
        policy=_read_net(folder, state, "agent", "optimizer"),
        value_net=_read_net(folder, state, "value_function", "vf_optimizer") if has_value_net else None,
    )


def find_source(path: Path) -> Path:
    """Find a checkpoint's folder."""
    looked_for = f"a checkpoint of enn-trainer is a folder, such as latest-step000000059392, with {CONFIG} and {STATE}"
    if not path.exists():
        raise ValueError(f"there is no {path}; {looked_for}")
    if not path.is_dir():
        raise ValueError(f"{path} is a file; {looked_for}")
    if all((path / name).is_file() for name in (CONFIG, STATE)):
        return path
    found = [each for each in path.iterdir() if each.name[-12:].isdecimal() and (each / STATE).is_file()]
    if found:
        return max(found, key=lambda each: int(each.name[-12:]))
    if (path / "checkpoints").is_dir() or (path / "policy.safetensors").is_file():
        raise ValueError(f"{path} is a run of enn-ppo already; {looked_for}")
    names = sorted(each.name for each in path.iterdir())
    listing = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    raise ValueError(f"{path} holds {listing or 'nothing'}; {looked_for}")


def plain(value: Any) -> Any:
    """A value of RON with dicts in place of structs."""
    if isinstance(value, ron.Struct):
        value = value.fields
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list) else value


def _read_struct(file: Path) -> dict[str, Any]:
    try:
        read = ron.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} cannot be read: {error}") from error
    if not isinstance(read, ron.Struct):
        raise ValueError(f"{file} holds a {type(read).__name__}, and not the settings or the state of a training")
    if file.name == CONFIG:
        return dict(plain(read))
    return dict(read.fields)


def _read_net(folder: Path, state: Mapping[str, Any], weights: str, optimizer: str) -> SourceNet:
    read = _read_blob(folder, state, weights)
    if not read or not all(isinstance(each, Tensor) for each in read.values()):
        raise ValueError(f"{folder / f'state.{weights}.msgpack'} holds no weights, which are names and arrays")
    moments = _read_blob(folder, state, optimizer)
    if not {"state", "param_groups"} <= moments.keys():
        raise ValueError(f"{folder / f'state.{optimizer}.msgpack'} holds no state of an optimizer")
    return SourceNet(read, moments)


def _read_blob(folder: Path, state: Mapping[str, Any], name: str) -> dict[str, Any]:
    if state.get(name) != "<blob:msgpack>":
        raise ValueError(
            f"{folder / STATE} has {name}={state.get(name)!r:.100}; allowed: '<blob:msgpack>', as enn-trainer 0.1.16 writes it. "
            "Older versions wrote pickles, which can run code and are not read: resume the run with 0.1.16 for one update"
        )
    file = folder / f"state.{name}.msgpack"
    try:
        read = blobs.loads(file.read_bytes())
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{file} {error}") from error
    if not isinstance(read, dict):
        raise ValueError(f"{file} holds a {type(read).__name__}, and not a state_dict")
    return read


def _obs_space(space: ron.Struct) -> dict[str, Any]:
    fields = plain(space)
    entities = {name: list(entity.get("features", [])) for name, entity in fields.get("entities", {}).items()}
    return {"entities": entities, "global_features": list(fields.get("global_features", []))}


def _action(space: ron.Struct | str) -> dict[str, Any]:
    if isinstance(space, str):  # without fields
        space = ron.Struct(space, {})
    if not isinstance(space, ron.Struct) or space.name not in KINDS:
        raise ValueError(f"an action space {space!r:.100}; known are {list(KINDS)}")
    kind = {"kind": KINDS[space.name]}
    return kind | ({"choices": list(space.fields["index_to_label"])} if "index_to_label" in space.fields else {})
