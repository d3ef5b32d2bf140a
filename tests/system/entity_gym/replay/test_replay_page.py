"""The page of replays in a headless Chromium: what it shows is what the data says."""

import base64
import html
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from entity_gym.replay.build import build_replay
from entity_gym.replay.page import page_html, read_page, to_json
from entity_gym.replay.server import PageServer
from tests import replays
from tests.chromium import CHROMIUM, NO_CHROMIUM, Browser, Page, click_entity, settle, texts

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)

READY = "window.replay?.drawing.count > 0"
MESSAGE = "(() => { const m = document.getElementById('message'); return m.hidden ? '' : m.textContent; })()"
Show = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as made:
        yield made


@pytest.fixture
def show(browser: Browser, tmp_path: Path) -> Iterator[Show]:
    """Writes a replay to a file and opens it. At the end, no page may have said anything in its console."""
    pages: list[Page] = []

    def show(replay: Any, moment: str = "", ready: str = READY, **options: Any) -> Page:
        path = tmp_path / f"replay-{len(pages)}.html"
        path.write_text(replay if isinstance(replay, str) else page_html(replay), encoding="utf-8")
        page = browser.open(path.as_uri() + moment, **options)
        pages.append(page)
        page.wait_for(ready)
        return page

    yield show
    errors = [error for page in pages for error in page.errors]
    for page in pages:
        page.close()
    assert errors == []


def choose(page: Page, name: str, value: str) -> None:
    """Choose a value in a list."""
    page.evaluate(f"document.getElementById('{name}').value = '{value}'")
    page.evaluate(f"document.getElementById('{name}').dispatchEvent(new Event('change'))")


def bars(page: Page, selector: str) -> list[float]:
    """Return the lengths of bars, from 0 to 1."""
    widths: list[str] = page.evaluate(f"[...document.querySelectorAll('{selector} .fill')].map((e) => e.style.width)")
    return [float(width.removesuffix("%")) / 100 for width in widths]


def view_of(replay: Any, step: int = 0, episode: int = 0, player: int = 0) -> Any:
    return replay["episodes"][episode]["steps"][step]["views"][player]


def decoded(text: str) -> Any:
    return np.frombuffer(base64.b64decode(text), dtype="<u2")


# --- The world


@pytest.mark.parametrize("kind", replays.KINDS)
@pytest.mark.parametrize("width", [1200, 400])
def test_every_kind_opens_and_fits_into_the_window(show: Show, kind: str, width: int) -> None:
    page = show(replays.KINDS[kind](), width=width)
    assert page.evaluate(MESSAGE) == ""
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def colours(page: Page) -> int:
    """Return how many different colours the picture has at the places of its entities."""
    found: int = page.evaluate(
        "(() => { const c = document.getElementById('world');"
        "const { data } = c.getContext('2d').getImageData(0, 0, c.width, c.height);"
        "const at = ([x, y]) => data.slice(4 * (Math.round(y + 6) * c.width + Math.round(x + 6))).slice(0, 3).join();"
        "return new Set(replay.entities().map(({number}) => replay.place(number)).filter(Boolean).map(at)).size; })()"
    )
    return found


def test_entities_are_drawn_where_the_hints_say(show: Show) -> None:
    page = show(replays.grid())
    (x0, y0), (x1, y1) = page.evaluate("[replay.place(4), replay.place(5)]")  # robots at (0, 0) and (4, 3), y upwards
    mine_x, mine_y = page.evaluate("replay.place(0)")  # at (1, 1)
    cell = mine_x - x0
    assert cell > 20
    assert y0 - mine_y == pytest.approx(cell)
    assert (x1 - x0, y0 - y1) == pytest.approx((4 * cell, 3 * cell))
    assert page.evaluate("replay.place(6)") is None  # the cannon is a card
    assert texts(page, ".card h2") == ["Cannon"]
    assert texts(page, ".card tbody tr th") == ["Cannon 0ready in 0"]
    assert colours(page) >= 3


