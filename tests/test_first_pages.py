"""docs/install.md, docs/train.md, docs/index.md and docs/concepts.md: commands run, extras exist, drawings are whole."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DRAWINGS = sorted((ROOT / "docs" / "images" / "concepts").glob("*.svg"))


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text("utf-8")


def commands(text: str) -> list[list[str]]:
    lines = "".join(re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL)).splitlines()
    return [shlex.split(line, comments=True) for line in lines]


@pytest.mark.slow
def test_the_commands_of_the_training_page_run_one_after_the_other(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    small = ["total_timesteps=256", "rollout.num_envs=8", "rollout.steps=8", "optim.batch_size=64", "device=cpu"]
    shorter = {"episodes=200": "episodes=4", "episodes=100": "episodes=4"}

    def run(arguments: list[str]) -> None:
        typed = [sys.executable, *(shorter.get(argument, argument) for argument in arguments)]
        path = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(typed, cwd=tmp_path, env=path, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        assert done.returncode == 0, f"{arguments}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"

    ran = set()
    for python, *arguments in commands(page("train.md")):
        assert python == "python"
        program = arguments[1]
        if program == "enn_ppo.train" and "resume=" not in " ".join(arguments):
            run([*arguments, *small])
            run([argument.replace("out/a", "out/b") for argument in arguments] + small)
        elif program == "enn_ppo.play":
            run([*arguments, "--help"])  # it waits for keys
        else:
            run(arguments)
        ran.add(program)
    assert ran == {"enn_ppo.train", "enn_ppo.eval", "enn_ppo.play", "enn_ppo.plot"}
    assert (tmp_path / "out" / "a" / "episodes.gif").exists() and (tmp_path / "plot.html").exists()
    written = re.findall(r"^\| `([\w.]+/?)` \|", page("train.md"), re.MULTILINE)
    assert {"config.yaml", "metrics.jsonl", "learning_curve.png", "checkpoints/"} <= set(written)
    assert [name for name in written if "." in name and not (tmp_path / "out" / "a" / name).exists()] == []


def test_the_page_of_installation_has_every_extra_and_no_other() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    table = page("install.md").split("## Extras")[1].split("## CPU")[0]
    named = {
        name for row in re.findall(r"^\|([^|]*)\|", table, re.MULTILINE) for name in re.findall(r"`([\w-]+)`", row)
    }
    assert named == project["optional-dependencies"].keys()
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    made = {words[1] for text in ("install.md", "index.md") for words in commands(page(text)) if words[0] == "make"}
    assert len(made) >= 2 and made <= targets


@pytest.mark.parametrize("drawing", DRAWINGS, ids=lambda drawing: drawing.stem)
def test_a_drawing_has_a_description_both_colour_schemes_and_stands_on_the_page(drawing: Path) -> None:
    text = drawing.read_text("utf-8")
    root = ElementTree.fromstring(text)
    space = "{http://www.w3.org/2000/svg}"
    for part in ("title", "desc"):
        assert (root.findtext(f"{space}{part}") or "").strip()
    light, dark = (dict(re.findall(r"(--\w+):(#\w+)", block)) for block in re.findall(r"svg\{(--[^}]*)\}", text))
    assert light.keys() == dark.keys() and not set(light.values()) & set(dark.values()) - {"#fff"}
    assert f"images/concepts/{drawing.name}" in page("concepts.md")


def test_there_is_a_drawing_for_each_of_the_five_concepts() -> None:
    assert len(DRAWINGS) == len(re.findall(r"^## ", page("concepts.md"), re.MULTILINE)) == 5
