"""Output of a run other than checkpoints: progress, metrics, config and the learning curve."""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import yaml

from enn_ppo.settings.config import TrainConfig
from enn_ppo.settings.schema import to_dict
from enn_ppo.training.files import replace_file
from enn_ppo.training.tracking.curve import plot_learning_curve
from enn_ppo.training.tracking.logger import Row
from enn_ppo.training.tracking.progress import Progress, say
from enn_ppo.training.tracking.run_dir import CONFIG, LEARNING_CURVE, METRICS
from enn_ppo.training.tracking.trackers import make_logger

if TYPE_CHECKING:
    from rich.live import Live


class RunOutput(Progress):
    """Writes progress, metrics and config of a run. A context manager; at its end the learning curve is drawn.

    Args:
        run_dir: an existing directory.
        config: written to `config.yaml`.
        step: step that a resumed run continues from; later rows of metrics are removed. None: a new run.
        name: the policy's name, with which lines begin; empty if there is only one policy.
        live: redraws the dashboards of all policies in the terminal; None: plain lines.

    Raises:
        ValueError: the directory cannot be written, or a tracker cannot start.
    """

    def __init__(
        self, run_dir: Path, config: TrainConfig, step: int | None, name: str = "", live: Live | None = None
    ) -> None:
        super().__init__(
            config.total_timesteps,
            step or 0,
            live=live,
            max_seconds=config.max_train_seconds,
            prefix=f"{name}: " if name else "",
            title=f"{config.env.id}  {run_dir}",
        )
        self.run_dir = run_dir
        try:
            self._logger = make_logger(run_dir, config, step, self.say)
            replace_file(run_dir / CONFIG, yaml.safe_dump(to_dict(config), sort_keys=False).encode())
        except OSError as error:
            raise ValueError(f"run_dir {run_dir} cannot be written: {error}") from error

    def log(self, row: Row) -> None:
        """Show and log the metrics of an update, or of an evaluation (`step` and `eval/...` only).

        Raises:
            ValueError: `metrics.jsonl` cannot be written.
        """
        try:
            self._logger.log(row)
        except OSError as error:
            raise ValueError(
                f"{self.run_dir / METRICS} cannot be written: {error}; training ends after {row['step']:,} steps"
            ) from error
        if "seconds" in row:
            self.update(row)
        if row.get("eval/episodic_reward") is not None:
            self.say(_evaluated(row))

    def __enter__(self) -> RunOutput:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        self._logger.close()
        try:
            plot_learning_curve(self.run_dir / METRICS, self.run_dir / LEARNING_CURVE)
        except (OSError, ValueError) as problem:  # must not hide the error that has ended the run
            print(f"learning_curve.png was not drawn: {problem}", file=sys.stderr)
        if kind is None:
            say(f"done: {self.run_dir}")


def _evaluated(row: Row) -> str:
    reward, half_width = row["eval/episodic_reward"], row.get("eval/episodic_reward_ci95")
    interval = "" if half_width is None else f" ± {half_width:.3f}"
    line = f"evaluation of step {int(row.get('eval/step') or 0):,}: episodic_reward {reward:.3f}{interval}"
    for name in ("win_rate", "opponent_reward", "episode_length"):
        if (value := row.get(f"eval/{name}")) is not None:
            line += f"  {name} {value:.3f}"
    return line