def test_without_hints_x_and_y_are_places_and_bounds_hold_the_whole_episode(show: Show) -> None:
    replay = replays.plane()
    page = show(replay)
    first = page.evaluate("replay.place(0)")
    width, height = page.evaluate(
        "(() => { const c = document.getElementById('world'); return [c.clientWidth, c.clientHeight]; })()"
    )
    for step in range(0, 61, 10):
        page.evaluate(f"replay.go(0, {step})")
        settle(page)
        assert page.evaluate("replay.place(0)") == first  # goals stand still, and so does the picture
        places = page.evaluate("replay.entities().map(({number}) => replay.place(number))")
        assert len(places) == 7
        assert all(0 <= x <= width and 0 <= y <= height for x, y in places)
    assert texts(page, ".card h2") == []


def test_a_hidden_entity_is_marked_and_may_be_switched_off(show: Show) -> None:
    page = show(replays.grid())
    assert page.evaluate("replay.place(3)") is not None
    click_entity(page, 3)
    assert "Hidden from the policy" in texts(page, "#selected-note")[0]
    (switch,) = [i for i, text in enumerate(texts(page, "#legend label")) if "hidden" in text]
    page.click(*page.middle_of(f"document.querySelectorAll('#legend label')[{switch}]"))
    settle(page)
    assert page.evaluate("replay.place(3)") is None
    assert page.evaluate("replay.place(2)") is not None


def test_an_entity_tells_how_much_of_its_memory_has_changed(show: Show) -> None:
    replay = replays.grid()
    view = replay["episodes"][0]["steps"][0]["views"][0]
    count = sum(map(len, view["features"].values()))
    view["memory"] = [0.25, None, 1.0, *[None] * (count - 3)]
    page = show(replay)
    told = {0: "Memory changed by 25%.", 1: "", 2: "Memory changed by 100%."}
    for number, text in told.items():
        click_entity(page, number)
        assert texts(page, "#selected-note") == [text]
    assert texts(page, "#tooltip")[0].endswith("Memory changed by 100%."), "the pointer is still over it"


def test_types_without_a_place_are_tables(show: Show) -> None:
    replay = replays.cards()
    page = show(replay)
    assert page.evaluate("document.getElementById('world-box').hidden")
    assert texts(page, ".card h2") == ["Cherry", "Player", "world"]
    rows = texts(page, ".card:first-child tbody td.number")
    qualities = [row[0] for row in view_of(replay)["features"]["Cherry"]]
    assert [float(text.replace("−", "-")) for text in rows] == pytest.approx(qualities, rel=1e-3)
    page.click(*page.middle_of("document.querySelector('.card:first-child tbody button')"))
    settle(page)
    assert page.evaluate("replay.state.selected") == '["Cherry",0]'


def test_two_players_see_what_they_see(show: Show) -> None:
    replay = replays.snakes()
    page = show(replay)
    assert texts(page, "#player option") == []  # options of a closed list are not laid out
    assert page.evaluate("[...document.getElementById('player').options].map((o) => o.text)") == ["left", "right"]
    page.evaluate("replay.go(0, 3)")
    for player, name in enumerate(("left", "right")):
        choose(page, "player", str(player))
        settle(page)
        view = view_of(replay, 3, player=player)
        assert page.evaluate("replay.entities().map(({values}) => values)") == [
            *view["features"]["Head"],
            *view["features"]["Body"],
            *view["features"]["Food"],
        ]
        assert page.evaluate(f"replay.probabilities({player}).Move") == view["actions"]["Move"]["probs"][0]
        assert texts(page, "#moment div")[0] == f"Reward{'1' if name == 'left' else '−1'}"
        assert texts(page, "#moment div")[2] == f"Expected from here{'−0.5' if name == 'left' else '0.5'}"


# --- Decisions


def test_a_click_on_an_actor_shows_its_probabilities(show: Show) -> None:
    replay = replays.grid()
    page = show(replay, "#step=5")
    for actor in (4, 5):
        click_entity(page, actor)
        decisions = view_of(replay, 5)["actions"]
        expected = {name: decision["probs"][decision["actors"].index(actor)] for name, decision in decisions.items()}
        assert page.evaluate(f"replay.probabilities({actor})") == expected
        drawn = bars(page, "#decisions .choice")
        assert drawn == pytest.approx([*expected["Move"], *expected["Fire"]], abs=1e-4)
        assert (sum(drawn[:5]), sum(drawn[5:])) == pytest.approx((1, 1), abs=1e-3)
        assert texts(page, "#decisions h3 bdi") == ["Move", "Fire"]
        names = texts(page, "#decisions li bdi")
        assert names == [*replays.MOVES, "Mine 0", "Mine 1", "Mine 2", "Mine 3", "Robot A", "Robot B", "nobody"]
        taken = texts(page, "#decisions li.taken bdi")
        row = actor - 4
        assert taken == [replays.MOVES[decisions["Move"]["chosen"][row]], names[5 + decisions["Fire"]["chosen"][row]]]
        struck = texts(page, "#decisions li.closed bdi")
        assert struck == [
            name for name, bit in zip(replays.MOVES, decisions["Move"]["mask"][row], strict=True) if not bit
        ]
        assert f"entropy {decisions['Move']['entropy'][row]:.3g}" in texts(page, "#decisions h3")[0]


