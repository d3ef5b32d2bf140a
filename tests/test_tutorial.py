"""The tutorial, executed as it is written: its file, its commands and its last program."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
TUTORIAL = (REPOSITORY / "docs" / "tutorial.md").read_text()
LONGEST = 60  # lines


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TUTORIAL, flags=re.DOTALL)


def test_the_world_takes_fewer_than_sixty_lines() -> None:
    assert len(blocks("python")[0].splitlines()) < LONGEST


@pytest.mark.slow
@pytest.mark.learning
def test_a_reader_who_follows_the_tutorial_gets_what_it_promises(tmp_path: Path) -> None:
    world, use = blocks("python")
    (tmp_path / "market.py").write_text(world)
    (tmp_path / "use.py").write_text(use)
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{REPOSITORY}", "OMP_WAIT_POLICY": "PASSIVE"}
    commands = [command.strip() for command in blocks("bash")] + ["python use.py"]
    assert len(commands) == 4
    for command in commands:
        program, *arguments = command.split()
        assert program == "python", command
        done = subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    score = json.loads((tmp_path / "score.json").read_text())
    assert score["episodic_reward"]["mean"] > 0.8
