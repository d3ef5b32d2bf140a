"""Write a replay as one HTML page that needs nothing else, no network, no server, no other file; and read it back."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import math
import re
import zlib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from entity_gym.untrusted import parse_json

FORMAT, VERSION = "enn-ppo replay", 1
MAX_BYTES = 2**28  # of a page, and of a replay
_DATA = re.compile(r'<script type="application/gzip" id="replay">(.*?)</script>', re.DOTALL)

#: The scripts of the page, in the order in which they are joined.
SCRIPTS = ("data.js", "world.js", "cards.js", "charts.js", "panel.js", "player.js", "served.js", "main.js")


def page_html(replay: Mapping[str, Any], token: str = "") -> str:
    """Return a self-contained HTML page that shows `replay`.

    Args:
        replay: in the format of docs/replays.md. Numbers that are not finite become null.
        token: of the `PageServer` with which a person plays on this page; empty: the page needs no server.
    """
    style, script = _part("replay.css"), "\n".join(map(_part, SCRIPTS))
    policy = [
        "default-src 'none'",
        f"script-src 'sha256-{_hash(script)}'",
        f"style-src 'sha256-{_hash(style)}'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        *(["connect-src 'self'"] if token else []),
    ]
    parts = {
        "policy": "; ".join(policy),
        "title": html.escape(str(replay.get("title", "Replay"))),
        "mode": "play" if token else "file",
        "token": html.escape(token),
        "data": base64.b64encode(gzip.compress(to_json(replay).encode(), mtime=0)).decode(),
        "style": style,
        "script": script,
    }
    # In one pass, so that no part is searched for the place of another.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _part("replay.html"))


def to_json(replay: Mapping[str, Any]) -> str:
    """Return a replay as JSON that every browser reads.

    Numbers that are not finite become null. The types are named in `order`, since browsers put keys that are whole numbers first.
    """
    replay = {**replay, "order": list(replay.get("entities", ()))}
    try:
        return json.dumps(replay, allow_nan=False, separators=(",", ":"))
    except ValueError:
        return json.dumps(_finite(replay), allow_nan=False, separators=(",", ":"))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _part(name: str) -> str:
    return (files("entity_gym.replay") / "page" / name).read_text(encoding="utf-8")


def read_page(page: str) -> dict[str, Any]:
    """Return the replay that a page of `page_html` shows.

    Raises:
        ValueError: the page holds no replay, or a damaged one.
    """
    found = _DATA.search(page)
    if found is None:
        raise ValueError("the page holds no replay")
    stream = zlib.decompressobj(wbits=31)  # gzip
    try:
        content = stream.decompress(base64.b64decode(found[1], validate=True), MAX_BYTES)
        if not stream.eof:
            raise ValueError(f"it is cut short, or larger than {MAX_BYTES:,} bytes")
        replay: dict[str, Any] = parse_json(content)
    except (ValueError, zlib.error) as error:
        raise ValueError(f"the replay of the page is damaged: {error}") from error
    is_replay = isinstance(replay, dict) and replay.get("format") == FORMAT
    if not is_replay or not isinstance(replay.get("entities"), dict) or not isinstance(replay.get("episodes"), list):
        raise ValueError("the page's data is no replay")
    return replay
