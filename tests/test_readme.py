"""The README's Python runs as written."""

import os
import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def python_blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)


def test_the_environment_of_the_readme_is_learned_by_the_program_of_the_readme(tmp_path: Path) -> None:
    program, environment = python_blocks()
    assert len(environment.splitlines()) <= 45
    (tmp_path / "gold.py").write_text(environment)
    shorter = program.replace("total_timesteps=100_000", "total_timesteps=30_000")
    assert shorter != program
    learned = "\nfinal = result.metrics['episodic_reward']\nassert final > 2.5, final  # of 3; a random walk finds about 1.5\n"
    path = os.pathsep.join([str(README.parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", shorter + learned],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "episodic_reward: " in done.stdout
