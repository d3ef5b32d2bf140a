"""A page is read back as what it was written from, and a damaged one is refused."""

from __future__ import annotations

import base64
import gzip
import hashlib
import random
import re
from typing import Any

import pytest

from entity_gym.replay.page import Game, page_html, read_page, to_json
from tests.replays import replay


def made() -> Any:
    """A replay with a long text."""
    given = replay({"Unit": ["x"]}, {}, [], title="</script>" * 3)
    return {**given, "order": ["Unit"], "settings": {"text": "<!--" * 1000}}


def test_a_page_is_read_back() -> None:
    assert read_page(page_html(made())) == made()


def holding(data: bytes) -> str:
    return f'<script type="application/gzip" id="replay">{base64.b64encode(gzip.compress(data, mtime=0)).decode()}</script>'


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("<html></html>", "the page holds no replay"),
        (page_html(made())[:4000], "the page holds no replay"),
        (holding(b'{"format": "another"}'), "the page's data is no replay"),
        (holding(to_json({**made(), "episodes": {}}).encode()), "the page's data is no replay"),
        (holding(b'{"format"'), "the replay of the page is damaged"),
        (page_html(made()).replace('id="replay">', 'id="replay">AAAA'), "the replay of the page is damaged"),
    ],
)
def test_what_is_no_replay_is_refused(page: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_page(page)


def test_random_damage_is_refused_or_still_a_replay() -> None:
    page, rng, refused = page_html(made()), random.Random(0), 0
    start = page.index('id="replay"')
    stop = page.index("</script>", start)
    for _ in range(100):
        at = rng.randrange(start, stop)
        try:
            to_json(read_page(page[:at] + rng.choice('"{}[]<0aZ') + page[at + rng.randrange(3) :]))
        except ValueError:
            refused += 1
    assert refused > 20


# --- Games without a server


def test_the_page_of_a_game_runs_its_own_scripts_alone_and_reaches_nobody() -> None:
    page = page_html(made(), "play", game=Game(b"policy file", "export class World {}"))
    policy = re.search(r'Content-Security-Policy" content="(.*?)"', page)
    scripts = re.findall(r'<script type="module">(.*?)</script>', page, re.DOTALL)
    assert policy is not None and "connect-src" not in policy[1] and len(scripts) == 3
    hashes = [base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in scripts]
    assert re.findall(r"'sha256-([^']+)'", policy[1])[:3] == hashes
    assert "export class World {}\nwindow.offline.World = World;" in scripts[1]
    assert f'id="policy">{base64.b64encode(b"policy file").decode()}</script>' in page
    assert read_page(page) == made()
    assert 'id="policy"' not in page_html(made()) and "OfflineGame {" not in page_html(made(), "play")


@pytest.mark.parametrize("ending", ["</script", "</SCRIPT", "<!--"])
def test_a_twin_that_would_end_its_script_is_refused(ending: str) -> None:
    with pytest.raises(ValueError, match="the twin of the world holds </script or <!--"):
        page_html(made(), "play", game=Game(b"", f"const text = '{ending}';"))
