"""docs/agents.md, executed as it is written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "agents.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.mark.slow
def test_a_reader_who_follows_the_page_gets_an_agent(tmp_path: Path) -> None:
    game, use = blocks("python")
    (tmp_path / "robots.py").write_text(game)
    # "plays for ever": some decisions must do here
    use = use.replace(
        "main(agent, None, seed=3)", "obs = Obs(Move, score=0, entities=[Battery(1, True)], actors=[Robot(0)])\n"
    )
    (tmp_path / "use.py").write_text(
        f"from robots import *\n{use}\nprint(agent.act(obs), agent.decide(obs).probabilities.shape)"
    )
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "OMP_WAIT_POLICY": "PASSIVE"}
    commands = [line.split() for line in blocks("bash")[0].splitlines()] + [["python", "use.py"]]
    assert [command[0] for command in commands] == ["python"] * 3
    for command in commands:
        arguments = [
            argument.replace("=100000", "=2048") for argument in command[1:]
        ]  # the command, and not the learning
        done = subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert re.fullmatch(r"Move\.(LEFT|RIGHT) \(1, 2\)\n", done.stdout)
