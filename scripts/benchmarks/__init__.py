"""Helpers of all benchmarks of `bench.py`: measurements, printed as a table and written as JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple


class Measurement(NamedTuple):
    """A measured number."""

    name: str
    value: float
    unit: str
    settings: dict[str, Any]


def parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with the option `--json`."""
    arguments = argparse.ArgumentParser(description=description)
    arguments.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers to FILE")
    return arguments


def report(measurements: Sequence[Measurement], json_file: Path | None) -> None:
    """Print the measurements, and write them to `json_file` if it is given."""
    width = max(len(measurement.name) for measurement in measurements)
    for name, value, unit, settings in measurements:
        shown = ", ".join(f"{key}={setting}" for key, setting in settings.items())
        print(f"{name:<{width}}  {value:>12,.3f} {unit:<12} {shown}")
    if json_file:
        json_file.write_text(json.dumps([measurement._asdict() for measurement in measurements], indent=2) + "\n")
