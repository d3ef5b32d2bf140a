"""The twins of worlds in JavaScript do in Node what the compiled worlds do, step by step."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from entity_gym.actions.choices import random_actions, world_actions
from entity_gym.batch.frame import FrameReader
from entity_gym.bridges.remote.messages import actions_to_json
from entity_gym.compiled import CompiledEnvironment
from entity_gym.compiled.slots import CompiledSlots
from entity_gym.envs.minesweeper import MineSweeper
from entity_gym.envs.multi_snake import MultiSnake
from entity_gym.envs.skirmish import Skirmish
from entity_gym.pools.one import SlotEnvironment
from entity_gym.pools.players import Seating, players_of
from entity_gym.pools.slots import SlotOptions
from tests.node import NO_NODE, NODE, run_node
from tests.runtime_policies import observation_to_json, with_texts

pytestmark = pytest.mark.skipif(NODE is None, reason=NO_NODE)

ENVS = Path(__file__).parents[4] / "entity_gym" / "envs"
GOLDEN, LAST_64_BITS = 0x9E3779B97F4A7C15, 2**64 - 1

# splitmix64, as compiled worlds draw: entity_gym/compiled/random.py
STEPS = """
const { World } = await import(given.twin);
const bits = BigInt.asUintN.bind(null, 64);
const source = (state) => {
  let rng = BigInt(state);
  const next = () => {
    rng = bits(rng + 0x9e3779b97f4a7c15n);
    let z = bits((rng ^ (rng >> 30n)) * 0xbf58476d1ce4e5b9n);
    z = bits((z ^ (z >> 27n)) * 0x94d049bb133111ebn);
    return z ^ (z >> 31n);
  };
  const int = (n) => Number(((next() >> 32n) * BigInt(n)) >> 32n);
  return { int, float: () => Number(next() >> 11n) / 2 ** 53, rng: () => String(rng) };
};
const world = new World(given.values);
const seen = (players) => Array.from({ length: players }, (_, player) => world.seen(player));
const told = given.steps.map(({ before, rng, actions, players }) => {
  const random = source(rng);
  world.state = before;
  const ended = actions ? world.step(actions, random) : world.reset(random);
  return { ...ended, state: world.state, rng: random.rng(), observation: world.observe(), seen: seen(players) };
});
console.log(JSON.stringify(told));
"""


def of_minesweeper(s: Any) -> dict[str, Any]:
    mines, robots = s.mine[: s.mines_left].tolist(), s.robot[: s.robots_left].tolist()
    return {"steps": int(s.steps), "mines": mines, "robots": robots, "cooldown": int(s.cooldown)}


def of_multi_snake(s: Any) -> dict[str, Any]:
    firsts = [i * s.max_snake_length for i in range(s.num_snakes)]
    snakes = [s.segment[first : first + s.length[i]].tolist() for i, first in enumerate(firsts)]
    return {"steps": int(s.steps), "snakes": snakes, "food": s.food[: s.num_snakes].tolist()}


def of_skirmish(s: Any) -> dict[str, Any]:
    units = [
        {"army": int(i >= s.left[0]), "id": int(s.unit_id[i])}
        | {name: s[name][i].item() for name in ("kind", "x", "y", "health", "cooldown")}
        for i in range(s.left.sum())
    ]
    state = {"steps": int(s.steps), "units": units, "obstacles": s.obstacle[: s.obstacles_placed].tolist()}
    return state | {"leads": s.lead.tolist(), "startHealth": float(s.start_health), "ahead": float(s.ahead)}


class Twin:
    """A compiled world, and what its twin is asked and expected to say; `rewards`: the twin tells those of players, too."""

    def __init__(
        self, world: CompiledEnvironment, state_of: Callable[[Any], dict[str, Any]], *, rewards: bool = False
    ) -> None:
        self.world, self.state_of, self.rewards = world, state_of, rewards
        self.slots = CompiledSlots(world, 1, SlotOptions(autoreset=False))
        self.env = SlotEnvironment(self.slots)
        self.reader = FrameReader(self.slots.obs_space, self.slots.action_space)
        self.mapping = players_of(world)
        self.asked: list[dict[str, Any]] = []
        self.expected: list[dict[str, Any]] = []

    @property
    def record(self) -> Any:
        return self.slots.slots["record"].view(np.recarray)[0]

    def play(self, seed: int, episodes: int) -> None:
        """Random episodes."""
        rng = np.random.default_rng(seed)
        self.env.reseed(seed, 0)
        for _ in range(episodes):
            shown = self._ask(None)
            while not shown.done:
                actions = random_actions(self.env._shown, rng, self.slots.action_space)
                frame = self.reader.read(with_texts(shown), 0)
                shown = self._ask(world_actions(actions, 0, [frame], self.slots.action_space)[0], frame.ids)

    def _ask(self, actions: Mapping[str, Any] | None, ids: Any = None) -> Any:
        before = {"before": self.state_of(self.record), "rng": str(self.record.rng), "actions": None}
        if actions is None:
            shown = self.env.reset()
        else:
            before["actions"] = actions_to_json(actions)
            shown = self.env.act(_in_own_ids(actions))
        players = self.mapping.num_players if self.mapping and self.mapping.num_players > 1 and not shown.done else 0
        self.asked.append({**before, "players": players})
        expected = {"state": self.state_of(self.record), "rng": str(self.record.rng)}
        if actions is not None:
            expected |= {"reward": shown.reward, "done": shown.done, "truncated": shown.truncated}
            if self.rewards:
                expected["rewards"] = list(shown.player_rewards)
        self.expected.append({**expected, "observation": _shown(shown), "seen": self._seen(players)})
        return shown

    def _seen(self, players: int) -> list[dict[str, Any]]:
        """What each of several players sees."""
        if not players:
            return []
        assert self.mapping is not None
        seating, full = Seating(self.env._shown, self.mapping), self.env._shown
        views = []
        for player in range(players):
            self.env._shown = seating.show(seating.part(player))
            views.append(_shown(_observation_of(self.env)))
        self.env._shown = full
        return views


def _observation_of(env: SlotEnvironment) -> Any:
    """The observation that `env` makes of the frame that it holds."""
    shown, collect = env._shown, env.slots.collect
    env.slots.collect = lambda *_: shown  # type: ignore[method-assign]
    try:
        return env.show()
    finally:
        env.slots.collect = collect  # type: ignore[method-assign]


def _in_own_ids(actions: Mapping[str, Any]) -> dict[str, Any]:
    """The same actions with the ids of a `SlotEnvironment`: ("Robot", 0) for "Robot 0"."""

    def own(id_: Any) -> Any:
        return None if id_ is None else (id_.rpartition(" ")[0], int(id_.rpartition(" ")[2]))

    made = {}
    for name, action in actions.items():
        named = {field: list(map(own, ids)) for field, ids in vars(action).items() if field in ("actors", "actees")}
        made[name] = replace(action, **named)
    return made


def _shown(observation: Any) -> dict[str, Any]:
    """What an observation shows; nobody acts in the last one of an episode."""
    told = observation_to_json(with_texts(observation))
    if observation.done:
        del told["actions"]
    return _without_open_flags(told)


def _without_open_flags(told: dict[str, Any]) -> dict[str, Any]:
    """The same observation without the flags of types of which nothing is hidden."""
    hidden = {name: flags for name, flags in told.pop("visible", {}).items() if not all(flags)}
    return told | ({"visible": hidden} if hidden else {})


def compare(twin: Twin, file: str) -> None:
    given = {"twin": (ENVS / file).as_uri(), "values": dict(twin.world.values), "steps": twin.asked}
    for k, (told, expected) in enumerate(zip(json.loads(run_node(STEPS, given)), twin.expected, strict=True)):
        if expected.get("done"):
            del told["observation"]["actions"]
        told["seen"] = list(map(_without_open_flags, told["seen"]))
        told, expected = (dict(_leaves(each)) for each in (told, expected))
        assert told.keys() == expected.keys(), f"step {k}: {twin.asked[k]}"
        for place, value in expected.items():
            close = pytest.approx(value, rel=1e-6, abs=1e-6) if isinstance(value, float) else value
            assert told[place] == close, f"{place} of step {k}: {twin.asked[k]}"


def _leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """What nested lists and dictionaries hold, by its place."""
    if isinstance(value, dict | list):
        yield place, type(value).__name__
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(item, f"{place}/{key}")
    else:
        yield place, value


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"width": 4, "height": 7, "num_mines": 12, "num_robots": 5, "orbital_cannon": True, "cooldown_period": 2},
        {"num_mines": 20, "max_steps": 6},
    ],
)
def test_the_twin_of_minesweeper_does_what_the_compiled_world_does(values: dict[str, Any]) -> None:
    twin = Twin(MineSweeper(**values), of_minesweeper)
    twin.play(seed=0, episodes=20)
    compare(twin, "minesweeper.mjs")


@pytest.mark.parametrize(
    "values",
    [
        {"num_snakes": 1, "board_size": 4, "max_snake_length": 5},
        {"num_snakes": 4, "num_players": 2, "board_size": 6, "max_snake_length": 3},
        {"num_snakes": 3, "num_players": 3, "max_steps": 4},
    ],
)
def test_the_twin_of_multi_snake_does_what_the_compiled_world_does(values: dict[str, Any]) -> None:
    twin = Twin(MultiSnake(**values), of_multi_snake)
    twin.play(seed=0, episodes=40)
    compare(twin, "multi_snake.mjs")


@pytest.mark.parametrize(
    "values",
    [
        {"opponent": 0, "width": 12.0},
        {"opponent": 0, "num_units": 2, "width": 12.0, "sight": 5.0, "num_obstacles": 0, "continuous": True},
        {"opponent": 0, "num_units": 12, "num_obstacles": 16, "width": 14.0, "max_steps": 30},
    ],
)
def test_the_twin_of_skirmish_does_what_the_compiled_world_does(values: dict[str, Any]) -> None:
    twin = Twin(Skirmish(**values), of_skirmish, rewards=True)
    twin.play(seed=0, episodes=3)
    ends = [each["truncated"] for each in twin.expected if each.get("done")]
    assert len(ends) == 3 and all(ends) == ("max_steps" in values)  # else an army was defeated
    compare(twin, "skirmish.mjs")
