"""The package as a whole, in processes of its own: fresh imports, the wheel, and what is remembered of shapes."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.processes import output_of
from tests.test_package import FORBIDDEN, PACKAGES, ROOT

# Written so that this file does not match its own pattern.
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:work|home|root|Users|opt|tmp/\w+)/|\.\./" + "shared")


def project_files() -> list[Path]:
    """The files that git tracks or would track; all but caches and builds where there is no git."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    if listing.returncode == 0:
        return [path for name in listing.stdout.splitlines() if (path := ROOT / name).is_file()]
    skipped = {".venv", "build", "dist", "__pycache__"}
    return [path for path in ROOT.rglob("*") if path.is_file() and not skipped & set(path.parts)]


@pytest.mark.parametrize("package", FORBIDDEN)
def test_importing_a_lower_package_loads_nothing_from_above(package: str) -> None:
    # A fresh interpreter: what a test before this one imported must not count.
    program = f"import sys, {package}; print(*sorted({FORBIDDEN[package]!r} & set(sys.modules)))"
    assert output_of(program).split() == []


def test_no_file_names_the_place_where_it_was_written() -> None:
    found = []
    for file in project_files():
        name = file.relative_to(ROOT).as_posix()
        if name == ".ci/run" or name.startswith("tests/"):
            continue
        # Pictures and weights decode to noise that matches nothing.
        for number, line in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            if MACHINE_PATH.search(line):
                found.append(f"{name}:{number}: {line.strip()}")
    assert found == []


def test_a_wheel_holds_every_module_every_config_and_the_type_markers(tmp_path: Path) -> None:
    # From a copy: setuptools leaves a build folder behind, and would ship what an older one still holds.
    source = tmp_path / "source"
    expected = set()
    for file in project_files():
        name = file.relative_to(ROOT).as_posix()
        top = name.split("/")[0]
        if top not in {*PACKAGES, "pyproject.toml", "README.md", "LICENSE"}:
            continue
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read_bytes())
        if top in PACKAGES and (
            file.suffix in (".py", ".yaml", ".mjs")
            or file.name == "py.typed"
            or name.startswith("entity_gym/replay/page/")
        ):
            expected.add(name)

    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    done = subprocess.run([*build, "--wheel-dir", str(tmp_path), str(source)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("enn_ppo-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        shipped = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert {f"{package}/py.typed" for package in PACKAGES} <= shipped
    assert {"enn_ppo/configs/env/MineSweeper.yaml", "entity_gym/replay/page/replay.html"} <= shipped
    assert shipped == expected


SHAPES = """
import enn_ppo
import torch

for _ in range(2):
    for rows in range(1, {shapes} + 1):
        torch.nn.functional.gelu(torch.ones(rows, 8))
"""


@pytest.mark.parametrize(("shapes", "kept"), [(20, True), (200, False)])
def test_few_shapes_of_tensors_are_remembered(shapes: int, kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN keeps code for each shape; those of ragged batches are as many as there are batches."""
    monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", raising=False)
    said = output_of(SHAPES.format(shapes=shapes), ONEDNN_VERBOSE="2")
    if "create:" not in said:
        pytest.skip("torch computes GELU without oneDNN here")
    assert ("create:cache_hit" in said) == kept
