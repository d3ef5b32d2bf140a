"""Write a replay as one HTML page that needs nothing else, no network, no server, no other file; and read it back."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import re
import zlib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Literal, NamedTuple

from entity_gym.untrusted import parse_json

FORMAT, VERSION = "enn-ppo replay", 1
MAX_BYTES = 2**28  # of a page, and of a replay
_DATA = re.compile(r'<script type="application/gzip" id="replay">(.*?)</script>', re.DOTALL)

#: The scripts of the page, in the order in which they are joined.
SCRIPTS = ("data.js", "world.js", "cards.js", "charts.js", "panel.js", "player.js", "served.js", "main.js")

#: A file that shows a replay, a page that follows a training, or one in which a person plays.
Mode = Literal["file", "live", "play"]


class Game(NamedTuple):
    """The parts of a page in which a person plays without a server.

    Attributes:
        policy: a policy file.
        twin: source of the module whose class `World` is the world's twin in JavaScript.
    """

    policy: bytes
    twin: str


def page_html(replay: Mapping[str, Any], mode: Mode = "file", token: str = "", game: Game | None = None) -> str:
    """Return a self-contained HTML page that shows `replay`.

    Args:
        replay: in the format of docs/replays.md.
        mode: "file" needs no server; "live" and "play" are pages of a `PageServer`. A live page asks it for `replays.json` every
            2 seconds, and loads the newest replay that it names.
        token: of the server, for the mode "play".
        game: of the mode "play" without a server. The replay then has no episodes, and an entry `game`: `values` of the
            world's parameters, hints for `drawing`, the number of `players` that the policy plays one by one, and `greedy`.

    Raises:
        ValueError: the twin cannot stand in a page.
    """
    scripts = SCRIPTS if game is None else (*SCRIPTS[:-1], "offline.js", SCRIPTS[-1])
    style, script = _part("replay.css"), "\n".join(map(_part, scripts))
    modules = [] if game is None else _modules(game)
    sources = [f"'sha256-{_hash(each)}'" for each in (*modules, script)]
    policy = [
        "default-src 'none'",
        f"script-src {' '.join(sources)}",
        f"style-src 'sha256-{_hash(style)}'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        *(["connect-src 'self'"] if mode != "file" and game is None else []),
    ]
    parts = {
        "policy": "; ".join(policy),
        "title": html.escape(str(replay.get("title", "Replay"))),
        "mode": mode,
        "token": html.escape(token),
        "data": base64.b64encode(gzip.compress(to_json(replay).encode(), mtime=0)).decode(),
        "style": style,
        "game": "".join(f'<script type="module">{each}</script>\n' for each in modules) + _policy(game),
        "script": script,
    }
    # In one pass, so that no part is searched for the place of another.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _part("replay.html"))


def _modules(game: Game) -> list[str]:
    """The scripts of the policy and of the twin: modules of their own, so that their names do not meet the page's."""
    if re.search("</script|<!--", game.twin, re.IGNORECASE):
        raise ValueError("the twin of the world holds </script or <!--, which would end it inside of a page")
    policy = f"{_part('policy.mjs')}\nwindow.offline = {{ Policy }};\n"
    return [policy, f"{game.twin}\nwindow.offline.World = World;\n"]


def _policy(game: Game | None) -> str:
    if game is None:
        return ""
    return f'<script type="application/octet-stream" id="policy">{base64.b64encode(game.policy).decode()}</script>\n'


def to_json(replay: Mapping[str, Any]) -> str:
    """Return a replay as JSON that every browser reads.

    The types are named in `order`, since browsers put keys that are whole numbers first.
    """
    replay = {**replay, "order": list(replay.get("entities", ()))}
    return json.dumps(replay, allow_nan=False, separators=(",", ":"))


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