def test_sets_show_what_is_in_them_and_ordered_ones_in_which_place(show: Show) -> None:
    page = show(replays.sets())
    click_entity(page, 4)
    boxes = ["Box 0", "Box 1", "Box 2", "Box 3"]
    assert texts(page, "#decisions li bdi") == [*boxes, "no more", *boxes]
    assert page.evaluate("[...document.querySelectorAll('#decisions .mark')].map((e) => e.textContent)") == [
        *["2", "", "1", "", "✓"],
        *["", "✓", "", ""],
    ]
    expected = [0.6, 0.05, 0.7, 0.1, 0.85, 0.2, 0.9, 0.3, 0.25]
    assert bars(page, "#decisions .choice") == pytest.approx(expected, abs=1e-4)
    # The painter takes the first box alone; the fourth, which it leaves in step 1, was all but certain.
    page.evaluate("replay.go(0, 1)")
    click_entity(page, 5)
    assert texts(page, "#decisions li.taken bdi") == ["Box 0"] and texts(page, "#decisions li.closed bdi") == ["Box 1"]
    page.evaluate("replay.go(0, 0)")
    page.key("s")
    assert place(page) == (0, 1)
    title = page.evaluate("document.getElementById('to-surprise').title")
    assert title == "Step 1: Painter 0 took a choice of Paint that had 2% (s)"


def test_numbers_are_shown_with_their_density(show: Show) -> None:
    replay = replays.plane()
    page = show(replay)
    drive = view_of(replay)["actions"]["Drive"]
    assert texts(page, "#decisions li bdi") == ["turn", "speed"]
    shown = [float(text.replace("−", "-")) for text in texts(page, "#decisions li strong")]
    assert shown == pytest.approx(drive["chosen"][0], rel=1e-3)
    inked = (
        "[...document.querySelectorAll('.density')].map((c) => "
        "c.getContext('2d').getImageData(0, 0, c.width, c.height).data.filter((v, i) => i % 4 == 3 && v > 0).length)"
    )
    curve, bounded = page.evaluate(inked)
    assert 300 < curve < bounded  # outside of the bounds it is shaded


def test_without_a_network_the_choices_taken_are_shown(show: Show) -> None:
    replay = replays.grid()
    replay["network"] = None
    for episode in replay["episodes"]:
        for step in episode["steps"]:
            view = step["views"][0]
            view["value"] = view["attention"] = None
            for decision in view["actions"].values():
                decision["probs"] = None
                decision.pop("entropy")
    page = show(replay)
    assert len(texts(page, "#decisions li.taken bdi")) == 2
    assert texts(page, "#decisions .amount") == []
    assert texts(page, "#attention-section") == []
    assert [text.split()[0] for text in texts(page, ".chart-box p")] == ["Reward"]
    assert texts(page, "#features tr")[0] == "featurevalue"


# --- Attention


def test_attention_weights_are_those_of_the_data(show: Show) -> None:
    replay = replays.grid()
    page = show(replay, "#episode=2&step=3")
    weights = decoded(view_of(replay, 3, 1)["attention"]["dense"]).reshape(2, 2, 7, 7) / 65535
    for entity in range(7):
        for layer in (0, 1):
            for head in (0, 1):
                seen = page.evaluate(f"replay.attention({entity}, {layer}, {head})")
                np.testing.assert_allclose(seen, weights[layer, head, entity], atol=1e-9)
        np.testing.assert_allclose(
            page.evaluate(f"replay.attention({entity})"), weights.mean((0, 1))[entity], atol=1e-9
        )
        np.testing.assert_allclose(
            page.evaluate(f"replay.attention({entity}, 1)"), weights[1].mean(0)[entity], atol=1e-9
        )


