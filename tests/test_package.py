"""The package as a whole: imports go only downwards, and what is installed is what the checkout holds."""

import ast
import os
import re
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

import enn_ppo
from enn_ppo.__main__ import COMMANDS, main

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("entity_gym", "rogue_net", "enn_ppo")
FORBIDDEN = {
    "entity_gym": {"rogue_net", "enn_ppo", "torch", "hydra", "omegaconf", "wandb"},
    "rogue_net": {"enn_ppo", "hydra", "omegaconf", "wandb"},
}
# Written so that this file does not match its own pattern.
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:work|home|root|Users|opt|tmp/\w+)/|\.\./" + "shared")


def imported_roots(source: str) -> set[str]:
    """First names of everything imported anywhere in a file: at its top, in functions, and for type checkers only."""
    roots = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            roots |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            roots.add(node.module.split(".")[0])
    return roots


def project_files() -> list[Path]:
    """The files that git tracks or would track; all but caches and builds where there is no git."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    if listing.returncode == 0:
        return [path for name in listing.stdout.splitlines() if (path := ROOT / name).is_file()]
    skipped = {".venv", "build", "dist", "__pycache__"}
    return [path for path in ROOT.rglob("*") if path.is_file() and not skipped & set(path.parts)]


def test_the_import_check_sees_every_form_of_import() -> None:
    source = "import a.b\nfrom c.d import e\nfrom . import f\ndef g():\n    import h as i\n"
    assert imported_roots(source) == {"a", "c", "h"}


@pytest.mark.parametrize("package", FORBIDDEN)
def test_imports_go_only_downwards(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files, f"{package} holds no Python files"
    upward = {
        f"{file.relative_to(ROOT)} imports {name}"
        for file in files
        for name in imported_roots(file.read_text(encoding="utf-8")) & FORBIDDEN[package]
    }
    assert not upward


@pytest.mark.parametrize("package", FORBIDDEN)
def test_importing_a_lower_package_loads_nothing_from_above(package: str) -> None:
    # A fresh interpreter: what a test before this one imported must not count.
    program = f"import sys, {package}; print(*sorted({FORBIDDEN[package]!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def imported_modules(file: Path, modules: set[str]) -> set[str]:
    """The modules among `modules` that a file imports, at its top or late, but for those that only type checkers see."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = []
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names & modules or {node.module}
    return found & modules


@pytest.mark.parametrize("package", ["entity_gym", "enn_ppo"])
def test_no_module_imports_itself_over_others(package: str) -> None:
    files = {}
    for file in (ROOT / package).rglob("*.py"):
        name = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        files[name] = file
    imports = {name: imported_modules(file, set(files)) for name, file in files.items()}
    assert sum(map(len, imports.values())) > 100
    # A module whose imports are all gone is in no circle; whoever is left at the end is.
    left = dict(imports)
    while free := [name for name, needed in left.items() if not (needed - {name}) & left.keys()]:
        for name in free:
            del left[name]
    assert sorted(left) == []


def test_constraints_are_exact_versions_of_packages_and_nothing_else() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert "torch==2.13.0" in pins
    assert [pin for pin in pins if not re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*( ; [^;]+)?", pin)] == []


@pytest.mark.parametrize(
    ("typed", "code", "said"),
    [
        ([], 0, "  train   train a policy\n"),
        (["--help"], 0, "  export  write a checkpoint's policy into one file\n"),
        (["--version"], 0, f"{enn_ppo.__version__}\n"),
        (["trian", "env=Xor"], 2, "error: enn-ppo has no command 'trian'; allowed: 'train', 'eval', "),
        (["trian"], 2, "'check'; did you mean 'train'?\n"),
    ],
)
def test_the_command_lists_its_commands(
    typed: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(typed) == code
    assert said in "".join(capsys.readouterr())


def test_the_version_is_said_once() -> None:
    assert version("enn-ppo") == enn_ppo.__version__
    assert f"version: {enn_ppo.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_runs_its_module(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["enn-ppo", "given before"])
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert not ended.value.code
    assert COMMANDS[name][0] in capsys.readouterr().out


@pytest.mark.parametrize("file", sorted((ROOT / ".github/workflows").glob("*.yml")), ids=lambda file: file.stem)
def test_a_workflow_runs_targets_that_the_makefile_has(file: Path) -> None:
    workflow = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert set(workflow) - {True} == {"name", "jobs", "permissions"} and workflow[True]  # YAML reads `on` as True
    commands = [step["run"] for job in workflow["jobs"].values() for step in job.get("steps", []) if "run" in step]
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    assert set(re.findall(r"\bmake (?:\w+=\S+ )*([a-z-]+)", "\n".join(commands))) <= targets


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


@pytest.mark.slow
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
            file.suffix in (".py", ".yaml") or file.name == "py.typed" or name.startswith("entity_gym/replay/page/")
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
def test_few_shapes_of_tensors_are_remembered(shapes: int, kept: bool) -> None:
    """oneDNN keeps code for each shape; those of ragged batches are as many as there are batches."""
    environment = {name: value for name, value in os.environ.items() if name != "ONEDNN_PRIMITIVE_CACHE_CAPACITY"}
    program = [sys.executable, "-c", SHAPES.format(shapes=shapes)]
    done = subprocess.run(program, env=environment | {"ONEDNN_VERBOSE": "2"}, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    if "create:" not in done.stdout:
        pytest.skip("torch computes GELU without oneDNN here")
    assert ("create:cache_hit" in done.stdout) == kept
