"""Where the rows of metrics go: `metrics.jsonl` always, wandb if asked. A row holds the numbers of one update."""

from __future__ import annotations

import difflib
import json
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import numpy as np

__all__ = [
    "CompositeLogger",
    "JsonlLogger",
    "MetricsLogger",
    "NullLogger",
    "Row",
    "WandbLogger",
    "make_loggers",
    "read_metrics",
]

Row = Mapping[str, float | int | None]  # None: not known in this update, for example the mean of no episodes

WANDB_MODES = ("disabled", "offline", "online")


class MetricsLogger(Protocol):
    """Takes one row per update."""

    def log(self, row: Row) -> None:
        """Take a row; it has the key `step`, which grows from row to row."""

    def close(self) -> None:
        """Finish writing. Safe to call twice."""


class NullLogger:
    """Takes every row and forgets it."""

    def log(self, row: Row) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class CompositeLogger:
    """Passes every row to several loggers, in their order."""

    def __init__(self, loggers: Sequence[MetricsLogger]) -> None:
        """Take the loggers in the order in which they get their rows."""
        self._loggers = list(loggers)

    def log(self, row: Row) -> None:
        """Pass the row on."""
        for logger in self._loggers:
            logger.log(row)

    def close(self) -> None:
        """Close all of them, also where one fails."""
        with ExitStack() as stack:
            for logger in reversed(self._loggers):
                stack.callback(logger.close)


class JsonlLogger:
    """Appends one JSON object per row to a file. A row is on its way to the disk, whole, when `log` returns."""

    def __init__(self, path: Path, resume_step: int | None) -> None:
        """Open the file.

        Args:
            path: the file; its directory exists.
            resume_step: environment steps of the checkpoint that the run continues from: later rows, which the run is
                about to repeat, and a last line that was cut short are removed first. None for a new run.

        Raises:
            ValueError: the rows that are there cannot be read.
        """
        self._path = Path(path)
        if resume_step is not None and self._path.exists():
            _drop_rows_after(self._path, resume_step)
        self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115 - closed by close()

    def log(self, row: Row) -> None:
        """Append the row; NaN and infinity become null."""
        values = {name: _json_number(value) for name, value in row.items()}
        data = memoryview(json.dumps(values, allow_nan=False).encode() + b"\n")
        try:
            while data:  # normally once: a write is cut short only where the disk is full
                data = data[self._file.write(data) :]
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class WandbLogger:
    """Sends rows to Weights & Biases, or keeps them for `wandb sync`."""

    def __init__(self, mode: str, project: str, run_dir: Path, config: Mapping[str, Any]) -> None:
        """Start a wandb run.

        Args:
            mode: "offline" needs no account and no network; "online".
            project: wandb's project.
            run_dir: wandb's files go to its folder `wandb`.
            config: shown with the run.

        Raises:
            ValueError: wandb is not installed, or refuses to start.
        """
        try:
            import wandb  # here, because it is optional and slow to import
        except ImportError as error:
            raise ValueError(
                f'logger.wandb={mode} needs wandb, which is not installed: pip install "enn-ppo[wandb]", '
                "or logger.wandb=disabled"
            ) from error
        # its capture of the console would fight with the live progress line
        settings = wandb.Settings(console="off", silent=True)
        try:
            self._run = wandb.init(
                mode="online" if mode == "online" else "offline",
                project=project,
                dir=str(run_dir),
                config=dict(config),
                settings=settings,
            )
        except wandb.Error as error:
            raise ValueError(
                f"logger.wandb={mode} could not start: {error}. "
                "`wandb login` sets up an account; logger.wandb=offline needs none"
            ) from error

    def log(self, row: Row) -> None:
        """Send what is known of the row."""
        known = {name: value for name, value in row.items() if _json_number(value) is not None}
        self._run.log(known, step=int(known["step"] or 0))

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


def make_loggers(
    metrics_path: Path,
    *,
    resume_step: int | None,
    wandb: str,
    project: str,
    config: Mapping[str, Any],
) -> MetricsLogger:
    """Make the one logger that the trainer talks to.

    Args:
        metrics_path: `metrics.jsonl` in the run directory, which exists.
        resume_step: see `JsonlLogger`.
        wandb: "disabled", "offline" or "online".
        project: wandb's project.
        config: the resolved configuration, for wandb.

    Raises:
        ValueError: `wandb` is none of these, or wandb cannot be used.
    """
    if wandb not in WANDB_MODES:
        near = difflib.get_close_matches(str(wandb), WANDB_MODES, n=1)
        raise ValueError(
            f"logger.wandb is {wandb!r}; allowed: {', '.join(WANDB_MODES)}"
            + (f"; did you mean {near[0]!r}?" if near else "")
        )
    tracker = NullLogger() if wandb == "disabled" else WandbLogger(wandb, project, metrics_path.parent, config)
    return CompositeLogger([JsonlLogger(metrics_path, resume_step), tracker])


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read the rows of a `metrics.jsonl`, also while a run is writing it: a last line cut short is left out.

    Raises:
        ValueError: the file is missing, or a line before the last is not a row; names the line.
    """
    return [row for row, _ in _rows(Path(path))]


def _rows(path: Path) -> list[tuple[dict[str, Any], bytes]]:
    """Return every row with the bytes of its line."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            if not isinstance(row, dict) or "step" not in row:
                raise ValueError("not a JSON object with the key 'step'")
        except ValueError as error:
            if number == len(lines):
                break
            raise ValueError(f"{path} line {number} is not a row of metrics: {error}") from error
        rows.append((row, line))
    return rows


def _drop_rows_after(path: Path, step: int) -> None:
    kept = b"".join(line + b"\n" for row, line in _rows(path) if row["step"] <= step)
    aside = path.with_name(f".{path.name}.aside")
    with open(aside, "wb") as file:
        file.write(kept)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)


def _json_number(value: Any) -> Any:
    number = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(number, float) and not math.isfinite(number) else number
