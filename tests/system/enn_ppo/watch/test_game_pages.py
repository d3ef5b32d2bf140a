"""Pages with a policy inside, opened from the disk: games are played to the end by clicks; the policy does what torch does."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from enn_ppo import EnvConfig, SelfPlayConfig, TrainConfig, preset
from enn_ppo.checkpoints import Checkpoint, load_checkpoint
from enn_ppo.eval.offline import game_page
from enn_ppo.serve.agent import TrainedPolicy
from enn_ppo.settings.command_line.cli import run_watch
from enn_ppo.settings.schema import to_dict
from enn_ppo.watch import watch
from entity_gym import (
    CategoricalActionMask,
    Observation,
    SelectEntityActionMask,
)
from entity_gym.batch.saving import spaces_to_dict
from entity_gym.envs.multi_snake import MultiSnake
from entity_gym.envs.skirmish import Skirmish
from entity_gym.registry import bind
from tests.chromium import CHROMIUM, NO_CHROMIUM, Browser, Page, click_entity, settle
from tests.enn_ppo.watch.test_watch import trained
from tests.runtime_policies import CLEAR, CLOSE, make_net

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)

SNAKES = {"board_size": 7, "num_snakes": 2, "num_players": 2, "max_snake_length": 4, "max_steps": 30}
#: Draws the same games every time.
SEEDED = "let drawn = 0; Math.random = () => (drawn = (drawn * 16807 + 12345) % 2147483647) / 2147483647;"
ARMIES = {"num_units": 3, "opponent": 0, "width": 12.0, "max_steps": 30}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as made:
        yield made


def untrained(name: str, kwargs: Mapping[str, Any], *, self_play: bool = False) -> Checkpoint:
    """A checkpoint with the preset of a world and drawn weights, in which everything matters."""
    config: TrainConfig = replace(
        preset(name), env=EnvConfig(id=name, kwargs=dict(kwargs)), self_play=SelfPlayConfig(enabled=self_play)
    )
    obs_space, action_space = bind(config.env.id, config.env.kwargs).spaces()
    net = make_net(replace(config.net, backend="reference"), obs_space, action_space, 0)
    spaces = spaces_to_dict(obs_space, action_space)
    weights = net.state_dict()
    return Checkpoint(path=Path("drawn.safetensors"), step=0, policy=weights, config=to_dict(config), spaces=spaces)


def opened(browser: Browser, checkpoint: Checkpoint, folder: Path) -> Page:
    file = folder / "game.html"
    file.write_text(game_page(checkpoint, greedy=True), encoding="utf-8")
    page = browser.open("about:blank", height=1400)
    page.send("Page.addScriptToEvaluateOnNewDocument", {"source": SEEDED})
    page.go(file.as_uri())
    page.wait_for("window.replay?.drawing.count > 0")
    return page


def steps_of(page: Page) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = page.evaluate("replay.state.replay.episodes.at(-1).steps")
    return found


def choose(page: Page, name: str) -> None:
    """Click on a choice of the selected entity."""
    find = f"[...document.querySelectorAll('#decisions li button')].find((b) => b.textContent === {json.dumps(name)})"
    page.click(*page.middle_of(find))
    settle(page)


def click_cell(page: Page, x: float, y: float, *, shift: bool = False) -> None:
    page.evaluate("document.getElementById('world').scrollIntoView({block: 'center'})")
    settle(page)
    box = page.evaluate("document.getElementById('world').getBoundingClientRect().toJSON()")
    across, down = page.evaluate(f"replay.pixels({x}, {y})")
    page.click(box["x"] + across, box["y"] + down, shift=shift)
    settle(page)


def seen(
    view: Mapping[str, Any], checkpoint: Checkpoint, world: Any = None, values: Any = None, player: int = 0
) -> Observation:
    """What the page shows as an observation; of a `world` with players, as one of them sees it."""
    widths = {each["name"]: len(each["features"]) for each in checkpoint.spaces["entities"]}
    rows = {name: np.array(each, np.float32).reshape(-1, widths[name]) for name, each in view["features"].items()}
    ids = {name: [f"{name} {id_}" for id_ in view["ids"][name]] for name in rows}
    entities = [(name, k) for name, each in rows.items() for k in range(len(each))]

    def is_own(entity: int) -> bool:
        name, k = entities[entity]
        return world is None or world.players(values, name, rows[name])[k] == player

    def names(numbers: list[int]) -> list[str]:
        return [ids[name][k] for name, k in map(entities.__getitem__, numbers)]

    actions: dict[str, Any] = {}
    for name, decision in view["actions"].items():
        own = [k for k, actor in enumerate(decision["actors"]) if is_own(actor)]
        if not own:
            continue
        actors, mask = names([decision["actors"][k] for k in own]), None
        actees = names(decision.get("actees", []))
        if "mask" in decision:
            mask = np.array([decision["mask"][k] for k in own], bool)
        if "actees" in decision:
            mask = None if mask is None else mask[:, : len(actees)]
            actions[name] = SelectEntityActionMask(actor_ids=actors, actee_ids=actees, mask=mask)
        else:
            actions[name] = CategoricalActionMask(actor_ids=actors, mask=mask)
    visible = {}
    if hasattr(world, "visible_to"):
        visible = {name: world.visible_to(values, player, name, each) for name, each in rows.items()}
    if world is not None:
        rows = {name: world.seen_by(values, player, name, each) for name, each in rows.items()}
    shown = view.get("globals") or ()
    return Observation(features=rows, ids=ids, actions=actions, visible=visible, global_features=shown)


def assert_like_torch(
    steps: list[dict[str, Any]], checkpoint: Checkpoint, world: Any = None, values: Any = None, players: int = 1
) -> int:
    """Compare what the policy says in each step of a page with torch; returns the number of decisions that were compared."""
    policy, count = TrainedPolicy(checkpoint, torch.Generator(), greedy=True), 0
    for step in steps:
        (view,) = step["views"]
        if step["done"]:
            continue
        for player in range(players):
            observation = seen(view, checkpoint, world, values, player)
            decided = policy.act(observation)
            if player == 0:
                assert view["value"] == pytest.approx(decided.value, abs=CLOSE)
            for name, mask in observation.actions.items():
                decision, told = view["actions"][name], decided.probabilities[name]
                names = [f"{kind} {id_}" for kind, ids in view["ids"].items() for id_ in ids]
                for actor, expected in zip(
                    mask.actor_ids, told["rows"] if isinstance(told, dict) else told, strict=True
                ):  # type: ignore[union-attr, arg-type]
                    row = [names[k] for k in decision["actors"]].index(str(actor))
                    assert decision["probs"][row] == pytest.approx(expected, abs=CLOSE)
                    best = np.sort(expected)[::-1]
                    if len(best) == 1 or np.log(best[0]) - np.log(max(best[1], 1e-30)) > CLEAR:
                        assert decision["advised"][row] == int(np.argmax(expected))
                    count += 1
    return count


def test_a_person_watches_takes_a_robot_over_and_rearranges_the_board(browser: Browser, tmp_path: Path) -> None:
    kwargs = {"num_mines": 4, "num_robots": 2, "orbital_cannon": True, "cooldown_period": 2, "max_steps": 12}
    checkpoint = untrained("MineSweeper", kwargs)
    page = opened(browser, checkpoint, tmp_path)
    page.click_on("#take-step")
    page.wait_for("replay.state.step === 1")
    (before, _) = steps_of(page)
    assert before["views"][0]["actions"]["Move"]["chosen"] == before["views"][0]["actions"]["Move"]["advised"]
    # the first mine goes to a free cell, another one is added, and that one is removed again
    page.click_on("#rearrange")
    click_entity(page, 0)
    count = len(steps_of(page)[1]["views"][0]["features"]["Mine"])
    taken = [tuple(cell) for cells in steps_of(page)[1]["views"][0]["features"].values() for cell in cells]
    free, other = [(x, y) for x in range(6) for y in range(6) if (x, y) not in taken][:2]
    click_cell(page, *free)
    mines = steps_of(page)[1]["views"][0]["features"]["Mine"]
    assert tuple(mines[0]) == free and len(mines) == count
    click_cell(page, *other, shift=True)
    assert tuple(steps_of(page)[1]["views"][0]["features"]["Mine"][-1]) == other
    page.key("Delete")
    settle(page)
    left = steps_of(page)[1]["views"][0]["features"]["Mine"]
    assert len(left) == count and list(free) not in left
    page.click_on("#rearrange")
    # the first robot is the person's from now on: whenever it has decided, the step is taken
    page.evaluate("replay.select(replay.entities().find(({ type }) => type === 'Robot').number)")
    settle(page)
    page.click_on("#take-over")
    settle(page)
    assert page.evaluate("document.getElementById('take-step').disabled")
    choose(page, "Defuse Mines")
    page.wait_for("replay.state.step === 2")
    moved = steps_of(page)[1]["views"][0]["actions"]["Move"]
    assert moved["chosen"][0] == 4 and moved["chosen"][1:] == moved["advised"][1:]
    page.click_on("#take-over")  # the policy has it back
    page.click_on("#undo")
    page.wait_for("replay.state.step === 1")
    while not page.evaluate("replay.state.replay.episodes[0].steps.at(-1).done"):
        page.click_on("#take-step")
        settle(page)
    steps = steps_of(page)
    assert assert_like_torch(steps, checkpoint) >= len(steps) - 1
    assert page.evaluate("document.getElementById('turn-text').textContent").startswith("The episode has ended")
    page.click_on("#take-step")
    page.wait_for("replay.state.replay.episodes.length === 2")
    page.evaluate("replay.state.speed = 60")
    page.click_on("#play")  # the policy plays on by itself, until the end
    page.wait_for("!replay.state.playing")
    assert steps_of(page)[-1]["done"]
    assert assert_like_torch(steps_of(page), checkpoint) > 0
    assert page.errors == []


def test_a_person_plays_a_snake_against_the_policy(browser: Browser, tmp_path: Path) -> None:
    checkpoint = untrained("MultiSnake", SNAKES, self_play=True)
    page = opened(browser, checkpoint, tmp_path)
    assert page.evaluate("replay.state.selected") == '["SnakeHead","0"]'
    assert page.evaluate("document.getElementById('take-step').disabled")  # it is the person's turn
    played = []
    while not steps_of(page)[-1]["done"]:
        x, y, _ = steps_of(page)[-1]["views"][0]["features"]["SnakeHead"][0]
        name = "up" if y < 3 else "down" if y > 3 else "right" if x < 6 else "left"
        played.append(["up", "down", "left", "right"].index(name))
        choose(page, name)
        page.wait_for(f"replay.state.step === {len(played)}")
        settle(page)
    steps = steps_of(page)
    moves = [step["views"][0]["actions"]["move"] for step in steps[:-1]]
    assert [move["chosen"][0] for move in moves] == played
    assert [move["chosen"][1] for move in moves] == [move["advised"][1] for move in moves]
    # each player sees its own colours first: the policy has played the second snake as torch would
    assert assert_like_torch(steps, checkpoint, MultiSnake, SNAKES, players=2) == 2 * len(moves)
    assert page.errors == []


def test_a_person_commands_an_army_in_fog(browser: Browser, tmp_path: Path) -> None:
    checkpoint = untrained("Skirmish", ARMIES, self_play=True)
    page = opened(browser, checkpoint, tmp_path)
    choose(page, "stay")
    page.click_on("#advised-rest")  # the rest of the army does as the policy says
    settle(page)
    page.click_on("#take-step")
    page.wait_for("replay.state.step === 1")
    moved = steps_of(page)[0]["views"][0]["actions"]["Move"]
    assert moved["chosen"] == [0, *moved["advised"][1:]]
    while not steps_of(page)[-1]["done"]:
        page.click_on("#advised-rest")
        settle(page)
        page.click_on("#take-step")
        settle(page)
    assert assert_like_torch(steps_of(page), checkpoint, Skirmish, ARMIES, players=2) > 30
    assert page.errors == []


def test_the_command_writes_a_page_beside_the_replays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(tmp_path / "run", env=EnvConfig(id="MineSweeper"))
    capsys.readouterr()
    assert run_watch(watch, [str(run), "--play", "open=false"]) == 0
    file = run / "replays" / "play_000000000032.html"
    assert capsys.readouterr().out == f"wrote {file}\n"
    assert file.read_text(encoding="utf-8") == game_page(load_checkpoint(run))


def test_a_world_without_a_twin_and_one_that_has_changed_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Xor has no twin in JavaScript, toys\.mjs beside its module"):
        game_page(load_checkpoint(trained(tmp_path / "xor", env=EnvConfig(id="Xor"))))
    checkpoint = untrained("MineSweeper", {})
    spaces = json.loads(json.dumps(checkpoint.spaces))
    spaces["entities"][0]["features"].append("depth")
    with pytest.raises(ValueError, match="the spaces of MineSweeper are not those of the checkpoint, .*depth"):
        game_page(replace(checkpoint, spaces=spaces))
