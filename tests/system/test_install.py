"""The pins of constraints.txt go together, on every Python and with either build of torch."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.partition(" ;")[0].split("==") for line in lines if line and not line.startswith("#"))


def interpreters(version: str) -> list[str]:
    """Interpreters of a Python version on PATH and among pyenv's that run and have pip."""
    candidates = [shutil.which(f"python{version}")]
    if pyenv := shutil.which("pyenv"):
        root = subprocess.run([pyenv, "root"], capture_output=True, text=True).stdout.strip()
        candidates += sorted(str(path) for path in Path(root).glob(f"versions/{version}.*/bin/python"))
    working = []
    for python in candidates:
        # pyenv puts a command on PATH for every version; it fails where that version is not activated.
        if python and subprocess.run([python, "-m", "pip", "--version"], capture_output=True).returncode == 0:
            working.append(python)
    return working


def test_every_pin_is_allowed_by_the_ranges_of_pyproject() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project, groups = settings["project"], settings["dependency-groups"]
    lines = [*project["dependencies"], *sum(project["optional-dependencies"].values(), [])]
    lines += [line for group in groups.values() for line in group if isinstance(line, str)]
    needs = [need for need in map(Requirement, lines) if need.name != "enn-ppo"]
    assert [str(need) for need in needs if pins()[need.name] not in need.specifier] == []


@pytest.mark.slow
@pytest.mark.parametrize("version", PYTHONS)
def test_pip_finds_versions_that_satisfy_the_package_and_its_extras(version: str, tmp_path: Path) -> None:
    found = interpreters(version)
    if not found:
        pytest.skip(f"no Python {version} with pip on this machine")
    # From a copy: building the project's metadata leaves a folder beside its source.
    for name in ("entity_gym", "rogue_net", "enn_ppo"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    pip = [found[0], "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--retries", "1"]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    names = ",".join(sorted(set(extras) - {"worlds"}))
    command = [*pip, "-c", str(ROOT / "constraints.txt"), f"{tmp_path}[{names}]"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    except subprocess.TimeoutExpired:
        pytest.skip("pip did not finish in ten minutes: the package index answers too slowly")
    if done.returncode and re.search(r"NewConnectionError|ConnectTimeout|ReadTimeout|NameResolutionError", done.stderr):
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stderr
