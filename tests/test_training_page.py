"""docs/training.md: its Python runs, and its commands are commands."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "training.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


def commands() -> list[list[str]]:
    lines = "".join(blocks("sh")).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True) for line in lines if line.startswith("python -m enn_ppo.train ")]


def test_the_callback_of_the_page_trains(tmp_path: Path) -> None:
    program, _ = blocks("python")
    shorter = program.replace("TrainConfig()", "TrainConfig(total_timesteps=8192)")
    assert shorter != program
    done = subprocess.run([sys.executable, "-c", shorter], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_the_program_of_the_page_trains_evaluates_and_asks_the_policy(tmp_path: Path) -> None:
    _, program = blocks("python")
    shorter = program.replace("100_000", "8_192")
    assert shorter != program
    done = subprocess.run([sys.executable, "-c", shorter], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "episodic_reward: " in done.stdout


@pytest.mark.parametrize(
    "command", [c for c in commands() if not any(a.startswith("resume=") for a in c)], ids=" ".join
)
def test_the_settings_of_every_training_command_compose(command: list[str]) -> None:
    _, *arguments = command
    shown = [sys.executable, *(a for a in arguments if a not in ("--cfg", "job")), "--cfg", "job"]
    if "--multirun" in shown:
        shown = [a for a in shown if a != "--multirun" and "," not in a and not a.startswith("jobs=")]
    done = subprocess.run(shown, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "total_timesteps:" in done.stdout
