"""Loggers of metrics: `metrics.jsonl` always, trackers if they are set. A row holds the metrics of one update."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from enn_ppo.files import replace_file

__all__ = [
    "CompositeLogger",
    "Droppable",
    "JsonlLogger",
    "MetricsLogger",
    "Row",
    "known",
    "read_metrics",
]

Row = Mapping[str, float | int | None]  # None: no value in this update, such as the mean reward if no episode ended


class MetricsLogger(Protocol):
    """Takes one row per update, and rows of evaluations that end between or after them."""

    def log(self, row: Row) -> None:
        """Log a row. It has the key `step`, which never decreases from row to row."""

    def close(self) -> None:
        """Finish writing. Safe to call twice."""


class CompositeLogger:
    """Passes every row to several loggers, in their order."""

    def __init__(self, loggers: Sequence[MetricsLogger]) -> None:
        """Log to these loggers, in this order."""
        self._loggers = list(loggers)

    def log(self, row: Row) -> None:
        """Pass the row on."""
        for logger in self._loggers:
            logger.log(row)

    def close(self) -> None:
        """Close all of them, even if one fails."""
        with ExitStack() as stack:
            for logger in reversed(self._loggers):
                stack.callback(logger.close)


class Droppable:
    """Passes rows to a logger until it fails; then warns once and drops it, so that a tracker never ends a run.

    Args:
        name: of the logger, for the warning.
        logger: gets the rows.
        warn: prints a line.
    """

    def __init__(self, name: str, logger: MetricsLogger, warn: Callable[[str], None]) -> None:
        self._name = name
        self._logger: MetricsLogger | None = logger
        self._warn = warn

    def log(self, row: Row) -> None:
        """Pass the row on, if the logger still works."""
        if self._logger is None:
            return
        try:
            self._logger.log(row)
        except Exception as error:  # libraries raise many types
            self._drop(error)

    def close(self) -> None:
        """Close the logger, if it still works."""
        if self._logger is None:
            return
        try:
            self._logger.close()
        except Exception as error:
            self._drop(error)

    def _drop(self, error: Exception) -> None:
        logger, self._logger = self._logger, None
        self._warn(f"{self._name} failed and gets no more metrics, metrics.jsonl does: {_describe(error)}")
        try:
            if logger is not None:
                logger.close()
        except Exception:
            pass  # it has failed before, and there was a warning


class JsonlLogger:
    """Appends one JSON object per row to a file. The row has been written when `log` returns.

    The file is opened for every row, so that a removed run directory is noticed.
    """

    def __init__(self, path: Path, resume_step: int | None) -> None:
        """Create the file, or truncate that of a resumed run.

        Args:
            path: the file; its directory exists.
            resume_step: step of the checkpoint that the run resumes from. Later rows, which the run will repeat, and an
                incomplete last line are removed. None: a new run.

        Raises:
            ValueError: the existing rows cannot be read.
        """
        self._path = Path(path)
        if resume_step is not None and self._path.exists():
            _drop_rows_after(self._path, resume_step)
        self._append(b"")

    def log(self, row: Row) -> None:
        """Append the row; NaN and infinity become null.

        Raises:
            OSError: the file cannot be written.
        """
        values = {name: _json_number(value) for name, value in row.items()}
        self._append(json.dumps(values, allow_nan=False).encode() + b"\n")

    def close(self) -> None:
        """Do nothing: no file is open."""

    def _append(self, line: bytes) -> None:
        data = memoryview(line)
        try:
            with open(self._path, "ab", buffering=0) as file:
                while data:  # a write is incomplete only if the disk is full
                    data = data[file.write(data) :]
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from error


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read the rows of a `metrics.jsonl`, which a run may be writing: an incomplete last line is left out.

    Raises:
        ValueError: the file is missing, or a line before the last is not a row; names the line.
    """
    return [row for row, _ in _rows(Path(path))]


def known(row: Row) -> dict[str, float | int]:
    """The finite numbers of a row, which trackers get."""
    numbers = {name: _json_number(value) for name, value in row.items()}
    return {name: number for name, number in numbers.items() if number is not None}


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
    replace_file(path, kept)


def _json_number(value: Any) -> Any:
    number = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(number, float) and not math.isfinite(number) else number


def _describe(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
