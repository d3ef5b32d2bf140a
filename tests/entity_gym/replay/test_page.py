"""A page is read back as what it was written from, and a damaged one is refused."""

from __future__ import annotations

import base64
import gzip
import random
from typing import Any

import pytest

from entity_gym.replay.page import page_html, read_page, to_json
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
