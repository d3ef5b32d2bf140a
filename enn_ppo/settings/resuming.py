"""Settings of a run that goes on: those of its checkpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from enn_ppo.settings.config import TrainConfig
from enn_ppo.settings.schema import to_dict
from rogue_net.checks import as_plain, check_text

if TYPE_CHECKING:
    from enn_ppo.checkpoints import Checkpoint


def resumed(resume: str | Path, **settings: Any) -> TrainConfig:
    """The settings of a run that goes on from a run directory, or from one of its checkpoints, changed by `settings`.

    Raises:
        ValueError: a setting is not allowed, there is no such checkpoint, or it names code and is not trusted.
    """
    checkpoint, saved = saved_config(resume)
    config = replace(saved, **settings)
    check_code(checkpoint, config)
    return config


def saved_config(resume: object) -> tuple[Checkpoint, TrainConfig]:
    """A checkpoint, and its settings with `resume` and the run directory in which the run goes on.

    Args:
        resume: a run directory, a checkpoint, or the directory of a run with several policies.

    Raises:
        ValueError: there is no such checkpoint, or one of its settings is unknown.
    """
    from enn_ppo.checkpoints import load_checkpoint, load_common, runs_in  # imported here: it loads torch
    from enn_ppo.checkpoints.policy import saved_config as config_of

    resume = as_plain(resume)
    check_text("resume", resume, optional=True)
    path = Path(str(resume))
    of_policies = runs_in(path)
    checkpoint = load_common(of_policies)[0] if of_policies else load_checkpoint(path)
    run_dir: Path | None = path.absolute()
    if not of_policies:
        folder = checkpoint.path.absolute().parent
        run_dir = folder.parent if folder.name == "checkpoints" else None
    if run_dir and run_dir.is_relative_to(Path.cwd()):
        run_dir = run_dir.relative_to(Path.cwd())
    changes: dict[str, Any] = {"resume": resume, "run_dir": run_dir, "overwrite": False, "trust": False}
    return checkpoint, replace(config_of(checkpoint), **changes)


def check_code(checkpoint: Checkpoint, config: TrainConfig) -> None:
    """Refuse to run code that the settings of a stranger's checkpoint name, unless `config.trust`.

    Raises:
        ValueError: the message says what would have been run.
    """
    from enn_ppo.checkpoints.trust import check_trust, code_of_training

    if not config.trust:
        check_trust(checkpoint, code_of_training(to_dict(config)))
