"""docs/when_it_does_not_learn.md: its commands show each symptom, and what mends it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from enn_ppo.training.tracking.logger import read_metrics

ROOT = Path(__file__).parents[2]
Rows = Sequence[dict[str, Any]]


def mean(rows: Rows, name: str, begin: float = 0.0, end: float = 1.0) -> float:
    """The mean of a metric over a part of a run's rows, which by default is the run."""
    part = rows[round(begin * len(rows)) : round(end * len(rows))]
    known = [row[name] for row in part if row.get(name) is not None]
    return sum(known) / len(known)


def last(rows: Rows, name: str = "episodic_reward") -> float:
    return mean(rows, name, 0.9)


SYMPTOMS: dict[str, Callable[[Rows, Rows], bool]] = {  # by the picture: what the runs before and after a change have
    "value_loss": lambda bad, good: max(row["value_loss"] for row in bad) > 300 and last(bad) < 400 < last(good),
    "unseen": lambda bad, good: mean(bad, "explained_variance") < 0.1 and last(bad) < 0.3 and last(good) > 0.95,
    "certain": lambda bad, good: (
        mean(bad, "entropy", 0.2, 0.3) < 0.6 * mean(good, "entropy", 0.2, 0.3) and last(good) > last(bad) + 0.05
    ),
    "random": lambda bad, good: last(bad, "entropy") > 1.3 and last(good) > last(bad) + 0.2,
    "shaking": lambda bad, good: mean(bad, "approx_kl", 0, 0.1) > 1 and mean(good, "episodic_reward", 0.4) > 450,
    "still": lambda bad, good: mean(bad, "approx_kl") < 1e-6 and last(bad) < 0.2 and last(good) > 0.85,
    "waiting": lambda bad, good: (
        last(bad, "episodes_truncated") > 0.8 * last(bad, "episodes") and last(bad) < 0.2 and last(good) > 0.85
    ),
    "loops": lambda bad, good: last(bad, "eval/episodic_reward") + 0.3 < last(good, "eval/episodic_reward"),
}


@pytest.mark.slow
@pytest.mark.learning
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("picture", SYMPTOMS)
def test_the_commands_of_a_picture_show_the_symptom_and_what_mends_it(picture: str, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "when_it_does_not_learn.md").read_text("utf-8").replace("\\\n", "")
    found = re.findall(rf"^python -m enn_ppo.train .*run_dir=out/{picture}/.*$", page, re.MULTILINE)
    said = []
    for line in found:
        done = subprocess.run(
            [sys.executable, *shlex.split(line)[1:], "device=cpu"],
            cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True, capture_output=True, text=True,
        )  # fmt: skip
        said.append("when_it_does_not_learn" in done.stdout + done.stderr)
    bad, good = (read_metrics(tmp_path / re.findall(r"run_dir=(\S+)", line)[0] / "metrics.jsonl") for line in found)
    assert SYMPTOMS[picture](bad, good)
    assert said == [picture in ("still", "value_loss"), False], "a warning leads to the page"
