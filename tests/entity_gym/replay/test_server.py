"""The server of replay pages answers nobody but its own page, and nothing but its own paths."""

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from entity_gym.replay.server import LARGEST_BODY, TOKEN_HEADER, PageServer, open_in_browser


def double(given: Any) -> Any:
    if not isinstance(given, int):
        raise ValueError("give a whole number")
    return {"doubled": given * 2}


@pytest.fixture
def server() -> Iterator[PageServer]:
    pages = {"/": lambda: "<p>ä page", "/replays.json": lambda: '{"newest": null}', "/broken": lambda: str(1 / 0)}
    with PageServer(pages, {"/double": double}) as made:
        yield made


def ask(server: PageServer, path: str, body: object = None, **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    if body is None:
        connection.request("GET", path, headers=headers)
    else:
        sent = {"Content-Type": "application/json", TOKEN_HEADER: server.token, **headers}
        connection.request("POST", path, body if isinstance(body, str) else json.dumps(body), sent)
    response = connection.getresponse()
    return response.status, response.read().decode()


def test_pages_are_sent_with_their_type(server: PageServer) -> None:
    assert ask(server, "/") == (200, "<p>ä page")
    assert ask(server, "/replays.json?again") == (200, '{"newest": null}')
    for path, kind in (("/", "text/html; charset=utf-8"), ("/replays.json", "application/json; charset=utf-8")):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        connection.request("GET", path)
        headers = connection.getresponse().headers
        assert headers["Content-Type"] == kind
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Access-Control-Allow-Origin"] is None


@pytest.mark.parametrize("path", ["/page.py", "/../pyproject.toml", "//etc/passwd", "/double", "/%2e%2e/", "*"])
def test_there_are_no_other_paths_and_no_files(server: PageServer, path: str) -> None:
    status, text = ask(server, path)
    assert (status, text) == (404, '{"error": "there is no such page"}')


def test_only_this_computer_reaches_it(server: PageServer) -> None:
    assert server.socket.getsockname()[0] == "127.0.0.1"


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "evil.example:{port}", "127.0.0.1.evil:{port}"]
)
@pytest.mark.parametrize("body", [None, 3])
def test_another_name_for_this_computer_is_refused(server: PageServer, host: str, body: object) -> None:
    path = "/" if body is None else "/double"
    assert ask(server, path, body, Host=host.format(port=server.port))[0] == 403
    assert ask(server, path, body, Host=f"localhost:{server.port}")[0] == 200


def test_a_post_needs_the_token_and_json(server: PageServer) -> None:
    assert ask(server, "/double", 21) == (200, '{"doubled": 42}')
    assert ask(server, "/double", 21, **{TOKEN_HEADER: ""})[0] == 403
    assert ask(server, "/double", 21, **{TOKEN_HEADER: server.token[:-1] + "é"})[0] == 403
    assert ask(server, "/double", "{")[0] == 400
    assert ask(server, "/double", "[" * 100_000)[0] == 400
    assert ask(server, "/", 21)[0] == 404


def test_a_large_body_is_not_read(server: PageServer) -> None:
    assert ask(server, "/double", 1, **{"Content-Length": str(LARGEST_BODY + 1)})[0] == 413
    assert ask(server, "/double", 1, **{"Content-Length": "9" * 50})[0] == 413
    assert ask(server, "/double", 1, **{"Content-Length": "-1"})[0] == 413


def test_exceptions_are_sentences_and_it_goes_on(server: PageServer) -> None:
    assert ask(server, "/double", '"text"') == (400, '{"error": "give a whole number"}')
    assert ask(server, "/broken") == (500, '{"error": "ZeroDivisionError: division by zero"}')
    assert ask(server, "/")[0] == 200


def test_a_silent_client_keeps_nobody_waiting_and_is_hung_up_on(
    server: PageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("entity_gym.replay.server._Handler.timeout", 0.5)
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as silent:
        silent.sendall(b"GET / HT")
        assert ask(server, "/")[0] == 200
        assert silent.recv(100) == b""  # closed


def test_the_port_may_be_chosen_and_a_taken_one_is_named(server: PageServer) -> None:
    with pytest.raises(ValueError, match=f"port {server.port} on 127.0.0.1 cannot be used .*in use"):
        PageServer({}, port=server.port)
    with pytest.raises(ValueError, match="port 99999 on 127.0.0.1 cannot be used"):
        PageServer({}, port=99999)


def test_after_close_nobody_answers_and_no_thread_is_left() -> None:
    before = threading.active_count()
    server = PageServer({"/": lambda: ""})
    assert ask(server, "/")[0] == 200
    server.close()
    server.close()
    with pytest.raises(ConnectionRefusedError):
        ask(server, "/")
    assert threading.active_count() == before


# --- Opening a page in the browser


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, []),
        ({"DISPLAY": ":0"}, ["a page"]),
        ({"WAYLAND_DISPLAY": "wayland-0"}, ["a page"]),
        ({"BROWSER": "w3m"}, ["a page"]),
    ],
)
def test_a_page_is_opened_only_where_it_can_be_seen(
    variables: dict[str, str], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    open_in_browser("a page").join()
    assert opened == expected


def test_a_browser_that_stays_open_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = threading.Event()
    monkeypatch.setattr("webbrowser.open", lambda address: closed.wait())
    monkeypatch.setenv("DISPLAY", ":0")
    thread = open_in_browser("a page")
    assert thread.is_alive() and thread.daemon
    closed.set()
    thread.join()
