"""Playing by hand in the browser: what a person chooses on the page is what the world is told."""

import http.client
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from entity_gym.play.browser import _Game
from entity_gym.play.session import Session
from entity_gym.replay.server import TOKEN_HEADER
from tests.chromium import CHROMIUM, NO_CHROMIUM, Browser, Page
from tests.entity_gym.play.served import Command
from tests.entity_gym.play.workshop import NOBODY, Workshop

WORKSHOP = "tests.entity_gym.play.workshop:Workshop"
SETTLED = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)


@pytest.fixture
def start() -> Iterator[Callable[..., Command]]:
    commands: list[Command] = []

    def start(*arguments: str) -> Command:
        commands.append(Command("entity_gym.play", *arguments))
        return commands[-1]

    yield start
    for command in commands:
        command.end()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as made:
        yield made


def opened(browser: Browser, command: Command) -> Page:
    page = browser.open(command.url)
    page.wait_for("window.replay?.drawing.count > 0")
    return page


def text(page: Page, selector: str) -> str:
    found: str = page.evaluate(f"document.querySelector({json.dumps(selector)}).textContent")
    return found


def texts(page: Page, selector: str) -> list[str]:
    found: list[str] = page.evaluate(f"[...document.querySelectorAll('{selector}')].map((each) => each.textContent)")
    return found


def choose(page: Page, name: str) -> None:
    """Click on a choice in the list of decisions."""
    find = f"[...document.querySelectorAll('#decisions li button')].find((b) => b.textContent === {json.dumps(name)})"
    page.click(*page.middle_of(find))
    page.evaluate(SETTLED)


def click_entity(page: Page, number: int, *, shift: bool = False) -> None:
    page.evaluate("document.getElementById('world').scrollIntoView({block: 'center'})")
    page.evaluate(SETTLED)
    box = page.evaluate("document.getElementById('world').getBoundingClientRect().toJSON()")
    x, y = page.evaluate(f"replay.place({number})")
    page.click(box["x"] + x, box["y"] + y, shift=shift)
    page.evaluate(SETTLED)


def fill(page: Page, label: str, value: str) -> None:
    find = f"[...document.querySelectorAll('#decisions input[type=number]')].find((i) => i.ariaLabel === '{label}')"
    page.click(*page.middle_of(find))
    page.evaluate("document.activeElement.select()")
    for character in value:
        page.key(character)
    page.evaluate(SETTLED)


def told(page: Page) -> list[float]:
    """Return what the world says it was told."""
    found: list[float] = page.evaluate("replay.entities().at(-1).values")
    return found


def wait_for_step(page: Page, step: int) -> None:
    page.wait_for(f"replay.state.step === {step}")
    page.evaluate(SETTLED)


@needs_chromium
def test_a_person_chooses_for_every_actor_and_the_world_is_told(
    browser: Browser, start: Callable[..., Command]
) -> None:
    command = start(WORKSHOP)
    assert command.said[0] == "seed 5\n"
    page = opened(browser, command)
    assert page.evaluate("document.title") == "Workshop: your game"
    assert text(page, "#turn-text").startswith("6 decisions are left.")
    assert page.evaluate("document.getElementById('take-step').disabled")
    # The first robot is selected. Its jump is closed, and so is the third ball.
    assert texts(page, "#decisions li button:disabled") == ["jump", "Ball b2"]
    choose(page, "right")
    fill(page, "turn", "-2.5")
    fill(page, "force", "3")  # out of bounds: not yet decided
    assert text(page, "#turn-text").startswith("5 decisions are left.")
    fill(page, "force", "0.25")
    assert text(page, "#turn-text").startswith("4 decisions are left.")
    click_entity(page, 1)  # the second ball is what the robot aims at, and the next robot is selected
    assert page.evaluate("replay.state.selected") == '["Robot","r1"]'
    page.key("1")
    choose(page, "nobody")
    assert page.evaluate("replay.state.selected") == "__global__"
    choose(page, "yes")
    assert text(page, "#turn-text") == "Everybody has decided."
    page.key("Enter")  # steps, although the button of the last choice was clicked
    wait_for_step(page, 1)
    assert told(page) == [2, 1, 1, NOBODY, -2.5, 0.25, 1]
    assert text(page, "#moment div") == "Reward1"
    # What was chosen stands in the step before.
    page.key("ArrowLeft")
    page.evaluate(SETTLED)
    page.evaluate("replay.select(3)")
    page.evaluate(SETTLED)
    assert texts(page, "#decisions li.taken bdi") == [
        "right",
        "Ball b1",
    ]
    assert "over" in text(page, "#turn-text")
    assert page.errors == []
    page.close()
    assert command.end() == (130, "")


