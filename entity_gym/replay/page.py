"""Write a replay as one HTML page that needs nothing else: no network, no server, no other file."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import math
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Literal

FORMAT, VERSION = "enn-ppo replay", 1
LARGEST_PLAIN = 256 * 1024  # bytes of JSON in a page; more is compressed

#: The scripts of the page, in the order in which they are joined.
SCRIPTS = ("data.js", "world.js", "cards.js", "charts.js", "panel.js", "player.js", "served.js", "main.js")

#: A file that shows a replay, a page that follows a training, or one in which a person plays.
Mode = Literal["file", "live", "play"]


def page_html(replay: Mapping[str, Any], mode: Mode = "file", token: str = "") -> str:
    """Return a self-contained HTML page that shows `replay`.

    Args:
        replay: in the format of docs/replays.md. Numbers that are not finite become null.
        mode: "file" needs no server; "live" and "play" are pages of a `PageServer`. A live page asks it for `replays.json` every
            2 seconds, and loads the newest replay that it names.
        token: of the server, for the mode "play".
    """
    style, script = _part("replay.css"), "\n".join(map(_part, SCRIPTS))
    data, encoding = _encode(replay)
    parts = {
        "policy": _content_security_policy(style, script, mode),
        "title": html.escape(str(replay.get("title", "Replay"))),
        "mode": mode,
        "token": html.escape(token),
        "encoding": encoding,
        "data": data,
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


def _encode(replay: Mapping[str, Any]) -> tuple[str, str]:
    """Return the text of the data's script element, and the attribute that names its encoding."""
    plain = to_json(replay)
    if len(plain) > LARGEST_PLAIN:
        return base64.b64encode(gzip.compress(plain.encode(), mtime=0)).decode(), ' data-encoding="gzip+base64"'
    # Inside of texts of JSON these are the same characters; none of them can begin or end an element.
    return plain.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"), ""


def _content_security_policy(style: str, script: str, mode: Mode) -> str:
    """Allow this style and this script by their hashes, an empty icon, and requests to the page's own server if it has one."""
    allowed = [
        "default-src 'none'",
        f"script-src 'sha256-{_hash(script)}'",
        f"style-src 'sha256-{_hash(style)}'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    return "; ".join(allowed if mode == "file" else [*allowed, "connect-src 'self'"])


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _part(name: str) -> str:
    return (files("entity_gym.replay") / "page" / name).read_text(encoding="utf-8")
