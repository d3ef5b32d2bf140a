"""A headless Chromium that tests and scripts drive over the DevTools protocol, through a pipe: no port and no other package.

with Browser() as browser:
    page = browser.open(path.as_uri())
    page.wait_for("window.replay?.drawing.count > 0")
    assert page.evaluate("document.title") == "..."
    assert page.errors == []
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
import subprocess
import tempfile
import time
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
NO_CHROMIUM = "needs Chromium: apt-get install chromium"
#: Codes of keys that do more than to type a character.
_KEY_CODES = {"Escape": 27, "Enter": 13, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowRight": 39}
PATIENCE = 60.0  # seconds: other work on the machine may slow the browser down


class Browser:
    """A running Chromium with a profile of its own; as a context, which ends it."""

    def __init__(self) -> None:
        import fcntl  # which Windows lacks

        if CHROMIUM is None:
            raise RuntimeError(NO_CHROMIUM)
        self._profile = tempfile.mkdtemp(prefix="chromium-")
        # Chromium reads commands from file descriptor 3 and writes to 4; numbers above 10 cannot be in the way of either.
        ends = [*os.pipe(), *os.pipe()]
        to_read, self._write, self._read, to_write = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
        for end in ends:
            os.close(end)

        def connect() -> None:
            os.dup2(to_read, 3)
            os.dup2(to_write, 4)

        options = ["--headless=new", "--no-sandbox", "--remote-debugging-pipe", f"--user-data-dir={self._profile}"]
        quiet = ["--no-first-run", "--disable-extensions", "--disable-background-networking", "--disable-dev-shm-usage"]
        self._process = subprocess.Popen(
            [CHROMIUM, *options, *quiet, "--force-color-profile=srgb", "--hide-scrollbars", "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=connect,
            pass_fds=(3, 4),
        )
        os.close(to_read)
        os.close(to_write)
        self._buffer = b""
        self._last_id = 0
        self._answers: dict[int, dict[str, Any]] = {}
        self._pages: dict[str, Page] = {}

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        """End the browser and remove its profile."""
        self._process.kill()
        self._process.wait()
        os.close(self._read)
        os.close(self._write)
        shutil.rmtree(self._profile, ignore_errors=True)

    def open(self, url: str, width: int = 1200, height: int = 900) -> Page:
        """Open a page in a window of its own.

        Args:
            url: of the page.
            width: of the window in pixels.
            height: of the window in pixels.
        """
        target = self.send("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.send("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        page = self._pages[session] = Page(self, session, target)
        for domain in ("Page", "Runtime", "Log"):
            page.send(f"{domain}.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        page.send("Emulation.setDeviceMetricsOverride", size)
        page.go(url)
        return page

    def send(self, method: str, parameters: dict[str, Any] | None = None, session: str | None = None) -> dict[str, Any]:
        """Send a command of the DevTools protocol, and return its result."""
        self._last_id += 1
        message: dict[str, Any] = {"id": self._last_id, "method": method, "params": parameters or {}}
        if session is not None:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        deadline = time.monotonic() + PATIENCE
        while message["id"] not in self._answers:
            self.receive(deadline - time.monotonic())
        answer = self._answers.pop(message["id"])
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def receive(self, seconds: float) -> bool:
        """Wait for messages, at most so long, and hand them to their pages. Returns false if none came in time."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._read, selectors.EVENT_READ)
            if not selector.select(max(seconds, 0)):
                if seconds <= 0:
                    raise TimeoutError(f"Chromium has not answered within {PATIENCE:.0f} s")
                return False
        received = os.read(self._read, 1 << 20)
        if not received:
            raise RuntimeError("Chromium has ended")
        *messages, self._buffer = (self._buffer + received).split(b"\0")
        for text in messages:
            message = json.loads(text)
            if "id" in message:
                self._answers[message["id"]] = message
            elif message.get("sessionId") in self._pages:
                self._pages[message["sessionId"]].note(message["method"], message["params"])
        return True


