"""Settings of a resumed run: those of the checkpoint, changed by the command's arguments."""

from __future__ import annotations

from pathlib import Path

from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from enn_ppo.settings.command_line.composition import Composed, compose_one, escaped, plain_values
from enn_ppo.settings.config import TrainConfig
from enn_ppo.settings.schema import flatten, from_dict, to_dict
from rogue_net.checks import check_text

_SEPARATE = ("run_dir", "resume", "overwrite", "trust")  # describe how to resume, and are not taken from the checkpoint


def resolve_train_config(composed: Composed) -> tuple[TrainConfig, str]:
    """Turn Hydra's composed settings into a `TrainConfig`.

    With `resume` (a run directory, a checkpoint, or the directory of a run with several policies), the command's arguments
    override the checkpoint's settings, and the default of `run_dir` is the resumed run's.

    Returns:
        The config, and a line with the saved settings that change (empty if there are none).

    Raises:
        ValueError: a setting is not allowed, there is no such checkpoint, or it names code and is not trusted.
    """
    if composed.config.get("resume") is None:
        return from_dict(TrainConfig, plain_values(composed.config)), ""
    check_text("resume", composed.config.resume, optional=True)
    from enn_ppo.checkpoints import load_checkpoint, load_common, runs_in  # imported here: it loads torch
    from enn_ppo.checkpoints.trust import check_trust, code_of_training

    path = Path(str(composed.config.resume))
    of_policies = runs_in(path)
    checkpoint = load_common(of_policies)[0] if of_policies else load_checkpoint(path)
    try:
        saved = to_dict(from_dict(TrainConfig, checkpoint.config))
    except ValueError as error:
        error.add_note(f"(in the settings of checkpoint {checkpoint.path})")
        raise
    holds = checkpoint.path.absolute().parent
    run_dir = _relative(path.absolute() if of_policies else holds.parent) if holds.name == "checkpoints" else None
    base = {**escaped(saved), "run_dir": run_dir, "overwrite": False, "trust": False}

    # On resuming, `env=...` only selects the environment: the preset's other settings are for new runs.
    typed = [override for override in composed.typed if not override.startswith("env=")]
    if len(typed) < len(composed.typed):
        saved_env, chosen = saved["env"], OmegaConf.to_container(composed.config.env, resolve=True)
        assert isinstance(chosen, dict)
        same = chosen["id"] == "???" or (chosen["id"], chosen["api"]) == (saved_env["id"], saved_env["api"])
        # saved arguments fit only the same environment
        base["env"] = OmegaConf.merge(escaped(saved_env), escaped(chosen)) if same else escaped(chosen)
    groups = ["_self_", *({group: None} for group in ("value_net", "distributed", "env", "experiment"))]
    ConfigStore.instance().store(name="resumed", node={"defaults": groups, **base})
    resolved = from_dict(TrainConfig, plain_values(compose_one("resumed", typed, composed.config_dir).config))
    if not resolved.trust:
        check_trust(checkpoint, code_of_training(to_dict(resolved)))

    before, after = flatten(saved), flatten(to_dict(resolved))
    changes = [
        f"{name} {before.get(name, 'unset')} -> {after.get(name, 'unset')}"
        for name in {**before, **after}
        if name not in _SEPARATE and before.get(name, "unset") != after.get(name, "unset")
    ]
    resumed = path if of_policies else checkpoint.path
    return resolved, f"resuming {resumed} with other settings: {', '.join(changes)}" if changes else ""


def _relative(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
