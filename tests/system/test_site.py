"""The site builds without a warning, and the pages that are made of the code have everything."""

from __future__ import annotations

import importlib
import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

from enn_ppo.plot import PlotConfig
from enn_ppo.settings.cloning import CloneConfig
from enn_ppo.settings.config import EvalConfig, TrainConfig
from enn_ppo.settings.evaluation import WatchConfig
from enn_ppo.settings.options import options_of
from enn_ppo.settings.schema import flatten, to_dict
from enn_ppo.settings.serving import ServeConfig
from enn_ppo.settings.sweeping import SweepCommand
from entity_gym.registry import list_envs

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


class Page(HTMLParser):
    """The ids of a page, and what the browser loads without a click."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.loaded: set[str] = set()
        self.feed(file.read_text("utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        self.ids |= {value for name in ("id", "name") if (value := given.get(name))}
        address = given.get("href") or given.get("src")
        if address and tag != "a" and given.get("rel") != "canonical":
            self.loaded.add(address)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site; links that lead nowhere and pages outside of the navigation fail its build."""
    for library in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(library)
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.setenv("NO_MKDOCS_2_WARNING", "1")
        config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder))
        config.plugins.on_startup(command="build", dirty=False)
        build(config)  # strict
    return folder


def test_a_page_loads_nothing_from_other_servers(site: Path) -> None:
    pages = [Page(file) for file in site.rglob("*.html") if file.name != "404.html"]
    assert len(pages) > 20
    assert {each for page in pages for each in page.loaded if each.startswith(("http", "//"))} == set()


def test_the_api_has_every_public_name(site: Path) -> None:
    packages = ("entity_gym", "rogue_net", "enn_ppo")
    ids = {place for file in (site / "api").rglob("*.html") for place in Page(file).ids if place.startswith(packages)}
    # The last part: modules export what others define, such as `enn_ppo` the settings of the network.
    shown = {place.rsplit(".", 1)[-1] for place in ids}
    for package in packages:
        assert [name for name in importlib.import_module(package).__all__ if name not in shown] == []


def test_every_option_of_every_command_stands_on_the_page_of_options_with_its_default(site: Path) -> None:
    text = (site / "options" / "index.html").read_text("utf-8")
    for cls in (TrainConfig, EvalConfig, CloneConfig, SweepCommand, PlotConfig, ServeConfig, WatchConfig):
        options = [option.name for option in options_of(cls) if not option.type.startswith("section")]
        assert len(options) >= 3
        assert [name for name in options if f"<code>{name}</code>" not in text] == []
    defaults = flatten(to_dict(TrainConfig()))
    chapter = unescape(text.partition('<h2 id="train"')[2].partition("<h2 ")[0])
    told = dict(re.findall(r"<td><code>([\w.]+)</code></td>\n<td>.*?</td>\n<td><code>(.+?)</code></td>", chapter))
    del defaults["value_net"]  # null as a whole; its settings stand without values
    assert {name: yaml.safe_load(value) for name, value in told.items() if value != "{}"} == defaults


def test_every_world_says_what_it_shows_takes_and_rewards_when_it_ends_and_what_is_best(site: Path) -> None:
    text = (site / "environments" / "index.html").read_text("utf-8")
    sections = re.split(r"<h2 id=\"[^\"]*\">", text)[1:]
    assert [re.match(r"[\w-]+", section)[0] for section in sections] == list_envs()  # type: ignore[index]
    for section in sections[1:]:  # the first, CartPole-v0, refers to CartPole-v1
        for title in ("Observation", "Actions", "Reward", "End", "Best score"):
            assert section.count(f"<strong>{title}.</strong>") == 1, title