def test_the_largest_weights_of_large_frames(show: Show) -> None:
    replay = replays.crowd()
    attention = view_of(replay)["attention"]
    page = show(replay)
    indices, kept = (decoded(attention[key]).reshape(2, 2, 80, 16) for key in ("indices", "weights"))
    expected = np.zeros((2, 2, 80, 80))
    np.put_along_axis(expected, indices.astype(int), kept / 65535, axis=-1)
    for entity in (0, 79):
        np.testing.assert_allclose(
            page.evaluate(f"replay.attention({entity}, 1, 0)"), expected[1, 0, entity], atol=1e-9
        )
        np.testing.assert_allclose(
            page.evaluate(f"replay.attention({entity})"), expected.mean((0, 1))[entity], atol=1e-9
        )


# --- Features


def test_features_are_shown(show: Show) -> None:
    page = show(replays.grid())
    click_entity(page, 2)  # a mine at (6, 2)
    assert texts(page, "#features tr") == ["featurevalue", "x6", "y2"]


# --- The timeline


def place(page: Page) -> tuple[int, int]:
    """Return the episode and the step that are shown, from 0."""
    settle(page)
    episode, step = page.evaluate("[replay.state.episode, replay.state.step]")
    assert page.evaluate("document.getElementById('scrub').value") == str(step)
    assert texts(page, "#place")[0].startswith(f"step {step} / ")
    return episode, step


def test_keys_move_through_the_episodes(show: Show) -> None:
    page = show(replays.grid())
    for key, expected in [
        ("ArrowRight", (0, 1)), ("ArrowRight", (0, 2)), ("ArrowLeft", (0, 1)), ("End", (0, 12)), ("ArrowRight", (0, 12)),
        ("n", (1, 0)), ("n", (2, 0)), ("n", (2, 12)), ("p", (2, 0)), ("p", (1, 0)), ("End", (1, 12)), ("Home", (1, 0)),
    ]:  # fmt: skip
        page.key(key)
        assert place(page) == expected, key
    page.key("+")
    assert page.evaluate("replay.state.speed") == 8
    page.key("-")
    page.key("-")
    assert page.evaluate("[replay.state.speed, document.getElementById('speed').value]") == [2, "2"]
    page.key("?")
    assert "play or pause" in texts(page, "#keys")[0]
    page.key("Escape")
    page.wait_for("!document.getElementById('keys').open")
    page.key("Escape")
    settle(page)
    assert page.evaluate("replay.state.selected") is None


def test_space_plays_through_the_episodes_and_stops_at_the_end(show: Show) -> None:
    page = show(replays.grid(num_episodes=2))
    choose(page, "speed", "60")
    page.key(" ")
    page.wait_for("replay.state.playing && replay.state.step > 2")
    assert page.evaluate("document.getElementById('play').getAttribute('aria-label')") == "Pause"
    page.wait_for("!replay.state.playing")
    assert place(page) == (1, 12)
    page.click_on("#play")  # begins anew
    page.wait_for("replay.state.playing && replay.state.episode == 0")
    page.key("ArrowRight")
    assert page.evaluate("replay.state.playing") is False


def test_buttons_jump_to_the_end_the_reward_and_the_surprise(show: Show) -> None:
    replay = replays.grid()
    steps = replay["episodes"][0]["steps"]
    for step in steps:
        step["reward"] = step["rewards"][0] = 0.25
        step["views"][0]["value"] = None
        for decision in step["views"][0]["actions"].values():
            decision["chosen"] = [int(np.argmax(row)) for row in decision["probs"]]
    steps[4]["reward"] = steps[4]["rewards"][0] = -2.0
    steps[7]["views"][0]["actions"]["Fire"].update(
        chosen=[0, 0, 6], probs=[[0.9] * 7, [0.9] * 7, [0.2, 0.1, 0.1, 0.1, 0.2, 0.295, 0.005]]
    )
    page = show(replay)
    for button, expected in (("to-end", 12), ("to-reward", 4), ("to-surprise", 7)):
        page.click_on(f"#{button}")
        assert place(page) == (0, expected)
    title = "document.getElementById('{}').title"
    assert page.evaluate(title.format("to-reward")) == "Step 4: reward −2 (r)"
    assert page.evaluate(title.format("to-surprise")) == "Step 7: Cannon 0 took a choice of Fire that had 0.5% (s)"
    page.key("r")
    assert place(page) == (0, 4)


