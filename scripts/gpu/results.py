"""The results of the sections: one JSON file, rewritten atomically while sections run, so that a kill loses almost nothing."""

from __future__ import annotations

import json
import math
import os
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

WRITE_EVERY = 0.5  # seconds
TRACEBACK_LINES = 12


class Results:
    """The JSON file: `{"settings": {...}, "sections": {name: {...}}}`.

    Args:
        path: of the file; existing contents are kept.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.content: dict[str, Any] = {"settings": {}, "sections": {}}
        if path.exists():
            self.content = json.loads(path.read_text())

    def known(self, name: str) -> Mapping[str, Any]:
        """The results of a section, read-only; empty if it has not run."""
        found: Mapping[str, Any] = self.content["sections"].get(name, {})
        return found

    def section(self, name: str) -> dict[str, Any]:
        """The results of a section, which may be added to."""
        found: dict[str, Any] = self.content["sections"].setdefault(name, {})
        return found

    def write(self) -> None:
        """Replace the file atomically. NaN and infinities, which JSON does not have, become null."""
        aside = self.path.with_suffix(".aside")
        aside.write_text(json.dumps(finite(self.content), indent=1, allow_nan=False) + "\n")
        os.replace(aside, self.path)


class Section:
    """A running section.

    Args:
        name: of the section.
        results: file for its results.
        device: the measured device.
        tiny: smoke test with the smallest sizes.
        seconds: time limit.
    """

    def __init__(self, name: str, results: Results, device: torch.device, *, tiny: bool, seconds: float) -> None:
        self.device, self.tiny, self.results = device, tiny, results
        self.found = results.section(name)
        self.found.clear()
        self.found["status"] = "began"
        self._deadline = time.monotonic() + seconds
        self._written = 0.0
        self._write(at_once=True)

    @property
    def seconds_left(self) -> float:
        """Seconds until the time limit; negative after it."""
        return self._deadline - time.monotonic()

    def put(self, **values: Any) -> None:
        """Write single values."""
        self.found.update(values)
        self._write()

    def add(self, table: str, row: Mapping[str, Any]) -> None:
        """Write a row of a table."""
        self.found.setdefault(table, []).append(dict(row))
        self._write()

    def measured(
        self, table: str, settings: Mapping[str, Any], measure: Callable[[], Mapping[str, Any]]
    ) -> dict[str, Any] | None:
        """Add a row of settings and the result of `measure`. Exceptions, or a lack of time, are added to `not_measured`.

        Returns:
            The row; None if it was not measured.
        """
        if self.seconds_left <= 0:
            out_of_time = self.found.setdefault("out_of_time", {})
            out_of_time[table] = out_of_time.get(table, 0) + 1
            self._write()
            return None
        try:
            row = {**settings, **measure()}
        except Exception as error:  # noqa: BLE001 - other rows must still be measured
            self.add("not_measured", {"table": table, **settings, "reason": reason(error)})
            return None
        finally:
            forget_memory(self.device)
        self.add(table, row)
        return row

    def run(self, measure: Callable[[Section], None]) -> None:
        """Run `measure`, and write its exceptions to the file."""
        started = time.monotonic()
        try:
            measure(self)
            self.found["status"] = "done"
        except Exception:  # noqa: BLE001 - other sections must still run
            self.found["status"] = "failed"
            self.found["traceback"] = traceback.format_exc().splitlines()[-TRACEBACK_LINES:]
        finally:
            self.found["seconds"] = round(time.monotonic() - started, 1)
            self._write(at_once=True)

    def _write(self, *, at_once: bool = False) -> None:
        if at_once or time.monotonic() - self._written > WRITE_EVERY:
            self.results.write()
            self._written = time.monotonic()


def reason(error: BaseException) -> str:
    """An error on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]


def forget_memory(device: torch.device) -> None:
    """Release torch's cached device memory before the next measurement."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def finite(value: Any) -> Any:
    """Convert NumPy numbers to plain numbers, and NaN and infinities to None."""
    if isinstance(value, Mapping):
        return {str(key): finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    if value is None or isinstance(value, bool | str | int):
        return value
    number = float(value)
    return number if math.isfinite(number) else None
