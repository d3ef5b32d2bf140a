"""A page is read back as what it was written from, and a damaged one is refused."""

from __future__ import annotations

import random
from typing import Any

import pytest

from entity_gym.replay.page import LARGEST_PLAIN, page_html, to_json
from entity_gym.replay.reading import read_page
from tests.replays import replay


def made(size: int) -> Any:
    """A replay with a long text."""
    given = replay({"Unit": ["x"]}, {}, [], title="</script>" * 3)
    return {**given, "order": ["Unit"], "settings": {"text": "<!--" * size}}


@pytest.mark.parametrize("size", [1, LARGEST_PLAIN])
def test_a_page_is_read_back_packed_or_not(size: int) -> None:
    page = page_html(made(size))
    assert ('data-encoding="gzip+base64">' in page) == (size > 1)
    assert read_page(page) == made(size)


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("", "the page holds no replay"),
        ("<html></html>", "the page holds no replay"),
        (page_html(made(1))[:4000], "the page holds no replay"),
        (page_html(made(1)).replace('"format":"enn-ppo replay"', '"format":"another"'), "the page's data is no replay"),
        (page_html(made(1)).replace('"entities":', '"entitties":'), "the page's data is no replay"),
        (page_html(made(1)).replace('"episodes":[]', '"episodes":['), "the replay of the page is damaged"),
        (page_html(made(LARGEST_PLAIN)).replace('gzip+base64">', 'gzip+base64">AAAA'), "the replay of the page is damaged"),
    ],
)  # fmt: skip
def test_what_is_no_replay_is_refused(page: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_page(page)


@pytest.mark.parametrize("size", [1, LARGEST_PLAIN])
def test_random_damage_is_refused_or_still_a_replay(size: int) -> None:
    page, rng, refused = page_html(made(size)), random.Random(0), 0
    start = page.index('id="replay"')
    stop = page.index("</script>", start)
    for _ in range(100):
        at = rng.randrange(start, stop)
        damaged = page[:at] + rng.choice('"{}[]<0aZ\\') + page[at + rng.randrange(3) :]
        try:
            to_json(read_page(damaged))
        except ValueError:
            refused += 1
    assert refused > 20