def test_a_link_leads_to_a_moment_and_follows_it(show: Show) -> None:
    page = show(replays.snakes(), "#episode=1&step=4&player=2")
    assert place(page) == (0, 4)
    assert page.evaluate("[replay.state.player, document.getElementById('player').value]") == [1, "1"]
    page = show(replays.grid(), "#episode=3&step=7")
    assert place(page) == (2, 7)
    page.key("ArrowRight")
    page.wait_for("location.hash == '#episode=3&step=8'")
    page.evaluate("location.hash = '#episode=1&step=2'")
    page.wait_for("replay.state.episode == 0 && replay.state.step == 2")
    for odd in ("#episode=99&step=99", "#episode=-1&step=x", "#episode=NaN", "#step=", "#%"):
        page.evaluate(f"location.hash = {json.dumps(odd)}")
        settle(page)
        episode, step = place(page)
        assert 0 <= episode <= 2 and 0 <= step <= 12
    assert page.evaluate(MESSAGE) == ""


# --- The file


@pytest.mark.parametrize("kind", ["cards", "plane"])
def test_a_last_step_without_features_is_empty(show: Show, kind: str) -> None:
    """Recordings do not hold the last observation."""
    replay = replays.KINDS[kind]()
    drawing = {"types": {"__global__": {"position": ["turn", "weather"]}}} if kind == "cards" else None
    replay["episodes"].append({**replay["episodes"][0], "drawing": drawing})
    last = replay["episodes"][0]["steps"][-1]
    last["views"] = [{"features": {}, "value": None, "actions": {}, "attention": None}]
    page = show(replay)
    for episode in (0, 1):
        page.evaluate(f"replay.go({episode}, 99)")
        settle(page)
        assert page.evaluate(MESSAGE) == ""
        assert texts(page, ".card td.number") == (["–", "–"] if kind == "cards" and episode == 0 else [])
        assert page.evaluate("replay.entities().map(({number}) => replay.place(number)).filter(Boolean)") == []


def test_hostile_names_are_text(show: Show) -> None:
    replay = replays.hostile()
    replay["episodes"] = replay["episodes"] * 2
    text = page_html(replay)
    assert len(re.findall("<script", text)) == 2 and len(re.findall("</script>", text)) == 2
    assert read_page(text)["entities"] == replay["entities"]
    page = show(text)
    assert page.evaluate("[typeof window.hacked, document.images.length, document.title]") == [
        "undefined",
        0,
        replays.HOSTILE[0],
    ]
    assert texts(page, "#title") == [replays.HOSTILE[0]]
    assert page.evaluate("replay.entities().map(({type}) => type)") == [*replays.HOSTILE, "__global__"]
    assert [text.removesuffix("1") for text in texts(page, "#legend bdi")][5:9] == [
        "__proto__",
        "constructor",
        "7",
        "3",
    ]
    names = texts(page, "#decisions li bdi")
    assert names[:3] == replays.HOSTILE[:3] and names[4] == replays.HOSTILE[4]
    assert names[3].startswith("long long") and len(names[3]) <= 200
    assert page.evaluate("getComputedStyle(document.querySelector('#decisions li bdi')).unicodeBidi") == "isolate"
    heights = page.evaluate(
        "[...document.querySelectorAll('bdi')].filter((e) => e.checkVisibility()).map((e) => e.offsetHeight)"
    )
    assert max(heights) < 40  # no name takes a second line
    page.evaluate("replay.state.player = 1")
    for number in range(11):
        page.evaluate(f"replay.select({number})")
        settle(page)
    assert page.evaluate(MESSAGE) == ""


def test_nothing_else_may_run_or_be_asked_for(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "replay.html"
    text = page_html(replays.grid())
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    rules = dict(rule.split(" ", 1) for rule in html.unescape(policy[1]).split("; "))
    assert rules["default-src"] == "'none'"
    assert set(rules) == {"default-src", "script-src", "style-src", "img-src", "base-uri", "form-action"}
    assert "unsafe" not in policy[1] and rules["img-src"] == "data:"
    path.write_text(text, encoding="utf-8")
    page = browser.open(path.as_uri())
    page.wait_for(READY)
    assert page.errors == []
    page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.hacked = 1'}))"
    )
    assert page.evaluate("typeof window.hacked") == "undefined"
    assert page.evaluate("fetch('http://127.0.0.1:9/').then(() => 'asked', () => 'refused')") == "refused"
    assert page.errors != []
    page.close()


