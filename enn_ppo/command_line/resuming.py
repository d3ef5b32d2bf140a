"""Settings of a resumed run: those of the checkpoint, changed by what is typed now."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig

from enn_ppo.command_line.composition import load_choice, plain_values
from enn_ppo.config import TrainConfig
from enn_ppo.settings.schema import flatten, from_dict, to_dict
from rogue_net.checks import check_text

_SEPARATE = ("run_dir", "resume", "overwrite")  # say how to resume; not settings of the resumed run


def resolve_train_config(config: DictConfig, typed: Sequence[str]) -> tuple[TrainConfig, str]:
    """Turn what Hydra composed into a `TrainConfig`.

    With `resume` (a run directory, a checkpoint, or the directory of a run with several policies), the settings are those of the
    checkpoint. Composed settings replace them only if `typed` sets them: a key, every key of a chosen group, and all of `env` if
    another environment is chosen. Without `run_dir`, it is the directory of the resumed run.

    Args:
        config: the composed config.
        typed: the overrides of the command line, for example `["resume=out/a", "total_timesteps=100000"]`.

    Returns:
        The config, and a line with the saved settings that it changes (empty if there are none).

    Raises:
        ValueError: a setting is not allowed, or there is no such checkpoint.
    """
    if config.get("resume") is None:
        return from_dict(TrainConfig, plain_values(config)), ""
    check_text("resume", config.resume, optional=True)
    from enn_ppo.checkpoints import load_checkpoint  # imported here: it loads torch
    from enn_ppo.checkpoints.common import load_common, runs_in

    path = Path(str(config.resume))
    of_policies = runs_in(path)
    checkpoint = load_common(of_policies)[0] if of_policies else load_checkpoint(path)
    try:
        saved = to_dict(from_dict(TrainConfig, checkpoint.config))
    except ValueError as error:
        error.add_note(f"(in the config.yaml of checkpoint {checkpoint.path})")
        raise
    holds = checkpoint.path.absolute().parent
    run_dir = _relative(path.absolute() if of_policies else holds.parent) if holds.name == "checkpoints" else None
    values = {**copy.deepcopy(saved), "run_dir": run_dir, "resume": str(config.resume), "overwrite": False}
    _apply_typed(values, plain_values(config, allow_missing=True), typed)

    resolved = from_dict(TrainConfig, values)
    before, after = flatten(saved), flatten(to_dict(resolved))
    changes = [
        f"{name} {before.get(name, 'unset')} -> {after.get(name, 'unset')}"
        for name in {**before, **after}
        if name not in _SEPARATE and before.get(name, "unset") != after.get(name, "unset")
    ]
    resumed = path if of_policies else checkpoint.path
    return resolved, f"resuming {resumed} with other settings: {', '.join(changes)}" if changes else ""


def _apply_typed(values: dict[str, Any], composed: Mapping[str, Any], typed: Sequence[str]) -> None:
    """Copy the settings that `typed` sets from `composed` to `values`."""
    saved_world = (values["env"]["id"], values["env"]["api"])
    overrides = OverridesParser.create().parse_overrides(list(typed))
    for override in overrides:
        for path in _touched(override):
            _copy(values, composed, path.split("."))
    chosen = composed["env"]
    if any(override.key_or_group == "env" for override in overrides) and chosen["id"] != "???":
        if (chosen["id"], chosen["api"]) != saved_world:
            values["env"] = chosen  # arguments of another environment do not apply


def _touched(override: Override) -> list[str]:
    """The dotted names of the settings that an override sets."""
    key = override.key_or_group
    if not GlobalHydra.instance().config_loader().get_group_options(key):
        value = override.value()
        return [f"{key}.{name}" for name in flatten(value)] if isinstance(value, dict) and value else [key]
    source = load_choice(f"{key}/{override.value()}")
    if source is None:
        return []  # group=null
    package = (source.header or {}).get("package") or key.replace("/", ".")
    prefix = "" if package == "_global_" else f"{package}."
    names = flatten(plain_values(source.config, allow_missing=True))
    if key == "env" and not prefix:  # other settings of a preset are for new runs
        names = {name: value for name, value in names.items() if name.startswith("env.")}
    if prefix and "defaults" in names:  # it includes other files: take all of it
        return [package]
    return [prefix + name for name in names if name != "defaults"]


def _copy(values: dict[str, Any], composed: Any, keys: Sequence[str]) -> None:
    """Set, or remove, one nested value. A value that is missing (`???`) is skipped."""
    for key in keys[:-1]:
        composed = composed.get(key) if isinstance(composed, Mapping) else None
        if not isinstance(values.get(key), dict):
            values[key] = {}
        values = values[key]
    if not isinstance(composed, Mapping) or keys[-1] not in composed:
        values.pop(keys[-1], None)
    elif composed[keys[-1]] != "???":
        values[keys[-1]] = composed[keys[-1]]


def _relative(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
