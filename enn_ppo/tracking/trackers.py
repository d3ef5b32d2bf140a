"""Trackers: TensorBoard and Weights & Biases. Each needs an extra."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from enn_ppo.config import TrainConfig
from enn_ppo.files import replace_file
from enn_ppo.settings.schema import flatten, to_dict
from enn_ppo.tracking.logger import CompositeLogger, Droppable, JsonlLogger, MetricsLogger, Row, known
from enn_ppo.tracking.run_dir import METRICS, TENSORBOARD, WANDB

__all__ = ["TensorBoardLogger", "WandbLogger", "make_loggers"]

_RUN_ID = "run_id"  # file in wandb's folder with the id of the wandb run
_FINISH_SECONDS = 120.0  # the end of a run waits so long for the upload; `wandb sync` uploads the rest


def make_loggers(
    run_dir: Path, config: TrainConfig, resume_step: int | None, warn: Callable[[str], None]
) -> MetricsLogger:
    """Make the logger of a run: `metrics.jsonl` and the trackers of the settings.

    A tracker that cannot start is an error; one that fails later is dropped with a warning.

    Args:
        run_dir: exists; `metrics.jsonl` and the trackers' folders go there.
        config: of the run.
        resume_step: step that a resumed run continues from; None: a new run.
        warn: prints a line.

    Raises:
        ValueError: a tracker cannot be used, or the rows of a resumed run cannot be read.
        OSError: `run_dir` cannot be written.
    """
    settings, chosen = to_dict(config), config.logger
    trackers: list[MetricsLogger] = []
    with ExitStack() as undo:  # trackers first: if one cannot start, no metrics.jsonl is created
        if chosen.tensorboard:
            tensorboard = TensorBoardLogger(run_dir, settings, resume_step)
            undo.callback(tensorboard.close)
            trackers.append(Droppable("TensorBoard", tensorboard, warn))
        if chosen.wandb != "disabled":
            wandb = WandbLogger(
                run_dir, settings, resume_step, mode=chosen.wandb, project=chosen.project, entity=chosen.entity
            )
            undo.callback(wandb.close)
            trackers.append(Droppable("wandb", wandb, warn))
        file = JsonlLogger(run_dir / METRICS, resume_step)
        undo.pop_all()
    return CompositeLogger([file, *trackers])


class TensorBoardLogger:
    """Writes TensorBoard's event files, flushed after every row.

    Metrics `eval/...` are logged at the step of the policy that was evaluated, all others at the step of the row.
    """

    def __init__(self, run_dir: Path, config: Mapping[str, Any], resume_step: int | None) -> None:
        """Start a file in the folder `tensorboard` of `run_dir`.

        Args:
            run_dir: exists.
            config: nested settings, shown as a table on the page TEXT.
            resume_step: step that a resumed run continues from; TensorBoard then drops later rows. None: a new run.

        Raises:
            ValueError: tensorboard is not installed.
            OSError: the file cannot be written.
        """
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ValueError(
                'logger.tensorboard=true needs tensorboard, which is not installed: pip install "enn-ppo[tensorboard]", '
                "or logger.tensorboard=false"
            ) from error
        folder = run_dir / TENSORBOARD
        folder.mkdir(exist_ok=True)
        self._writer = SummaryWriter(str(folder), purge_step=None if resume_step is None else resume_step + 1)
        self._writer.add_text("config", _table(config))
        self._writer.flush()

    def log(self, row: Row) -> None:
        """Log the finite numbers of a row."""
        values = known(row)
        step = int(values.pop("step"))
        for name, value in values.items():
            at = int(values.get("eval/step", step)) if name.startswith("eval/") else step
            self._writer.add_scalar(name, value, at)
        self._writer.flush()

    def close(self) -> None:
        """Finish the file."""
        self._writer.close()


class WandbLogger:
    """Logs rows to Weights & Biases, online or offline.

    A resumed run continues the wandb run whose id is in `wandb/run_id` of the run directory. wandb ignores rows of steps that it
    has, so the steps that a resumed run repeats keep their first rows there.
    """

    def __init__(
        self,
        run_dir: Path,
        config: Mapping[str, Any],
        resume_step: int | None,
        *,
        mode: str,
        project: str,
        entity: str | None,
    ) -> None:
        """Start or continue a wandb run.

        Args:
            run_dir: wandb's files go to its folder `wandb`.
            config: shown with the run.
            resume_step: step that a resumed run continues from; None: a new run.
            mode: "offline" needs no account and no network; "online".
            project: wandb's project.
            entity: team or user; None: wandb's default.

        Raises:
            ValueError: wandb is not installed, or refuses to start.
            OSError: wandb's folder cannot be written.
        """
        try:
            import wandb  # imported here: it is optional, and slow to import
        except ImportError as error:
            raise ValueError(
                f'logger.wandb={mode} needs wandb, which is not installed: pip install "enn-ppo[wandb]", '
                "or logger.wandb=disabled"
            ) from error
        folder = run_dir / WANDB
        folder.mkdir(exist_ok=True)
        run_id = _run_id(folder, new=resume_step is None)
        settings = wandb.Settings(
            console="off",  # wandb's capture of the console conflicts with the live progress line
            silent=True,
            reinit="create_new",  # do not end a wandb run of the user, for example in a notebook
            finish_timeout=_FINISH_SECONDS,
        )
        try:
            self._run = wandb.init(
                mode="online" if mode == "online" else "offline",
                project=project,
                entity=entity,
                dir=str(run_dir),
                config=dict(config),
                id=run_id,
                # of what was kept offline, wandb makes one run by its id alone
                resume="allow" if mode == "online" else None,
                settings=settings,
            )
        except wandb.Error as error:
            raise ValueError(
                f"logger.wandb={mode} could not start: {error}. "
                "`wandb login` sets up an account; logger.wandb=offline needs none"
            ) from error
        self._run.define_metric("eval/*", step_metric="eval/step")

    def log(self, row: Row) -> None:
        """Log the finite numbers of a row."""
        values = known(row)
        self._run.log(values, step=int(values["step"]))

    def close(self) -> None:
        """Finish the run. Safe to call twice."""
        self._run.finish()


def _run_id(folder: Path, *, new: bool) -> str:
    """The wandb id of the run; a new one if there is none."""
    file = folder / _RUN_ID
    if not new and file.exists():
        return file.read_text("utf-8").strip()
    run_id = secrets.token_hex(4)
    replace_file(file, f"{run_id}\n".encode())
    return run_id


def _table(config: Mapping[str, Any]) -> str:
    """Settings as a table in Markdown."""

    def lines() -> Iterator[str]:
        yield "| setting | value |"
        yield "|---|---|"
        for name, value in flatten(config).items():
            shown = str(value).replace("|", "\\|")
            yield f"| {name} | {shown} |"

    return "\n".join(lines())
