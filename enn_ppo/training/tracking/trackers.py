"""Trackers: TensorBoard and Weights & Biases. Each needs its optional dependency."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from enn_ppo.settings.config import TrainConfig
from enn_ppo.settings.schema import flatten, to_dict
from enn_ppo.training.files import make_folder, replace_file
from enn_ppo.training.tracking.logger import MetricsLogger
from enn_ppo.training.tracking.run_dir import METRICS, TENSORBOARD, WANDB
from entity_gym.untrusted import read_regular

__all__ = ["TensorBoardLogger", "WandbLogger", "make_logger"]

_RUN_ID = "run_id"  # file in wandb's folder with the id of the wandb run
_FINISH_SECONDS = 120.0  # timeout for the upload at the end of a run; `wandb sync` uploads the rest


def make_logger(
    run_dir: Path, config: TrainConfig, resume_step: int | None, warn: Callable[[str], None]
) -> MetricsLogger:
    """Make the logger of a run: `metrics.jsonl` and the trackers of the settings.

    A tracker that cannot start is an error; one that fails later is dropped with a warning.

    Args:
        run_dir: existing directory for `metrics.jsonl` and the trackers' folders.
        config: of the run.
        resume_step: step that a resumed run continues from; None: a new run.
        warn: prints a line.

    Raises:
        ValueError: a tracker cannot be used, or the rows of a resumed run cannot be read.
        OSError: `run_dir` cannot be written.
    """
    trackers: dict[str, Any] = {}
    with ExitStack() as undo:  # trackers first: if one cannot start, no metrics.jsonl is created
        if config.logger.tensorboard:
            trackers["TensorBoard"] = undo.enter_context(closing(TensorBoardLogger(run_dir, config, resume_step)))
        if config.logger.wandb != "disabled":
            trackers["wandb"] = undo.enter_context(closing(WandbLogger(run_dir, config, resume_step)))
        logger = MetricsLogger(run_dir / METRICS, resume_step, trackers, warn)
        undo.pop_all()
    return logger


class TensorBoardLogger:
    """Writes TensorBoard's event files in the folder `tensorboard` of the run, flushed after every row.

    Metrics `eval/...` are logged at the step of the evaluated checkpoint, all others at the step of the row. The settings are a
    table on the page TEXT. When a run is resumed, TensorBoard drops the rows of later steps.

    Raises:
        ValueError: tensorboard is not installed.
        OSError: the file cannot be written.
    """

    def __init__(self, run_dir: Path, config: TrainConfig, resume_step: int | None) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ValueError(
                'logger.tensorboard=true needs tensorboard, which is not installed: pip install "enn-ppo[tensorboard]", '
                "or logger.tensorboard=false"
            ) from error
        folder = run_dir / TENSORBOARD
        make_folder(folder)
        self._writer: Any = SummaryWriter(str(folder), purge_step=None if resume_step is None else resume_step + 1)
        settings = {name: str(value).replace("|", "\\|") for name, value in flatten(to_dict(config)).items()}
        lines = ["| setting | value |", "|---|---|", *(f"| {name} | {value} |" for name, value in settings.items())]
        self._writer.add_text("config", "\n".join(lines))
        self._writer.flush()

    def log(self, row: Mapping[str, float]) -> None:
        """Log the numbers of a row."""
        for name, value in row.items():
            if name != "step":
                step = row.get("eval/step", row["step"]) if name.startswith("eval/") else row["step"]
                self._writer.add_scalar(name, value, int(step))
        self._writer.flush()

    def close(self) -> None:
        """Finish the file."""
        self._writer.close()


class WandbLogger:
    """Logs rows to Weights & Biases, online or offline.

    A resumed run continues the wandb run whose id is in `wandb/run_id` of the run directory. wandb ignores rows of steps that it
    already has, so steps that a resumed run repeats keep their first rows.

    Raises:
        ValueError: wandb is not installed, or refuses to start.
        OSError: wandb's folder cannot be written.
    """

    def __init__(self, run_dir: Path, config: TrainConfig, resume_step: int | None) -> None:
        chosen = config.logger
        try:
            import wandb  # imported here: wandb is optional, and slow to import
        except ImportError as error:
            raise ValueError(
                f'logger.wandb={chosen.wandb} needs wandb, which is not installed: pip install "enn-ppo[wandb]", '
                "or logger.wandb=disabled"
            ) from error
        make_folder(run_dir / WANDB)
        id_file = run_dir / WANDB / _RUN_ID
        if resume_step is None or not id_file.exists():
            replace_file(id_file, f"{secrets.token_hex(4)}\n".encode())
        settings = wandb.Settings(
            console="off",  # wandb's capture of the console conflicts with the live progress line
            silent=True,
            reinit="create_new",  # do not end a wandb run of the user, for example in a notebook
            finish_timeout=_FINISH_SECONDS,
        )
        try:
            self._run = wandb.init(
                mode=chosen.wandb,
                project=chosen.project,
                entity=chosen.entity,
                dir=str(run_dir),
                config=to_dict(config),
                id=read_regular(id_file, 1000).decode().strip(),
                # wandb merges offline files with the same id into one run
                resume="allow" if chosen.wandb == "online" else None,
                settings=settings,
            )
        except wandb.Error as error:
            raise ValueError(
                f"logger.wandb={chosen.wandb} could not start: {error}. "
                "`wandb login` sets up an account; logger.wandb=offline needs none"
            ) from error
        self._run.define_metric("eval/*", step_metric="eval/step")

    def log(self, row: Mapping[str, float]) -> None:
        """Log the numbers of a row."""
        self._run.log(dict(row), step=int(row["step"]))

    def close(self) -> None:
        """Finish the run. Safe to call twice."""
        self._run.finish()
