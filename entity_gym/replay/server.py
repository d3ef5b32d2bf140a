"""A web server for pages on this computer: it listens on 127.0.0.1 only, and answers only the paths that it was given."""

from __future__ import annotations

import hmac
import json
import secrets
import socketserver
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

HOST = "127.0.0.1"
LARGEST_BODY = 1 << 20  # bytes of a POST request
TIMEOUT = 10.0  # seconds to wait for the next bytes of a request
LAST_ANSWERS = 1.0  # seconds in which answers are finished when the server closes
TOKEN_HEADER = "X-Replay-Token"

_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class PageServer:
    """Serves pages and JSON in threads of its own, from its construction until `close`.

    Paths that end in `.json` are sent as JSON, and all others as HTML. Both dictionaries are read at each request, so their
    owner may add paths later. A ValueError that a function raises is sent to the page as `{"error": message}`, status 400.

    Requests are refused if their Host header is not this server (another web page could otherwise reach it by a domain name
    that points to 127.0.0.1). POST requests must also have the content type application/json and the token, which only pages of
    this server know.

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

    def __init__(
        self,
        pages: Mapping[str, Callable[[], str]],
        posts: Mapping[str, Callable[[Any], Any]] | None = None,
        port: int = 0,
    ) -> None:
        self.pages = pages
        self.posts = {} if posts is None else posts
        self._num_answering = 0
        self._answered = threading.Condition()
        self.token = secrets.token_urlsafe(16)
        try:
            self._server = _Server((HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ValueError(
                f"port {port} on {HOST} cannot be used ({reason}); give another one, or 0 for any"
            ) from None
        self._server.owner = self
        self.port: int = self._server.server_address[1]
        self.url = f"http://{HOST}:{self.port}/"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="page server", daemon=True
        )
        self._thread.start()

    def __enter__(self) -> PageServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening, and finish answers. May be called twice."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        with self._answered:
            self._answered.wait_for(lambda: self._num_answering == 0, LAST_ANSWERS)

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Count an answer that `close` waits for."""
        with self._answered:
            self._num_answering += 1
        try:
            yield
        finally:
            with self._answered:
                self._num_answering -= 1
                self._answered.notify_all()


class _Server(ThreadingHTTPServer):
    owner: PageServer
    daemon_threads = True

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # HTTPServer's own looks up a domain name, which may take seconds

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing about connections that the browser has closed."""


class _Refused(Exception):
    """A request with its HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = TIMEOUT
    server_version = "replay"
    sys_version = ""

    def do_GET(self) -> None:
        with self.server.owner.answering():
            self._answer(self._page)

    def do_POST(self) -> None:
        with self.server.owner.answering():
            self._answer(self._post)

    def _page(self) -> tuple[str, str]:
        path = self._path()
        function = self.server.owner.pages.get(path)
        if function is None:
            raise _Refused(404, "there is no such page")
        return function(), "application/json" if path.endswith(".json") else "text/html"

    def _post(self) -> tuple[str, str]:
        function = self.server.owner.posts.get(self._path())
        if function is None:
            raise _Refused(404, "there is no such page")
        if self.headers.get_content_type() != "application/json":
            raise _Refused(415, "the content type must be application/json")
        if not hmac.compare_digest(self.headers.get(TOKEN_HEADER, "").encode(), self.server.owner.token.encode()):
            raise _Refused(403, "the token is missing or wrong; reload the page")
        try:
            given = json.loads(self._body())
        except (ValueError, RecursionError):
            raise _Refused(400, "the request is not JSON") from None
        return json.dumps(function(given)), "application/json"

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            raise _Refused(411, "Content-Length must be a whole number")
        if len(length) > 9 or int(length) > LARGEST_BODY:
            raise _Refused(413, f"a request may have at most {LARGEST_BODY} bytes")
        return self.rfile.read(int(length))

    def _path(self) -> str:
        port = self.server.owner.port
        if self.headers.get("Host") not in (f"{HOST}:{port}", f"localhost:{port}"):
            raise _Refused(403, f"this server is {HOST}:{port}, and no other name")
        return self.path.partition("?")[0]

    def _answer(self, respond: Callable[[], tuple[str, str]]) -> None:
        try:
            text, kind = respond()
            self._send(200, text, kind)
        except _Refused as refused:
            self._send_error(refused.status, str(refused))
        except ValueError as error:
            self._send_error(400, str(error))
        except Exception as error:
            self._send_error(500, f"{type(error).__name__}: {error}")

    def _send_error(self, status: int, message: str) -> None:
        self._send(status, json.dumps({"error": message}), "application/json")

    def _send(self, status: int, text: str, kind: str) -> None:
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
