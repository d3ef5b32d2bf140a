"""The README's Python runs as written, it is short, and docs/overview.md names every world and file."""

import os
import re
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

from entity_gym.registry import list_envs, look_up

README = Path(__file__).parents[1] / "README.md"
OVERVIEW = README.parent / "docs" / "overview.md"
PACKAGES = ("entity_gym", "rogue_net", "enn_ppo")


def python_blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)


def test_the_environment_of_the_readme_is_learned_by_the_program_of_the_readme(tmp_path: Path) -> None:
    environment, program = python_blocks()
    assert len(environment.splitlines()) <= 45
    (tmp_path / "gold.py").write_text(environment)
    shorter = program.replace("total_timesteps=100_000", "total_timesteps=30_000, seed=2")
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


def test_the_readme_is_read_in_a_few_minutes_and_its_links_lead_somewhere() -> None:
    text = README.read_text()
    assert len(text.split()) <= 900
    for page in (README, *sorted(OVERVIEW.parent.glob("*.md"))):
        for link in re.findall(r"\]\(([^)#: ]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_the_table_of_worlds_has_every_name_and_the_score_at_which_it_is_solved() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \|.*\| ([\d.]*) ?\|$", OVERVIEW.read_text(), flags=re.MULTILINE)
    solved = {name: float(score) if score else None for name, score in rows if name in list_envs()}
    assert solved == {name: look_up(name).load().reward_threshold for name in list_envs()}


def test_the_file_tree_has_a_line_for_every_module_and_no_others() -> None:
    tree = OVERVIEW.read_text().split("## File tree")[1].split("```")[1]
    folder, named = "", dict[str, set[str]]()
    for line in tree.strip().splitlines():
        name = line.split()[0]
        if line.startswith(" "):
            named[folder].add(name)
        else:
            folder = name.rstrip("/")
            named[folder] = set()
            assert (README.parent / folder).is_dir()
    for package in PACKAGES:
        path = README.parent / package
        folders = {f"{child.name}/" for child in path.iterdir() if child.is_dir() and child.name != "__pycache__"}
        files = {child.name for child in path.glob("*.py") if child.name != "__init__.py"}
        patterns = named[package]
        assert {name for name in files | folders if not any(fnmatch(name, pattern) for pattern in patterns)} == set()
        assert {pattern for pattern in patterns if not any(fnmatch(name, pattern) for name in files | folders)} == set()
