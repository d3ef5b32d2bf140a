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

#: What the CUDA build of a torch version requires on Linux with fixed versions (its wheel's metadata). The CPU build requires
#: none of them, so that a machine whose index serves the CPU build does not notice a pin that contradicts one.
CUDA_BUILD_REQUIRES = {
    "2.13.0": [
        "triton==3.7.1",
        "cuda-toolkit==13.0.3",
        "cuda-bindings>=13.0.3,<14",
        "nvidia-cudnn-cu13==9.20.0.48",
        "nvidia-cusparselt-cu13==0.8.1",
        "nvidia-nccl-cu13==2.29.7",
        "nvidia-nvshmem-cu13==3.4.5",
    ]
}


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


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


def test_no_pin_contradicts_what_the_cuda_build_of_torch_requires() -> None:
    pinned = pins()
    assert pinned["torch"] in CUDA_BUILD_REQUIRES, "write down what the CUDA build of the newly pinned torch requires"
    required = [Requirement(line) for line in CUDA_BUILD_REQUIRES[pinned["torch"]]]
    assert [str(need) for need in required if need.name in pinned and pinned[need.name] not in need.specifier] == []


def test_every_pin_is_allowed_by_the_ranges_of_pyproject() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *extras["dev"]]
    needs = [need for need in map(Requirement, lines) if need.name in pins()]
    assert len(needs) > 20
    assert [str(need) for need in needs if pins()[need.name] not in need.specifier] == []


@pytest.mark.slow
@pytest.mark.parametrize("version", PYTHONS)
def test_pip_finds_versions_that_satisfy_core_and_development_extras(version: str, tmp_path: Path) -> None:
    found = interpreters(version)
    if not found:
        pytest.skip(f"no Python {version} with pip on this machine")
    # From a copy: building the project's metadata leaves a folder beside its source.
    for name in ("entity_gym", "rogue_net", "enn_ppo", "configs"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    # With triton's version known, pip need not download the newest one before it finds that torch asks for another.
    (triton,) = [line for line in CUDA_BUILD_REQUIRES[pins()["torch"]] if line.startswith("triton==")]
    (tmp_path / "triton.txt").write_text(triton, encoding="utf-8")
    pip = [found[0], "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--retries", "1"]
    command = [*pip, "-c", str(ROOT / "constraints.txt"), "-c", str(tmp_path / "triton.txt"), f"{tmp_path}[dev]"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    except subprocess.TimeoutExpired:
        pytest.skip("pip did not finish in ten minutes: the package index answers too slowly")
    if done.returncode and re.search(r"NewConnectionError|ConnectTimeout|ReadTimeout|NameResolutionError", done.stderr):
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stderr
