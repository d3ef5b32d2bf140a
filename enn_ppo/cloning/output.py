"""Output of cloning except checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from enn_ppo.cloning.config import CloneConfig
from enn_ppo.settings.schema import to_dict
from enn_ppo.tracking.logger import Row
from enn_ppo.tracking.run_dir import CONFIG, prepare_run_dir

SETTINGS, ROWS = "clone.yaml", "clone.jsonl"


class CloneOutput:
    """Writes `config.yaml` (as training does), `clone.yaml`, and `clone.jsonl` with a row for each pass.

    Args:
        config: settings; their run directory is created.

    Raises:
        ValueError: the directory holds a run, and `overwrite` is not set, or it cannot be written.
    """

    def __init__(self, config: CloneConfig) -> None:
        self._of_actions = config.clone.loss == "cross_entropy"
        self._run_dir = prepare_run_dir(Path(str(config.run_dir)), resume=False, overwrite=config.overwrite)
        cloning = {name: value for name, value in to_dict(config).items() if name in ("data", "clone")}
        try:
            (self._run_dir / CONFIG).write_text(yaml.safe_dump(to_dict(config.training), sort_keys=False))
            (self._run_dir / SETTINGS).write_text(yaml.safe_dump(cloning, sort_keys=False))
            (self._run_dir / ROWS).write_text("")
        except OSError as error:
            raise ValueError(f"run_dir {self._run_dir} cannot be written: {error}") from error

    def log(self, row: Row) -> None:
        """Show and store the metrics of a pass.

        Raises:
            ValueError: they cannot be stored.
        """
        try:
            with open(self._run_dir / ROWS, "a") as file:
                file.write(json.dumps(row) + "\n")
        except OSError as error:
            raise ValueError(f"{self._run_dir / ROWS} cannot be written: {error}; nothing was saved") from error
        shown = ["loss", "log_prob", "value_loss", "holdout_loss", "holdout_log_prob", "holdout_value_loss"]
        if self._of_actions:  # the loss is -log_prob: it is not shown twice
            shown = [name for name in shown if "log_prob" not in name]
        numbers = "  ".join(f"{name} {row[name]:.4g}" for name in shown if row.get(name) is not None)
        self.say(f"pass {row['epoch']}: {numbers}")

    def say(self, text: str) -> None:
        """Print a line."""
        print(text, flush=True)
