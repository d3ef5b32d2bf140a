"""The package as a whole: imports go only downwards, and commands and versions are said once; tests/system has the wheel."""

import ast
import re
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

import enn_ppo
import rogue_net.numpy
from enn_ppo.__main__ import COMMANDS, main

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("entity_gym", "rogue_net", "enn_ppo")
FORBIDDEN = {
    "entity_gym": {"rogue_net", "enn_ppo", "torch", "hydra", "omegaconf", "wandb"},
    "rogue_net": {"enn_ppo", "hydra", "omegaconf", "wandb"},
}


def imported_roots(source: str) -> set[str]:
    """First names of everything imported anywhere in a file: at its top, in functions, and for type checkers only."""
    roots = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            roots |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            roots.add(node.module.split(".")[0])
    return roots


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


def test_the_numpy_runtime_is_short_and_imports_numpy_and_the_standard_library_alone() -> None:
    sources = [file.read_text(encoding="utf-8") for file in (ROOT / "rogue_net" / "numpy").glob("*.py")]
    assert set.union(*map(imported_roots, sources)) - sys.stdlib_module_names == {"numpy"}
    assert sum(len(source.splitlines()) for source in sources) <= 800


def test_constraints_are_exact_versions_of_packages_and_nothing_else() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert "torch==2.13.0" in pins
    assert [pin for pin in pins if not re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*( ; [^;]+)?", pin)] == []


def test_every_pin_is_allowed_by_the_ranges_of_pyproject() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.partition(" ;")[0].split("==") for line in lines if line and not line.startswith("#"))
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project, groups = settings["project"], settings["dependency-groups"]
    lines = [*project["dependencies"], *sum(project["optional-dependencies"].values(), [])]
    lines += [line for group in groups.values() for line in group if isinstance(line, str)]
    needs = [need for need in map(Requirement, lines) if need.name != "enn-ppo"]
    assert [str(need) for need in needs if pins[need.name] not in need.specifier] == []


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
    assert version("enn-ppo") == enn_ppo.__version__ == rogue_net.numpy.__version__
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
