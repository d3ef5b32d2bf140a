"""docs/bring_yours.md: what the view is worth."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from enn_ppo.training.tracking.logger import read_metrics

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.learning
def test_a_quarter_of_the_pages_steps_shows_what_the_view_is_worth(tmp_path: Path) -> None:
    pytest.importorskip("gymnasium")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    page = (ROOT / "docs" / "bring_yours.md").read_text("utf-8").replace("\\\n", " ")
    rewards = {}
    for line in re.findall(r"^python -m enn_ppo.train .*run_dir=.*$", page, re.MULTILINE):
        arguments = [*shlex.split(line)[1:], "total_timesteps=65536", "device=cpu"]
        subprocess.run([sys.executable, *arguments], cwd=tmp_path, check=True, timeout=600)
        folder = re.findall(r"run_dir=(\S+)", line)[0]
        last = read_metrics(tmp_path / folder / "metrics.jsonl")[-5:]
        rewards[folder] = sum(row["episodic_reward"] for row in last) / len(last)
    assert rewards["out/harvest/view-1"] > 0.8
    assert rewards["out/harvest/flat-1"] < 0.5
