"""The settings of the presets in configs/, for Python: `train(preset("MineSweeper", total_timesteps=100_000))`."""

from __future__ import annotations

from typing import Any

from enn_ppo.settings.command_line.composition import compose, plain_values, prepare
from enn_ppo.settings.command_line.mistakes import told
from enn_ppo.settings.config import TrainConfig
from enn_ppo.settings.schema import from_dict, quoted


def preset(env: str, *overrides: str, **settings: Any) -> TrainConfig:
    """The settings that `python -m enn_ppo.train env=<env>` trains with.

    Args:
        env: name of a file in configs/env, such as `MineSweeper`.
        overrides: as on the command line: `"optim.lr=1e-3"`, `"experiment=quick"`.
        settings: overrides of settings without a section: `seed=3`, `run_dir="out/a"`.

    Raises:
        ValueError: there is no such preset or setting, or a value is not allowed.
    """
    given = [f"{name}={quoted(value, name)}" for name, value in settings.items()]
    try:
        config = compose("train", [prepare(each, TrainConfig) for each in (f"env={env}", *overrides, *given)])
    except Exception as error:
        if (message := told(error, TrainConfig)) is None:
            raise
        raise ValueError(message) from error
    return from_dict(TrainConfig, plain_values(config))
