"""docs/options.md says what the settings' docstrings say, and leaves no option out."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from enn_ppo.clone.config import CloneConfig
from enn_ppo.plot.config import PlotConfig
from enn_ppo.settings.command_line.options import sections_of
from enn_ppo.settings.config import EvalConfig, TrainConfig
from enn_ppo.settings.schema import flatten, setting_names, to_dict
from enn_ppo.settings.serving import ServeConfig
from enn_ppo.sweep.config import SweepCommand

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "options.md"
CHAPTERS = {
    "train": TrainConfig,
    "eval": EvalConfig,
    "clone": CloneConfig,
    "sweep": SweepCommand,
    "plot": PlotConfig,
    "serve": ServeConfig,
}


def regenerate(*arguments: str) -> subprocess.CompletedProcess[str]:
    script = ROOT / "scripts" / "regenerate_options.py"
    return subprocess.run([sys.executable, script, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


def chapter(name: str) -> str:
    (found,) = re.findall(rf"^## {name}\n(.*?)(?=^## |\Z)", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return str(found)


def test_the_page_is_what_the_docstrings_say() -> None:
    result = regenerate("--check")
    assert result.returncode == 0, result.stderr


def test_a_stale_page_is_noticed_and_mended(tmp_path: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    copy = tmp_path / "page.md"
    copy.write_text(page.replace("| `128` | at least 1 |", "| `256` | at least 1 |"), encoding="utf-8")
    assert copy.read_text(encoding="utf-8") != page

    result = regenerate("--check", "--page", str(copy))
    assert result.returncode == 1
    assert "stale" in result.stderr
    assert regenerate("--page", str(copy)).returncode == 0
    assert copy.read_text(encoding="utf-8") == page


@pytest.mark.parametrize("name", CHAPTERS)
def test_every_option_stands_on_the_page_once(name: str) -> None:
    text = chapter(name)
    sections = {section.path for section in sections_of(CHAPTERS[name])}
    elsewhere = setting_names(TrainConfig) if name == "clone" else []  # in the chapter of training
    options = [option for option in setting_names(CHAPTERS[name]) if option not in {*sections, *elsewhere}]
    assert len(options) >= 6
    # As the name of a line of a table, or in the list of those that are as in another section.
    named = re.findall(r"^\| `([\w.]+)` \|", text, re.MULTILINE) + re.findall(r"[:,] `([\w.]+)`(?=[,.])", text)
    assert sorted(option for option in named if option in options) == sorted(options)


def test_the_page_has_the_defaults_that_the_classes_have() -> None:
    text = chapter("train")
    told = dict(re.findall(r"^\| `([\w.]+)` \| [^|]+ \| `([^`]+)` \|", text, re.MULTILINE))
    defaults = flatten(to_dict(TrainConfig()))
    del defaults["value_net"]  # null as a whole; its settings stand without values
    assert {name: yaml.safe_load(value) for name, value in told.items() if value != "{}"} == defaults
