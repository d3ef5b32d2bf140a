"""Read the data of a replay's page back."""

from __future__ import annotations

import base64
import re
import zlib
from typing import Any

from entity_gym.replay.page import FORMAT
from entity_gym.untrusted import parse_json

MAX_BYTES = 2**28  # of a page, and of a replay
_DATA = re.compile(
    r'<script type="application/json" id="replay"( data-encoding="gzip\+base64")?>(.*?)</script>', re.DOTALL
)


def read_page(page: str) -> dict[str, Any]:
    """Return the replay that a page of `page_html` shows.

    Raises:
        ValueError: the page holds no replay, or a damaged one.
    """
    found = _DATA.search(page)
    if found is None:
        raise ValueError("the page holds no replay")
    is_packed, text = found.groups()
    try:
        replay: dict[str, Any] = parse_json(_unpacked(base64.b64decode(text, validate=True)) if is_packed else text)
    except (ValueError, zlib.error) as error:
        raise ValueError(f"the replay of the page is damaged: {error}") from error
    is_replay = isinstance(replay, dict) and replay.get("format") == FORMAT
    if not is_replay or not isinstance(replay.get("entities"), dict) or not isinstance(replay.get("episodes"), list):
        raise ValueError("the page's data is no replay")
    return replay


def _unpacked(data: bytes) -> bytes:
    stream = zlib.decompressobj(wbits=31)  # gzip
    content = stream.decompress(data, MAX_BYTES)
    if not stream.eof:
        raise ValueError(f"it is cut short, or larger than {MAX_BYTES:,} bytes")
    return content