@needs_chromium
def test_the_rest_may_be_random_and_the_way_back_is_open(browser: Browser, start: Callable[..., Command]) -> None:
    command = start(WORKSHOP)
    page = opened(browser, command)
    choose(page, "left")
    click_entity(page, 4, shift=True)  # shift: selects, though a robot could be meant
    choose(page, "jump")
    for step in (1, 2):
        page.click_on("#random-rest")
        page.evaluate(SETTLED)
        assert text(page, "#turn-text") == "Everybody has decided."
        page.key("Enter")
        wait_for_step(page, step)
    first = page.evaluate("replay.state.replay.episodes[0].steps[1].views[0].globals")
    assert first[:2] == [0, 1]
    assert first[2] in (NOBODY, 0, 1) and 0 <= first[5] <= 1
    page.click_on("#undo")
    wait_for_step(page, 1)
    assert told(page) == first
    assert page.evaluate("replay.state.replay.episodes[0].steps.length") == 2
    for step in (2, 3):
        page.click_on("#random-rest")
        page.evaluate(SETTLED)
        page.click_on("#take-step")
        wait_for_step(page, step)
    assert text(page, "#turn-text") == "The episode has ended with a reward of 6."
    assert "bells7" in text(page, "#moment")
    assert text(page, "#take-step") == "Next episode"
    page.click_on("#take-step")
    page.wait_for("replay.state.episode === 1")
    page.evaluate(SETTLED)
    assert told(page) == [0] * 7
    page.click_on("#random-rest")
    page.evaluate(SETTLED)
    page.click_on("#take-step")
    wait_for_step(page, 1)
    page.click_on("#restart")
    wait_for_step(page, 0)
    assert page.evaluate("[replay.state.episode, replay.state.replay.episodes.length]") == [1, 2]
    page.key("u")  # back into the first episode
    page.wait_for("replay.state.episode === 0 && replay.state.step === 3")
    # A page that is loaded again shows the game as it stands.
    page.go(command.url)
    page.wait_for("window.replay?.drawing.count > 0")
    assert page.evaluate("replay.state.replay.episodes.map(({ steps }) => steps.length)") == [4]
    assert page.errors == []
    page.close()


@needs_chromium
def test_an_exception_of_the_world_is_shown_and_ends_the_command(
    browser: Browser, start: Callable[..., Command]
) -> None:
    command = start(WORKSHOP, "--set", "breaks_at=1")
    page = opened(browser, command)
    page.click_on("#random-rest")
    page.evaluate(SETTLED)
    page.click_on("#take-step")
    page.wait_for("document.getElementById('turn-text').textContent.includes('the workshop burns')")
    assert command.process.wait(60) == 1
    _, errors = command.end()
    assert errors.startswith("error: ValueError: the workshop burns (tests/entity_gym/play/workshop.py, line")
    page.click_on("#take-step")
    page.wait_for("document.getElementById('turn-text').textContent.includes('its command has ended')")
    page.close()


def test_only_its_own_page_may_play(start: Callable[..., Command]) -> None:
    command = start(WORKSHOP)
    connection = http.client.HTTPConnection("127.0.0.1", command.port, timeout=30)
    connection.request("GET", "/")
    page = connection.getresponse().read().decode()
    token = re.search(r'data-token="([^"]+)"', page)
    assert token is not None and 'data-mode="play"' in page
    for headers, status in (
        ({"Content-Type": "application/json"}, 403),
        ({"Content-Type": "text/plain", TOKEN_HEADER: token[1]}, 415),
        ({"Content-Type": "application/json", TOKEN_HEADER: token[1]}, 400),
    ):
        connection.request("POST", "/act", json.dumps({"actions": {"move": [0]}}), headers)
        answer = connection.getresponse()
        assert answer.status == status, answer.read()
        answer.read()
    assert command.end() == (130, "")


# --- Requests


def game(policy: Any = None, **options: Any) -> _Game:
    return _Game(Session(lambda: Workshop(**options), 0, "Workshop"), {}, policy)
