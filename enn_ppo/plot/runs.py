"""Runs to compare: their metrics, their settings, and which of them differ only in the seed."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from enn_ppo.settings.schema import flatten
from enn_ppo.training.tracking.logger import read_metrics
from enn_ppo.training.tracking.run_dir import CONFIG, METRICS
from entity_gym.untrusted import YAML_BYTES, open_regular, parse_yaml, read_regular

#: Settings that do not affect learning.
_IGNORED = r"(seed|run_dir|resume|overwrite|trust|record|logger\..*)"


@dataclass(frozen=True)
class Run:
    """Metrics and settings of a run."""

    path: Path
    rows: list[dict[str, Any]]  # of metrics.jsonl
    #: Dotted name -> value as text, of settings that affect learning; empty without a config.yaml.
    settings: dict[str, str]
    seed: str = ""  # as text; empty without a config.yaml


def read_run(path: Path) -> Run:
    """Read the metrics and settings of a run directory, or of the folder of a file of metrics.

    Raises:
        ValueError: there is no such run; the message names runs inside the folder.
    """
    file = path / METRICS if path.is_dir() else path
    if not file.exists() and path.is_dir():
        inside = " ".join(sorted(str(each.parent) for each in path.glob(f"*/{METRICS}")))
        hint = f"; the runs inside are {inside}" if inside else ""
        raise ValueError(f"{path} is no run directory: it holds no {METRICS}{hint}")
    if not file.exists():
        raise ValueError(f"there is no {path}")
    rows = read_metrics(file)
    if not rows:
        with open_regular(file) as content:
            begin = content.read(1)
        if begin not in (b"", b"{"):  # a row may be half written
            raise ValueError(f"{file} is not that of a run: its lines are no rows of metrics")
        raise ValueError(f"{file} has no rows yet")
    if not all(type(row["step"]) in (int, float) and math.isfinite(row["step"]) for row in rows):
        raise ValueError(f"{file} is not that of a run: not every row has a number as its step")
    config, settings = file.with_name(CONFIG), {}
    if config.exists():
        try:
            settings = parse_yaml(read_regular(config, YAML_BYTES))
        except (OSError, ValueError) as error:
            raise ValueError(f"{config} cannot be read: {error}") from error
    flat = flatten(settings) if isinstance(settings, Mapping) else {}
    affecting = {name: str(flat[name]) for name in flat if not re.fullmatch(_IGNORED, name)}
    return Run(file.parent, rows, affecting, str(flat.get("seed", "")))


def differing_settings(runs: Sequence[Run]) -> list[str]:
    """Names of the settings in which these runs differ, without runs whose settings are unknown.

    Runs without any setting of the run that has most of them are runs of another program, and do not count.
    """
    most = max((run.settings for run in runs), key=len, default={})
    known = [run.settings for run in runs if run.settings.keys() & most.keys()]
    names = dict.fromkeys(name for settings in known for name in settings)
    return [name for name in names if len({settings.get(name) for settings in known}) > 1]


def group_runs(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Group runs with the same settings, in the given order.

    Returns:
        Label -> runs. The label names the settings that differ between groups, or the run's path if these are unknown or more
        than three.
    """
    groups: dict[object, list[Run]] = {}
    for run in runs:
        groups.setdefault(frozenset(run.settings.items()) or len(groups), []).append(run)
    differing = differing_settings(runs)
    if "env.id" in differing:  # the environments' arguments then differ as well
        differing = [name for name in differing if not name.startswith("env.kwargs")]
    labelled: dict[str, list[Run]] = {}
    for members in groups.values():
        first = members[0]
        label = ", ".join(f"{name}={first.settings.get(name)}" for name in differing) or first.settings.get("env.id")
        if not first.settings.keys() & {*differing, "env.id"} or not label or len(differing) > 3:
            label = str(first.path)
        if label in labelled:  # only the environments' arguments differ, or a run was given twice
            label = f"{label} ({first.path})"
        labelled[label] = members
    return labelled