class Page:
    """A page of a `Browser`.

    Attributes:
        errors: messages of its console that are errors or warnings, and exceptions that nobody caught.
    """

    def __init__(self, browser: Browser, session: str, target: str) -> None:
        self.browser = browser
        self.errors: list[str] = []
        self._session = session
        self._target = target
        self._is_loaded = False

    def send(self, method: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a command of the DevTools protocol to this page."""
        return self.browser.send(method, parameters, self._session)

    def note(self, event: str, parameters: dict[str, Any]) -> None:
        """Take an event of the browser."""
        if event == "Page.loadEventFired":
            self._is_loaded = True
        elif event == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif event == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.errors.append(" ".join(str(each.get("value", each)) for each in parameters["args"]))
        elif event == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.errors.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}")

    def go(self, url: str) -> None:
        """Load another page, and wait until it is loaded."""
        self._is_loaded = False
        self.send("Page.navigate", {"url": url})
        deadline = time.monotonic() + PATIENCE
        while not self._is_loaded:
            self.browser.receive(deadline - time.monotonic())

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression, awaited if it is a promise, as JSON."""
        parameters = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        answer = self.send("Runtime.evaluate", parameters)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise RuntimeError(details.get("exception", {}).get("description", details["text"]))
        return answer["result"].get("value")

    def wait_for(self, expression: str, seconds: float = PATIENCE) -> Any:
        """Wait until a JavaScript expression is true, and return its value.

        Raises:
            TimeoutError: it has not become true in time; with the console's errors.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            value = self.evaluate(expression)
            if value:
                return value
            time.sleep(0.03)
        raise TimeoutError(f"not true after {seconds:g} s: {expression}; console: {self.errors}")

    def click(self, x: float, y: float, *, shift: bool = False) -> None:
        """Click at a place of the window, in pixels."""
        where = {"x": x, "y": y, "button": "left", "clickCount": 1, "modifiers": 8 if shift else 0}
        self.send("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": x, "y": y})
        self.send("Input.dispatchMouseEvent", {"type": "mousePressed", **where})
        self.send("Input.dispatchMouseEvent", {"type": "mouseReleased", **where})

    def click_on(self, selector: str) -> None:
        """Scroll to the first element that the selector finds, and click into its middle."""
        self.click(*self.middle_of(f"document.querySelector({json.dumps(selector)})"))

    def middle_of(self, element: str) -> tuple[float, float]:
        """Scroll to an element, and return its middle in pixels of the window."""
        found = self.evaluate(
            f"(() => {{ const found = {element}; found.scrollIntoView({{block: 'center'}});"
            "return found.getBoundingClientRect().toJSON(); })()"
        )
        return found["x"] + found["width"] / 2, found["y"] + found["height"] / 2

    def key(self, key: str) -> None:
        """Press a key, such as "ArrowLeft", " " or "n"."""
        typed = key if len(key) == 1 else None
        which = {
            "key": key,
            "windowsVirtualKeyCode": _KEY_CODES.get(key, ord(key.upper()) if key.isalnum() and len(key) == 1 else 0),
        }
        self.send("Input.dispatchKeyEvent", {"type": "keyDown", **which, **({"text": typed} if typed else {})})
        self.send("Input.dispatchKeyEvent", {"type": "keyUp", **which})

    def close(self) -> None:
        """Close the page."""
        self.browser.send("Target.closeTarget", {"targetId": self._target})


# --- Pages of replays and of games


def settle(page: Page) -> None:
    """Wait until the page has been drawn again."""
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def texts(page: Page, selector: str) -> list[str]:
    """Return the texts of all elements that are shown."""
    elements = f"[...document.querySelectorAll({json.dumps(selector)})]"
    found: list[str] = page.evaluate(f"{elements}.filter((e) => e.checkVisibility()).map((e) => e.textContent)")
    return found


def click_entity(page: Page, number: int, *, shift: bool = False) -> None:
    """Click on an entity in the picture."""
    page.evaluate("document.getElementById('world').scrollIntoView({block: 'center'})")
    settle(page)
    box = page.evaluate("document.getElementById('world').getBoundingClientRect().toJSON()")
    x, y = page.evaluate(f"replay.place({number})")
    page.click(box["x"] + x, box["y"] + y, shift=shift)
    settle(page)
