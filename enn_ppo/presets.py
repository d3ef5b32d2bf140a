"""The settings of the presets in configs/, for Python: `train(preset("MineSweeper", total_timesteps=100_000))`."""

from __future__ import annotations

import json
from typing import Any

from enn_ppo.command_line.composition import Arguments, Composed, Job, compose, plain_values
from enn_ppo.command_line.mistakes import told
from enn_ppo.config import TrainConfig
from enn_ppo.settings.schema import from_dict


def preset(env: str, *overrides: str, **settings: Any) -> TrainConfig:
    """The settings that `python -m enn_ppo.train env=<env>` trains with.

    Args:
        env: a world of configs/env, such as `MineSweeper`.
        overrides: as on the command line: `"optim.lr=1e-3"`, `"experiment=quick"`.
        settings: the same of settings without a section: `seed=3`, `run_dir="out/a"`.

    Raises:
        ValueError: there is no such preset or setting, or a value is not allowed.
    """

    def make(composed: Composed) -> Job[TrainConfig]:
        return Job(from_dict(TrainConfig, plain_values(composed.config)), composed.typed, None, "")

    given = [f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in settings.items()]
    try:
        (job,) = compose("train", Arguments([f"env={env}", *overrides, *given]), make)
    except Exception as error:
        paragraph = told(error, TrainConfig)
        if paragraph is None or isinstance(error, ValueError):
            raise
        raise ValueError(paragraph) from error
    return job.config