def broken(change: Callable[[Any], Any]) -> str:
    replay = replays.grid(1)
    return page_html(change(replay) or replay)


def damage_features(replay: Any) -> None:
    view_of(replay, 5)["features"]["Robot"][1] = [1]


def damage_actors(replay: Any) -> None:
    view_of(replay, 5)["actions"]["Fire"]["actors"] = [4, 5, 70]


def damage_sets(replay: Any) -> None:
    replay["actions"]["Fire"]["kind"] = "select_entities"


def damage_memory(replay: Any) -> None:
    view_of(replay, 5)["memory"] = [0.5, 1.5]


def damage_attention(replay: Any) -> None:
    view_of(replay)["attention"]["dense"] = view_of(replay)["attention"]["dense"][:40]


@pytest.mark.parametrize(
    ("damaged", "sentence"),
    [
        (lambda: broken(lambda r: {**r, "version": 2}), "This replay has version 2, and this page reads version 1"),
        (lambda: broken(lambda r: {**r, "episodes": []}), "This replay has no episodes."),
        (lambda: broken(lambda r: {**r, "actions": {}}), "This replay is damaged: step 0 of episode 1 has an unknown action."),
        (lambda: broken(damage_features), "This replay is damaged: features of step 5 of episode 1 do not fit their type."),
        (lambda: broken(damage_actors), "This replay is damaged: actors of step 5 of episode 1 are no entities of it."),
        (lambda: broken(damage_sets), "This replay is damaged: choices of step 0 of episode 1 do not fit its actors."),
        (lambda: broken(damage_memory), "This replay is damaged: memory of step 5 of episode 1 does not fit."),
        (lambda: broken(damage_attention), "This replay is damaged: attention weights do not fit the network."),
        (lambda: re.sub(r'(id="replay">.{9000})[^<]*', r"\1", page_html(replays.grid(40))), "its data cannot be decompressed"),
    ],
)  # fmt: skip
def test_damage_is_a_sentence(show: Show, damaged: Callable[[], str], sentence: str) -> None:
    page = show(damaged(), ready=f"!['', 'Reading the replay…'].includes({MESSAGE})")
    assert sentence in page.evaluate(MESSAGE)
    assert page.evaluate("document.getElementById('page').hidden")


# --- Following a training


def test_a_live_page_shows_each_new_replay_by_itself(browser: Browser) -> None:
    newest: dict[str, Any] = {"newest": None}
    pages: dict[str, Callable[[], str]] = {"/replays.json": lambda: json.dumps(newest)}
    with PageServer(pages) as server:
        pages["/"] = lambda: page_html(build_replay(title="Training of World"), "live", server.token)
        page = browser.open(server.url)
        page.wait_for(f"{MESSAGE} == 'Waiting for the first evaluation…'")
        assert page.evaluate("document.title") == "Training of World"
        for step, replay in ((1000, replays.grid()), (2000, replays.plane())):
            pages[f"/step-{step}.json"] = lambda replay=replay: to_json(replay)  # type: ignore[misc]
            newest.update(newest=f"step-{step}", step=step)
            before = time.monotonic()
            page.wait_for(f"document.getElementById('live-text').textContent == 'Evaluation at step {step:,}.'", 20)
            assert time.monotonic() - before < 5
            settle(page)
            assert page.evaluate(MESSAGE) == ""
            assert page.evaluate("replay.state.replay.episodes.length") == len(replay["episodes"])
        assert page.errors == []
        page.click_on("#follow")
        newest.update(newest="step-3000", step=3000)
        time.sleep(2.5)
        assert texts(page, "#live-text") == ["Evaluation at step 2,000."]
        page.click_on("#follow")
        page.wait_for(
            "document.getElementById('live-text').textContent.startsWith('The command that serves this page does not answer')",
            20,
        )
    assert page.evaluate("replay.state.replay.episodes.length") == 1  # what was shown is still there
    page.close()
