"""The file `metrics.jsonl`, and trackers that receive the same rows. A row holds the metrics of one update."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from enn_ppo.training.files import append_to_file, replace_file
from entity_gym.untrusted import parse_json, read_regular

_MOST_BYTES = 2**31

__all__ = ["MetricsLogger", "Row", "read_metrics"]

Row = dict[str, float | int | None]  # None: no value in this update, such as the episodic reward if no episode ended


class MetricsLogger:
    """Appends rows to `metrics.jsonl`, one JSON object per line, and passes them to trackers.

    Rows are on disk when `log` returns. The file is opened for every row, so that a removed run directory is noticed. A tracker
    that fails is dropped with one warning and never ends a run.
    """

    def __init__(
        self,
        path: Path,
        resume_step: int | None = None,
        trackers: Mapping[str, Any] | None = None,
        warn: Callable[[str], None] = print,
    ) -> None:
        """Create the file, or truncate that of a resumed run.

        Args:
            path: the file; its directory exists.
            resume_step: step of the checkpoint that the run resumes from. Later rows, which the run will repeat, and an
                incomplete last line are removed. None: a new run.
            trackers: name for warnings -> an object with `log`, which receives the finite numbers of a row, and `close`.
            warn: prints a line.

        Raises:
            ValueError: the existing rows cannot be read.
            OSError: the file cannot be written.
        """
        self._path = Path(path)
        self._trackers = dict(trackers or {})
        self._warn = warn
        if resume_step is not None and self._path.exists():
            kept = [line + b"\n" for row, line in _rows(self._path) if row["step"] <= resume_step]
            replace_file(self._path, b"".join(kept))
        self._append(b"")

    def log(self, row: Row) -> None:
        """Log a row with the key `step`, which never decreases; NaN and infinity become null.

        Raises:
            OSError: the file cannot be written.
        """
        values = {name: _json_number(value) for name, value in row.items()}
        self._append(json.dumps(values, allow_nan=False).encode() + b"\n")
        known = {name: value for name, value in values.items() if value is not None}
        for name, tracker in list(self._trackers.items()):
            self._attempt(name, tracker.log, known)

    def close(self) -> None:
        """Finish the trackers. Safe to call twice."""
        for name, tracker in list(self._trackers.items()):
            self._attempt(name, tracker.close)
        self._trackers.clear()

    def _attempt(self, name: str, call: Callable[..., object], *arguments: object) -> None:
        try:
            call(*arguments)
        except Exception as error:  # libraries raise many types
            tracker = self._trackers.pop(name)
            problem = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
            self._warn(f"{name} failed and is disabled; metrics.jsonl continues: {problem}")
            with suppress(Exception):  # the failure was reported already
                tracker.close()

    def _append(self, line: bytes) -> None:
        try:
            append_to_file(self._path, line)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from error


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read the rows of a `metrics.jsonl`; an incomplete last line, which a run may be writing, is left out.

    Raises:
        ValueError: the file is missing, or a line before the last is not a row; the message names the line.
    """
    return [row for row, _ in _rows(Path(path))]


def _rows(path: Path) -> list[tuple[dict[str, Any], bytes]]:
    """Every row, and its line as bytes."""
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
        rows.append((row, line))
    return rows


def _json_number(value: Any) -> Any:
    number = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(number, float) and not math.isfinite(number) else number
