"""Opening a page in the browser."""

import threading

import pytest

from entity_gym.replay.opening import open_in_browser


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
