"""The site builds without a warning, every page is in its navigation, and the API has every public name."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

ROOT = Path(__file__).parents[1]


class Addresses(HTMLParser):
    """Addresses that a page names, and the ids in it."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.loaded: set[str] = set()  # by the browser, without a click
        self.ids: set[str] = set()
        self.feed(page.read_text("utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        self.ids |= {value for name in ("id", "name") if (value := given.get(name))}
        address = given.get("href") or given.get("src")
        if address:
            (self.links if tag == "a" else self.loaded).add(address)


def build(source: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", source / "mkdocs.yml", "-d", site]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Addresses]:
    """Every page of the site."""
    for library in ("material", "mkdocstrings"):
        pytest.importorskip(library)
    site = tmp_path_factory.mktemp("site")
    done = build(ROOT, site)
    assert done.returncode == 0, done.stderr
    return {page: Addresses(page) for page in site.rglob("*.html") if page.name != "404.html"}


@pytest.mark.slow
def test_every_link_inside_the_site_leads_to_a_page_and_a_place_on_it(pages: dict[Path, Addresses]) -> None:
    lost, followed = [], 0
    for page, addresses in pages.items():
        for link in addresses.links | addresses.loaded:
            if re.match(r"[a-z]+:", link):
                continue
            path, place = urldefrag(link)
            target = (page.parent / unquote(path)).resolve() if path else page
            target = target / "index.html" if target.is_dir() else target
            followed += 1
            missing = place and target.suffix == ".html" and unquote(place) not in pages[target].ids
            if not target.exists() or missing:
                lost.append(f"{page.parent.name}: {link}")
    assert followed > 1000
    assert lost == []


@pytest.mark.slow
def test_a_page_loads_nothing_from_other_servers(pages: dict[Path, Addresses]) -> None:
    assert {
        address for page in pages.values() for address in page.loaded if address.startswith(("http", "//"))
    } == set()


@pytest.mark.slow
def test_the_api_has_every_public_name(pages: dict[Path, Addresses]) -> None:
    api = [addresses for page, addresses in pages.items() if page.parent.parent.name == "api"]
    packages = ("entity_gym", "rogue_net", "enn_ppo")
    # The last part: modules export what others define, such as `enn_ppo` the settings of the network.
    shown = {place.rsplit(".", 1)[-1] for page in api for place in page.ids if place.startswith(packages)}
    for package in packages:
        assert [name for name in importlib.import_module(package).__all__ if name not in shown] == []


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text("utf-8").split("\nnav:")[1]
    named = set(re.findall(r": ([\w/]+\.md)$", navigation, re.MULTILINE))
    written = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    assert sorted(written - named) == []


@pytest.mark.slow
def test_a_link_that_leads_nowhere_fails_the_build(tmp_path: Path) -> None:
    pytest.importorskip("material")
    (tmp_path / "docs").mkdir()
    settings = (ROOT / "mkdocs.yml").read_text("utf-8")
    validation = settings[settings.index("validation:") : settings.index("nav:")]
    (tmp_path / "mkdocs.yml").write_text(f"site_name: one page\nplugins: []\n{validation}")
    (tmp_path / "docs" / "index.md").write_text("# Start\n\n[there](#start)")
    assert build(tmp_path, tmp_path / "site").returncode == 0
    for link in ("nowhere.md", "#nowhere"):
        (tmp_path / "docs" / "index.md").write_text(f"# Start\n\n[there]({link})")
        done = build(tmp_path, tmp_path / "site")
        assert done.returncode != 0 and "nowhere" in done.stderr
