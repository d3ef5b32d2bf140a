"""A web server for pages on this computer: it listens on 127.0.0.1 only, and answers only the paths that it was given."""

from __future__ import annotations

import hmac
import json
import os
import secrets
import socketserver
import sys
import threading
import webbrowser
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

HOST = "127.0.0.1"
LARGEST_BODY = 1 << 20  # bytes of a POST request
TIMEOUT = 10.0  # seconds to wait for the next bytes of a request
TOKEN_HEADER = "X-Replay-Token"

_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def open_in_browser(address: str) -> threading.Thread:
    """Open an address where there is a display, or where the variable BROWSER names a browser; elsewhere do nothing.

    Returns:
        The daemon thread that opens it. A browser in the terminal returns only when it is closed, so a server goes on without
        it. A command that has nothing else to do joins the thread, which would end with it.
    """

    def open_address() -> None:
        chosen = any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
        if chosen or sys.platform in ("darwin", "win32"):
            with suppress(webbrowser.Error, OSError):
                webbrowser.open(address)

    thread = threading.Thread(target=open_address, name="browser", daemon=True)
    thread.start()
    return thread


class PageServer(ThreadingHTTPServer):
    """Serves pages and JSON in threads of its own, from its construction until `close`.

    Paths that end in `.json` are sent as JSON, and all others as HTML. Both dictionaries are read at each request, so their
    owner may add paths later. A ValueError that a function raises is sent to the page as `{"error": message}`, status 400.

    Requests are refused if their Host header is not this server (another web page could otherwise reach it by a domain name
    that points to 127.0.0.1). POST requests must also have the token, which only pages of this server know.

    Args:
        pages: path, such as "/" or "/replays.json", -> function that returns the text. Called in the server's threads.
        posts: path -> function of the JSON that was posted, which returns an answer that JSON can hold.
        port: 0 for any free one.

    Attributes:
        url: the address of the page "/".
        token: to be sent in the header `TOKEN_HEADER`.

    Raises:
        ValueError: the port is taken, or may not be used.
    """

    daemon_threads = True

    def __init__(
        self,
        pages: Mapping[str, Callable[[], str]],
        posts: Mapping[str, Callable[[Any], Any]] | None = None,
        port: int = 0,
    ) -> None:
        self.pages = pages
        self.posts = {} if posts is None else posts
        self.token = secrets.token_urlsafe(16)
        try:
            super().__init__((HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ValueError(
                f"port {port} on {HOST} cannot be used ({reason}); give another one, or 0 for any"
            ) from None
        self.port: int = self.server_address[1]
        self.url = f"http://{HOST}:{self.port}/"
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), name="page server", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening. May be called twice."""
        self.shutdown()
        self.server_close()
        self._thread.join()

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # HTTPServer's own looks up a domain name, which may take seconds

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing about connections that the browser has closed."""


class _Refused(Exception):
    """A request with its HTTP status and a message."""


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    timeout = TIMEOUT
    server_version = "replay"
    sys_version = ""

    def do_GET(self) -> None:
        self._answer(lambda path: self.server.pages[path]())

    def do_POST(self) -> None:
        self._answer(lambda path: json.dumps(self.server.posts[path](self._posted())), "application/json")

    def _posted(self) -> Any:
        """Return the JSON of a request with the token."""
        if not hmac.compare_digest(self.headers.get(TOKEN_HEADER, "").encode(), self.server.token.encode()):
            raise _Refused(403, "the token is missing or wrong; reload the page")
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or len(length) > 9 or int(length) > LARGEST_BODY:
            raise _Refused(413, f"Content-Length must be a whole number of at most {LARGEST_BODY} bytes")
        try:
            return json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            raise _Refused(400, "the request is not JSON") from None

    def _answer(self, respond: Callable[[str], str], kind: str = "") -> None:
        """Send the text of the path that is asked for, or the reason why there is none."""
        path, port = self.path.partition("?")[0], self.server.port
        kind = kind or ("application/json" if path.endswith(".json") else "text/html")
        try:
            if self.headers.get("Host") not in (f"{HOST}:{port}", f"localhost:{port}"):
                raise _Refused(403, f"this server is {HOST}:{port}, and no other name")
            if path not in (self.server.posts if self.command == "POST" else self.server.pages):
                raise _Refused(404, "there is no such page")
            status, text = 200, respond(path)
        except Exception as error:
            status, message = 500, f"{type(error).__name__}: {error}"
            if isinstance(error, _Refused):
                status, message = error.args
            elif isinstance(error, ValueError):
                status, message = 400, str(error)
            text, kind = json.dumps({"error": message}), "application/json"
        content = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Keep the terminal quiet."""
