"""Settings of a run that goes on: those of its checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from enn_ppo.settings.config import TrainConfig
from enn_ppo.settings.schema import to_dict
from rogue_net.checks import checked


def resumed(resume: object, change: Callable[[TrainConfig], TrainConfig]) -> TrainConfig:
    """The settings of a run that goes on from a run directory, or from one of its checkpoints.

    Args:
        resume: a run directory, a checkpoint, or the directory of a run with several policies.
        change: changes the saved settings, in which `run_dir` is null: the run goes on where it was.

    Raises:
        ValueError: a setting is not allowed, there is no such checkpoint, or it names code and is not trusted.
    """
    from enn_ppo.checkpoints import load_checkpoint, load_common, runs_in  # imported here: they load torch
    from enn_ppo.checkpoints.policy import saved_config
    from enn_ppo.checkpoints.trust import check_trust, code_of_training

    resume = checked("resume", resume, str | None)
    path = Path(str(resume))
    of_policies = runs_in(path)
    checkpoint = load_common(of_policies)[0] if of_policies else load_checkpoint(path)
    saved = saved_config(checkpoint)
    config = change(replace(saved, resume=str(path), run_dir=None, overwrite=False, trust=False))
    if not config.trust:
        check_trust(checkpoint, code_of_training(to_dict(config)))
    return config
