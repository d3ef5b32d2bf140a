"""Pages for readers: programs and commands run or compose, what they print is what is shown, and links lead somewhere."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import re
import runpy
import shlex
import shutil
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import yaml

from enn_ppo.plot import parse as parse_plot
from enn_ppo.settings.cloning import CloneConfig
from enn_ppo.settings.command_line import cli
from enn_ppo.settings.config import EvalConfig, TrainConfig
from enn_ppo.settings.evaluation import WatchConfig
from enn_ppo.settings.schema import fields_of
from enn_ppo.settings.serving import ServeConfig
from enn_ppo.settings.sweeping import SweepCommand
from enn_ppo.training.tracking.symptoms import PAGE
from rogue_net import RelposConfig, RogueNetConfig, TranslationConfig
from tests.processes import ROOT, run

pytestmark = pytest.mark.slow

SITE = "https://enn-ppo.github.io/enn-ppo/"
RAW = "https://raw.githubusercontent.com/enn-ppo/enn-ppo/main/"
GENERATED = ("options", "environments", "metrics")
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")))


class Block(NamedTuple):
    """A block of code on a page."""

    language: str
    text: str
    before: str  # the paragraph before it

    @property
    def file(self) -> str | None:
        """The file as which a reader saves the block."""
        named = re.search(r"(?:This is|Save this as)\s`(\w+\.\w+)`", self.before)
        return named[1] if named else None


def read(page: str) -> str:
    return (ROOT / page).read_text("utf-8")


def blocks(page: str) -> list[Block]:
    found = re.finditer(r"^```(\w+)\n(.*?)^```$", text := read(page), re.DOTALL | re.MULTILINE)
    return [Block(m[1], m[2], text[: m.start()].rstrip().rsplit("\n\n", 1)[-1]) for m in found]


def commands(block: Block) -> list[list[str]]:
    lines = block.text.replace("\\\n", " ").splitlines() if block.language in ("sh", "bash") else []
    typed = [shlex.split(line, comments=True) for line in lines]
    return [[word.removeprefix(".venv/bin/") for word in words] for words in typed if words]


# --- Pages whose commands run, one after the other, in the reader's folder


class Run(NamedTuple):
    """Settings of the run of a page."""

    shorter: Mapping[str, str] = {}  # parts of programs and commands that are replaced, so that they take seconds
    blocks: int | None = None  # of so many blocks the commands run; the others compose; None: of all
    needs: Sequence[str] = ()


SMALL = ["total_timesteps=2048", "rollout.num_envs=8", "optim.batch_size=64", "device=cpu"]
"""For trainings on pages that promise no score."""

RUNS = {
    "README.md": Run({"total_timesteps=100_000": "total_timesteps=30_000, seed=2"}),
    "docs/tutorial.md": Run(),
    "docs/agents.md": Run({"main(agent, None, seed=3)": "assert callable(agent.act)"}),
    "docs/bring_yours.md": Run({"200000": "2048"}, needs=["gymnasium"]),
    "docs/training.md": Run(
        {"TrainConfig()": "TrainConfig(total_timesteps=4096)", "100_000": "4_096", "episodes=20": "episodes=2"},
        blocks=2,
    ),
    "docs/actions.md": Run(),
    "docs/network.md": Run(blocks=0),
    "docs/ship_onnx.md": Run(needs=["onnxruntime"]),
    "docs/batch_walk.md": Run(blocks=0),
    "docs/bridges.md": Run(blocks=0, needs=["gymnasium", "stable_baselines3", "pettingzoo", "pygame"]),
}
PROMISES = {  # what a page says of the result, by names of its programs or in its folder
    "README.md": "assert result.metrics['episodic_reward'] > 2.5",  # of 3; a random walk finds about 1.5
    "docs/tutorial.md": "import json\nassert json.load(open('score.json'))['episodic_reward']['mean'] > 0.8",
}


@pytest.mark.parametrize("page", RUNS)
def test_a_reader_who_follows_the_page_gets_what_it_shows(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = RUNS[page]
    for library in how.needs:
        pytest.importorskip(library)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.setitem(sys.modules, "page", module := ModuleType("page"))
    of_page = blocks(page)
    shells = [block for block in of_page if commands(block)]
    printed: str | None = None  # by the block before
    for block in of_page:
        text = block.text
        for long, short in how.shorter.items():
            text = text.replace(long, short)
        if block.language == "text" and printed:
            assert_shown(block.text, printed)
        printed = None
        if block.language == "python" and block.file:
            Path(block.file).write_text(text)
            monkeypatch.delitem(sys.modules, Path(block.file).stem, raising=False)
        elif block.language == "python" and not is_excerpt(text):
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(text, page, "exec"), vars(module))
            printed = out.getvalue()
        elif block in shells[: how.blocks]:
            short_commands = commands(block._replace(text=text))
            printed = "".join(typed_by_a_reader(page, command, tmp_path) for command in short_commands)
    exec(PROMISES.get(page, ""), vars(module))


def is_excerpt(text: str) -> bool:
    """Return whether a block shows lines of an example, or of the network in NumPy."""
    sources = [read(file) for file in ("examples/harvest.py", "rogue_net/numpy/network.py")]
    return any({line.strip() for line in text.splitlines()} <= {*map(str.strip, each.splitlines())} for each in sources)


def typed_by_a_reader(page: str, command: list[str], folder: Path) -> str:
    """Run a command in the reader's folder, and return what it printed."""
    if command[:2] == ["make", "train"]:
        settings = [word.removeprefix("ARGS=") for word in command[2:]] or ["env=MineSweeper"]
        command = ["python", "-m", "enn_ppo.train", *shlex.split(settings[0])]
    if command[:2] != ["python", "-m"]:
        return compose(command)
    module, *arguments = command[2:]
    if module == "enn_ppo.play" or (module == "examples.harvest_sb3" and not installed("stable_baselines3")):
        return compose(command)  # serves until Ctrl-C
    if module == "enn_ppo.train" and page != "docs/tutorial.md" and not any("resume=" in each for each in arguments):
        arguments += SMALL
    elif module == "enn_ppo.train" and page != "docs/tutorial.md":
        arguments += ["total_timesteps=4096"]
    elif module == "enn_ppo.eval" and page != "docs/tutorial.md":
        arguments = [each for each in arguments if not each.startswith("episodes=")] + ["episodes=4"]
    elif module == "enn_ppo.watch":
        arguments += ["episodes=1", "open=false"]
    elif module == "enn_ppo.plot":
        arguments = [str(path) for each in arguments for path in sorted(folder.glob(each))]
    done = run("-m", module, *arguments, cwd=folder, PYTHONPATH=str(folder))
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout.partition("The checks of")[0] if module == "entity_gym.check" else ""


