"""Trackers of a run: `metrics.jsonl`, TensorBoard and Weights & Biases. A row holds the metrics of one update."""

from __future__ import annotations

import json
import math
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from enn_ppo.settings.config import TrainConfig
from enn_ppo.settings.schema import to_dict
from enn_ppo.training.files import append_to_file, make_folder, replace_file
from enn_ppo.training.tracking.run_dir import METRICS, TENSORBOARD, WANDB
from entity_gym.untrusted import parse_json, read_regular

Row = dict[str, float | int | None]  # None: no value in this update, such as the episodic reward if no episode ended

_MOST_BYTES = 2**31
_RUN_ID = "run_id"  # file in wandb's folder with the id of the wandb run
_FINISH_SECONDS = 120.0  # timeout for the upload at the end of a run; `wandb sync` uploads the rest


def make_logger(
    run_dir: Path, config: TrainConfig, resume_step: int | None, warn: Callable[[str], None]
) -> MetricsLogger:
    """Make the logger of a run: `metrics.jsonl` and the trackers of the settings, in `run_dir`, which exists.

    `resume_step` is the step that a resumed run continues from; None begins a new one. `warn` prints a line.

    Raises:
        ValueError: a tracker cannot be used, or the rows of a resumed run cannot be read.
        OSError: `run_dir` cannot be written.
    """
    chosen: dict[str, Callable[..., Any]] = {"tensorboard": TensorBoardLogger} if config.logger.tensorboard else {}
    chosen |= {"wandb": WandbLogger} if config.logger.wandb != "disabled" else {}
    for library in chosen:
        if find_spec(library) is None:
            raise ValueError(
                f'logger.{library} needs {library}, which is not installed: pip install "enn-ppo[{library}]"'
            )
    # trackers first: if one cannot start, no metrics.jsonl is created
    trackers = [each(run_dir, config, resume_step) for each in chosen.values()]
    return MetricsLogger(run_dir / METRICS, resume_step, trackers, warn)


class MetricsLogger:
    """Appends rows to `metrics.jsonl`, one JSON object per line, and passes them to the other trackers.

    Rows are on disk when `log` returns. The file is opened for every row, so that a removed run directory is noticed. A tracker
    that fails is dropped with one warning and never ends a run.
    """

    def __init__(
        self,
        path: Path,
        resume_step: int | None = None,
        trackers: Sequence[Any] = (),
        warn: Callable[[str], None] = print,
    ) -> None:
        """Create the file, or remove from that of a resumed run an incomplete last line and the rows after `resume_step`.

        Each tracker has `name` for warnings, `log`, which receives the finite numbers of a row, and `close`.

        Raises:
            ValueError: the existing rows cannot be read.
            OSError: the file cannot be written.
        """
        self._path, self._trackers, self._warn = path, list(trackers), warn
        if resume_step is not None and path.exists():
            replace_file(path, b"".join(_line_of(row) for row in read_metrics(path) if row["step"] <= resume_step))
        append_to_file(self._path, b"")

    def log(self, row: Row) -> None:
        """Log a row with the key `step`, which never decreases; NaN and infinity become null.

        Raises:
            OSError: the file cannot be written.
        """
        values = {name: _json_number(value) for name, value in row.items()}
        append_to_file(self._path, _line_of(values))
        known = {name: value for name, value in values.items() if value is not None}
        for tracker in list(self._trackers):
            self._attempt(tracker, partial(tracker.log, known))

    def close(self) -> None:
        """Finish the trackers. Safe to call twice."""
        for tracker in list(self._trackers):
            self._attempt(tracker, tracker.close)
        self._trackers.clear()

    def _attempt(self, tracker: Any, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:  # libraries raise many types
            self._trackers.remove(tracker)
            problem = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
            self._warn(f"{tracker.name} failed and is disabled; metrics.jsonl continues: {problem}")
            with suppress(Exception):  # the failure was reported already
                tracker.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read the rows of a `metrics.jsonl`; an incomplete last line, which a run may be writing, is left out.

    Raises:
        ValueError: the file is missing, or a line before the last is not a row; the message names the line.
    """
    try:
        lines = read_regular(path, _MOST_BYTES).splitlines()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            row = parse_json(line)
            if not isinstance(row, dict) or "step" not in row:
                raise ValueError("not a JSON object with the key 'step'")
        except ValueError as error:
            if number == len(lines):
                break
            raise ValueError(f"{path} line {number} is not a row of metrics: {error}") from error
        rows.append(row)
    return rows


def _line_of(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row, allow_nan=False).encode() + b"\n"


def _json_number(value: Any) -> Any:
    number = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(number, float) and not math.isfinite(number) else number


class TensorBoardLogger:
    """Writes TensorBoard's event files in the folder `tensorboard` of the run, flushed after every row.

    Metrics `eval/...` are logged at the step of the evaluated checkpoint, all others at the step of the row.
    When a run is resumed, TensorBoard drops the rows of later steps.

    Raises:
        OSError: the file cannot be written.
    """

    name = "TensorBoard"

    def __init__(self, run_dir: Path, config: TrainConfig, resume_step: int | None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = run_dir / TENSORBOARD
        make_folder(folder)
        self._writer: Any = SummaryWriter(str(folder), purge_step=None if resume_step is None else resume_step + 1)

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
        ValueError: wandb refuses to start.
        OSError: wandb's folder cannot be written.
    """

    name = "wandb"

    def __init__(self, run_dir: Path, config: TrainConfig, resume_step: int | None) -> None:
        import wandb  # imported here: wandb is optional, and slow to import

        chosen = config.logger
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
                project=os.environ.get("WANDB_PROJECT", "enn-ppo"),
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
