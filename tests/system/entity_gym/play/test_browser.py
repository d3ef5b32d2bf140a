"""Playing by hand in the browser: what a person chooses on the page is what the world is told."""

import json

import pytest

from tests.chromium import CHROMIUM, NO_CHROMIUM, Browser, Page, click_entity, settle, texts
from tests.entity_gym.play.served import Command
from tests.entity_gym.play.workshop import NOBODY

WORKSHOP = "tests.entity_gym.play.workshop:Workshop"
DEPOT = "tests.entity_gym.play.workshop:Depot"


def text(page: Page, selector: str) -> str:
    found: str = page.evaluate(f"document.querySelector({json.dumps(selector)}).textContent")
    return found


def choose(page: Page, name: str) -> None:
    """Click on a choice in the list of decisions."""
    find = f"[...document.querySelectorAll('#decisions li button')].find((b) => b.textContent === {json.dumps(name)})"
    page.click(*page.middle_of(find))
    settle(page)


def fill(page: Page, label: str, value: str) -> None:
    find = f"[...document.querySelectorAll('#decisions input[type=number]')].find((i) => i.ariaLabel === '{label}')"
    page.click(*page.middle_of(find))
    page.evaluate("document.activeElement.select()")
    for character in value:
        page.key(character)
    settle(page)


def told(page: Page) -> list[float]:
    """Return what the world says it was told."""
    found: list[float] = page.evaluate("replay.entities().at(-1).values")
    return found


def wait_for_step(page: Page, step: int) -> None:
    page.wait_for(f"replay.state.step === {step}")
    settle(page)


@pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)
def test_a_person_plays_an_episode_takes_steps_back_and_ends_the_game() -> None:
    with Command("entity_gym.play", WORKSHOP) as command, Browser() as browser:
        assert command.said[0] == "seed 5\n"
        page = browser.open(command.url)
        page.wait_for("window.replay?.drawing.count > 0")
        a_person_chooses_for_every_actor_and_the_world_is_told(page)
        the_rest_may_be_random_and_the_way_back_is_open(page)
        # A page that is loaded again shows the game as it stands.
        page.go(command.url)
        page.wait_for("window.replay?.drawing.count > 0")
        assert page.evaluate("replay.state.replay.episodes.map(({ steps }) => steps.length)") == [4]
        assert page.errors == []
        assert command.end() == (130, "")
        page.click_on("#undo")
        page.wait_for("document.getElementById('turn-text').textContent.includes('its command has ended')")


def a_person_chooses_for_every_actor_and_the_world_is_told(page: Page) -> None:
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
    settle(page)
    page.evaluate("replay.select(3)")
    settle(page)
    assert texts(page, "#decisions li.taken bdi") == [
        "right",
        "Ball b1",
    ]
    assert "over" in text(page, "#turn-text")


def the_rest_may_be_random_and_the_way_back_is_open(page: Page) -> None:
    page.click_on("#restart")
    page.wait_for("replay.state.replay.episodes[0].steps.length === 1")
    settle(page)
    choose(page, "left")
    click_entity(page, 4, shift=True)  # shift: selects, though a robot could be meant
    choose(page, "jump")
    for step in (1, 2):
        page.click_on("#random-rest")
        settle(page)
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
        settle(page)
        page.click_on("#take-step")
        wait_for_step(page, step)
    assert text(page, "#turn-text") == "The episode has ended with a reward of 6."
    assert "bells7" in text(page, "#moment")
    assert text(page, "#take-step") == "Next episode"
    page.click_on("#take-step")
    page.wait_for("replay.state.episode === 1")
    settle(page)
    assert told(page) == [0] * 7
    page.click_on("#random-rest")
    settle(page)
    page.click_on("#take-step")
    wait_for_step(page, 1)
    page.click_on("#restart")
    wait_for_step(page, 0)
    assert page.evaluate("[replay.state.episode, replay.state.replay.episodes.length]") == [1, 2]
    page.key("u")  # back into the first episode
    page.wait_for("replay.state.episode === 0 && replay.state.step === 3")


def marks(page: Page) -> list[str]:
    found: list[str] = page.evaluate("[...document.querySelectorAll('#decisions .mark')].map((e) => e.textContent)")
    return found


@pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)
def test_a_person_puts_entities_into_sets_by_clicks_in_their_order() -> None:
    with Command("entity_gym.play", DEPOT) as command, Browser() as browser:
        page = browser.open(command.url)
        page.wait_for("window.replay?.drawing.count > 0")
        # The third robot has no choice. The first one is selected.
        assert text(page, "#turn-text").startswith("2 decisions are left.")
        for ball, expected in ((1, ["", "1"]), (0, ["2", "1"]), (1, ["1", ""]), (1, ["1", "2"])):
            click_entity(page, ball)
            assert marks(page) == [*expected, "", ""]
        assert texts(page, "#decisions li button:disabled") == ["Ball b2"]
        choose(page, "no more")
        assert page.evaluate("replay.state.selected") == '["Robot","r1"]'
        assert texts(page, "#decisions li button:disabled") == ["no more"], "it paints at least one"
        page.key("2")
        settle(page)
        assert text(page, "#turn-text") == "Everybody has decided."
        choose(page, "Ball b0")
        assert marks(page) == ["✓", "", "✓", ""]
        page.key("Enter")
        wait_for_step(page, 1)
        assert told(page) == [0, 1, 1, 0, 1]
        # An empty set is complete at once, and a random one is as large as it may be.
        page.evaluate("replay.select(3)")
        settle(page)
        choose(page, "no more")
        page.click_on("#random-rest")
        settle(page)
        page.key("Enter")
        wait_for_step(page, 2)
        assert told(page)[:2] == [NOBODY, NOBODY] and 1 <= sum(told(page)[2:]) <= 3
        page.click_on("#undo")
        wait_for_step(page, 1)
        assert told(page) == [0, 1, 1, 0, 1]
        assert page.errors == []