def installed(library: str) -> bool:
    with contextlib.suppress(ImportError):
        return bool(__import__(library))
    return False


NUMBER = re.compile(r"-?\d+\.\d*")


def assert_shown(shown: str, printed: str) -> None:
    """Check that a page shows what was printed, up to layout and the last digit of decimals: processors round differently."""
    words, others = (" ".join(NUMBER.sub(" # ", text).split()) for text in (shown, printed))
    numbers, computed = ([float(each) for each in NUMBER.findall(text)] for text in (shown, printed))
    near = len(numbers) == len(computed) and all(abs(a - b) < 0.011 for a, b in zip(numbers, computed, strict=True))
    assert words == others and near, f"the page shows\n{shown}\nwhere this is printed:\n{printed}"


# --- All other commands compose


class Parsed(Exception):
    """A command has parsed its arguments."""


def parse_only(start: Callable[[], object], program: str, arguments: list[str]) -> None:
    """Start a program with arguments, and end it where argparse has accepted them."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Parsed):
        for name in ("parse_args", "parse_intermixed_args"):
            original = getattr(argparse.ArgumentParser, name)

            def parse(*given: Any, original: Callable[..., Any] = original) -> None:
                original(*given)
                raise Parsed

            patch.setattr(argparse.ArgumentParser, name, parse)
        patch.setattr(sys, "argv", [program, *arguments])
        patch.syspath_prepend(str(ROOT / "scripts"))
        start()


def nothing(*_: object, **__: object) -> None: ...


HYDRA: dict[str, Callable[..., int]] = {
    "enn_ppo.train": cli.run_train,
    "enn_ppo.eval": cli.run_eval,
    "enn_ppo.watch": cli.run_watch,
    "enn_ppo.serve": cli.run_serve,
    "enn_ppo.clone": cli.run_clone,
    "enn_ppo.sweep": cli.run_sweep,
}
OTHERS = {"cc", "emcc", "tensorboard", "optuna-dashboard", "ray", "node", "pre-commit"}
"""Programs of others, whose arguments are theirs."""


def compose(command: list[str]) -> str:
    """Check a command without doing its work."""
    program, *arguments = command
    if "=" in program:  # a variable of the environment
        return compose(arguments)
    if program == "make":
        target = [each for each in arguments if "=" not in each][0]
        assert re.search(rf"^{target}:", read("Makefile"), re.MULTILINE), f"make has no {target}"
    elif program == "pip":
        extras = tomllib.loads(read("pyproject.toml"))["project"]["optional-dependencies"]
        named = {name for each in arguments for m in re.findall(r"\[([\w,-]+)\]", each) for name in m.split(",")}
        assert arguments[0] == "install" and named <= extras.keys() | {"butterfly"}
    elif program == "torchrun" or program == "python" and arguments[0] == "-m":
        module, *arguments = arguments[arguments.index("-m") + 1 :]
        compose_module(module, arguments)
    elif program == "python" or program.startswith("scripts/"):
        script, *arguments = [program, *arguments] if program.startswith("scripts/") else arguments
        assert (ROOT / script).exists(), script
        if script.endswith(".py"):
            parse_only(lambda: runpy.run_path(str(ROOT / script), run_name="__main__"), script, arguments)
    else:
        assert program in OTHERS, command
    return ""


def compose_module(module: str, arguments: list[str]) -> None:
    if module in HYDRA:
        # Without a checkpoint to resume, with the settings of a new run; --cfg only prints them; jobs are processes.
        given = [each for each in arguments if not re.match(r"resume=|jobs=|policies=\{\}", each)]
        given = [each for each in given if each not in ("--cfg", "job")]
        if module == "enn_ppo.train" and "--config-dir" not in given:
            given = [each for each in given if each != "distributed=ddp"]  # asks for torchrun
        assert HYDRA[module](nothing, given) == 0, f"{module} {arguments}"
    elif module == "enn_ppo.plot":
        parse_plot(arguments)
    elif module.startswith("examples."):
        assert (ROOT / f"{module.replace('.', '/')}.py").exists()
    else:
        parse_only(lambda: runpy.run_module(module, run_name="__main__"), module, arguments)


@pytest.mark.parametrize("page", [page for page in PAGES if any(map(commands, blocks(page)))])
def test_every_command_of_the_page_composes(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("examples", "clients"):
        (tmp_path / name).symlink_to(ROOT / name)
    for block in blocks(page):
        for command in commands(block):
            compose(command)


# --- What pages name exists


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_to_a_file_or_a_page_of_the_site(page: str) -> None:
    lost = []
    for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", read(page), flags=re.DOTALL)):
        path = link.partition("#")[0]
        if path.startswith(SITE):
            found = path.removeprefix(SITE).strip("/") in GENERATED
        elif path.startswith(RAW):
            found = (ROOT / path.removeprefix(RAW)).exists()
        else:
            target = (ROOT / page).parent / path
            of_site = page.startswith("docs/") and (target.stem in GENERATED or target.name == "architecture.md")
            found = ":" in path or target.exists() or of_site
        if not found:
            lost.append(link)
    assert lost == []


@pytest.mark.parametrize("page", PAGES)
def test_every_setting_and_file_that_a_page_names_exists(page: str) -> None:
    names = {name for cls in (TrainConfig, EvalConfig, CloneConfig, SweepCommand, WatchConfig, ServeConfig)
             for name in fields_of(cls)}  # fmt: skip
    sections = {name.split(".")[0] for name in names if "." in name}
    opened = ("env.kwargs.", "env.info.", "eval.env_kwargs.", "policies.", "env.unwrapped.")  # the last is Gymnasium's
    lost = []
    for code in re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", read(page), flags=re.DOTALL)):
        setting = re.match(r"'?([a-z_]+(?:\.[a-z_]+)+)(?==|$|')", code)
        if setting and setting[1].split(".")[0] in sections and setting[1] not in names:
            if not setting[1].startswith(opened) and not setting[1].endswith((".py", ".yaml", ".png", ".json")):
                lost.append(code)
        if re.fullmatch(r"(?:entity_gym|rogue_net|enn_ppo|configs|scripts|tests|examples|docs)/[\w/.-]*", code):
            if not (ROOT / code).exists() and not code.endswith("__pycache__"):
                lost.append(code)
    assert lost == []


@pytest.mark.parametrize(("page", "words"), [("README.md", 800), ("ARCHITECTURE.md", 2500), ("CHANGELOG.md", 900)])
def test_pages_that_are_read_first_are_short(page: str, words: int) -> None:
    assert len(read(page).split()) <= words


def test_every_number_of_the_readmes_table_stands_on_the_page_of_benchmarks() -> None:
    table = read("README.md").split("## What it learns")[1].split("[Benchmarks]")[0]
    rows = [line.split("|")[2:-1] for line in table.splitlines() if line.startswith("|")][2:]
    assert len(rows) == 10
    benchmarks = read("docs/benchmarks.md")
    assert [cell for row in rows for cell in row if cell.strip() and cell.strip() not in benchmarks] == []


def test_the_page_of_installation_has_every_extra_and_no_other() -> None:
    extras = tomllib.loads(read("pyproject.toml"))["project"]["optional-dependencies"]
    rows = re.findall(r"^\|([^|]*)\|", read("docs/install.md").split("## Extras")[1].split("## CPU")[0], re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`([\w-]+)`", row)} == extras.keys()


def test_the_page_of_views_names_all_views_and_explains_every_key() -> None:
    from entity_gym.bridges.views.view import EntityView, View, included_views, view_mapping

    page = read("docs/bridges.md")
    shown = [block.text for block in blocks("docs/bridges.md") if block.language == "yaml"]
    titles = [text.partition("\n")[0] for text in shown]
    assert titles == ["# highway.yaml", "# rware.yaml, shortened"]
    highway, rware = map(yaml.safe_load, shown)
    assert highway == view_mapping("highway")
    assert rware["entities"].keys() <= view_mapping("rware")["entities"].keys()
    assert [name for name in included_views() if f"| `{name}` |" not in page] == []
    keys = {field.name for cls in (EntityView, View) for field in dataclasses.fields(cls)} - {"name", "entities"}
    assert [key for key in sorted(keys) if f"`{key}`" not in page] == []


def test_the_page_of_the_network_explains_every_setting() -> None:
    told = set(re.findall(r"`(?:net\.)?(?:relpos\.|translation\.)?(\w+)(?:=[^`]*)?`", read("docs/network.md")))
    names = {f.name for cls in (RogueNetConfig, RelposConfig, TranslationConfig) for f in dataclasses.fields(cls)}
    assert names - told - {"relpos", "translation"} == set()


def test_examples_are_shown_as_they_are() -> None:
    (view,) = [block.text for block in blocks("docs/bring_yours.md") if block.language == "yaml"]
    assert view == read("examples/harvest.yaml")


def test_warnings_about_learning_lead_to_a_page_that_shows_the_curves_of_its_commands() -> None:
    address = tomllib.loads(read("pyproject.toml"))["project"]["urls"]["Documentation"]
    name = PAGE.removeprefix(address).strip("/")
    assert f"{name}.md" in read("mkdocs.yml")
    page = f"docs/{name}.md"
    drawn = [words[-1] for block in blocks(page) for words in commands(block) if words[-1].startswith("output=")]
    shown = re.findall(r"!\[[^]]{20,}\]\(images/symptoms/(\w+\.png)\)", read(page))
    assert [f"output={picture}" for picture in shown] == drawn
