"""The settings of the presets in configs/, for Python: `train(preset("MineSweeper", total_timesteps=100_000))`."""

from __future__ import annotations

from typing import Any

from enn_ppo.settings.command_line.composition import Arguments, compose, plain_values
from enn_ppo.settings.command_line.mistakes import as_value_error
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
    arguments = Arguments([f"env={env}", *overrides, *given])
    with as_value_error(TrainConfig):
        config = compose(
            "train", TrainConfig, arguments, lambda composed: from_dict(TrainConfig, plain_values(composed.config))
        )
    assert config is not None
    return config
