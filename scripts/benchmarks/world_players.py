"""Players written by hand, evaluation in raw worlds, and the travelling salesman's world, for `bench.py worlds`.

A player is a function: observation -> action, or with several agents, agent -> observation to agent -> action. `SCRIPTS` has
functions that make a player for a world.
"""

from __future__ import annotations

import functools
import importlib
import itertools
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from entity_gym.bridges.gymnasium.tuple_agents import TupleAgents, has_agents
from entity_gym.bridges.jumanji import JumanjiEnv

Player = Callable[[Any], Any]

# --- Worlds


def make_world(env_id: str, kwargs: Mapping[str, Any], wrappers: Sequence[Callable[[Any], Any]] = ()) -> Any:
    """Make a world; one with several agents has PettingZoo's parallel interface."""
    module, _, name = env_id.partition(":")
    made = getattr(importlib.import_module(module), name, None) if name else None
    env = gymnasium.make(env_id, **kwargs) if made is None else made(**kwargs)
    for wrapper in wrappers:
        env = wrapper(env)
    return TupleAgents(env, env_id) if has_agents(env) else env


def has_several(env: Any) -> bool:
    """Return True for a world with PettingZoo's parallel interface."""
    return hasattr(env, "possible_agents")


def tsp(num_cities: int) -> Any:
    """Make Jumanji's travelling salesman with uniform cities."""
    return JumanjiEnv("TSP-v1", generator=_cities(num_cities))


@functools.cache
def _cities(number: int) -> Any:
    from jumanji.environments.routing.tsp.generator import UniformGenerator

    return UniformGenerator(num_cities=number)


class FlatTsp(gymnasium.Env[Any, Any]):
    """The travelling salesman for a network of fixed size: (5 C,) of coordinates, and 0 or 1 for open, current and first city.

    The open cities are `info["action_mask"]` and `action_masks()`.
    """

    def __init__(self, env: Any) -> None:
        self.env, self.action_space = env, env.action_space
        self.num_cities = int(env.action_space.n)
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (5 * self.num_cities,), np.float32)
        self._open = np.ones(self.num_cities, np.int8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        obs, _ = self.env.reset(seed=seed, options=options)
        return self._flat(obs), {"action_mask": self._open}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, _ = self.env.step(action)
        return self._flat(obs), float(reward), bool(terminated), bool(truncated), {"action_mask": self._open}

    def action_masks(self) -> NDArray[np.bool_]:
        """Return (C,) the open cities, as sb3-contrib asks for them."""
        return self._open.astype(np.bool_)

    def _flat(self, obs: Mapping[str, Any]) -> NDArray[np.float32]:
        self._open = np.asarray(obs["action_mask"], np.int8)
        cities = np.arange(self.num_cities)
        here, first = cities == int(obs["position"]), cities == int(obs["trajectory"][0])
        return np.concatenate([np.ravel(obs["coordinates"]), self._open, here, first]).astype(np.float32)


# --- Evaluation


def play(env: Any, player: Player, episodes: int, seed: int) -> list[float]:
    """Return the sum of all rewards of each episode; episode `k` begins with `seed + k`."""
    returns = []
    for k in range(episodes):
        obs, _ = env.reset(seed=seed + k)
        total, ended = 0.0, False
        while not ended:
            obs, reward, terminated, truncated, _ = env.step(player(obs))
            if has_several(env):
                total, ended = total + float(sum(reward.values())), not env.agents
            else:
                total, ended = total + float(reward), bool(terminated or truncated)
        returns.append(total)
    return returns


def random_player(env: Any, rng: np.random.Generator) -> Player:
    """Draw every action from those that are open."""

    def draw(space: Any) -> Any:
        if isinstance(space, gymnasium.spaces.Box):
            return rng.uniform(space.low, space.high).astype(space.dtype)
        return int(rng.integers(space.n))

    def act(obs: Any) -> Any:
        if has_several(env):
            return {agent: draw(env.action_space(agent)) for agent in env.agents}
        if isinstance(obs, Mapping) and "action_mask" in obs:
            return int(rng.choice(np.flatnonzero(obs["action_mask"])))
        return draw(env.action_space)

    return act


# --- Scripts


def always(wanted: str, env: Any, rng: np.random.Generator) -> Player:
    """Take one action of highway-env: IDLE keeps lane and speed, SLOWER stops."""
    names: Mapping[int, str] = env.unwrapped.action_type.actions
    action = next(number for number, name in names.items() if name == wanted)
    return lambda obs: action


def stand(env: Any, rng: np.random.Generator) -> Player:
    """Do nothing: action 0 of all agents."""
    return lambda obs: dict.fromkeys(obs, 0)


def nearest_city(env: Any, rng: np.random.Generator) -> Player:
    """Go to the nearest city that is open."""

    def act(obs: Mapping[str, Any]) -> int:
        distances = np.linalg.norm(obs["coordinates"] - obs["coordinates"][int(obs["position"])], axis=1)
        return int(np.where(obs["action_mask"], distances, np.inf).argmin())

    return act


def spread(env: Any, rng: np.random.Generator) -> Player:
    """Assign landmarks so that the way of all agents together is shortest, at the begin of an episode, and go there."""
    STILL, LEFT, RIGHT, DOWN, UP = range(5)
    goals: list[int] = []
    steps = 0

    def act(observations: Mapping[str, NDArray[Any]]) -> dict[str, int]:
        nonlocal goals, steps
        num = len(observations)
        offsets = {agent: obs[4 : 4 + 2 * num].reshape(num, 2) for agent, obs in observations.items()}
        if steps % env.unwrapped.max_cycles == 0:
            ways = np.array([np.linalg.norm(each, axis=1) for each in offsets.values()])
            goals = list(min(itertools.permutations(range(num)), key=lambda order: ways[range(num), order].sum()))
        steps += 1
        actions = {}
        for (agent, obs), goal in zip(observations.items(), goals, strict=True):
            wish = offsets[agent][goal] - 0.35 * obs[:2]  # brakes before it arrives
            axis = int(np.abs(wish).argmax())
            directions = ((LEFT, RIGHT), (DOWN, UP))[axis]
            actions[agent] = STILL if abs(wish[axis]) < 0.05 else directions[int(wish[axis] > 0)]
        return actions

    return act


def walker(env: Any, rng: np.random.Generator) -> Player:
    """All players walk to the food that is nearest to all of them together, and load it when all stand beside it."""
    STAND, LOAD = 0, 5
    moves = {1: (-1, 0), 2: (1, 0), 3: (0, -1), 4: (0, 1)}
    num = len(env.possible_agents)
    size = int(env.observation_space(env.possible_agents[0]).high[0]) + 1

    def act(observations: Mapping[str, NDArray[Any]]) -> dict[str, int]:
        places = {agent: (int(obs[-3 * num]), int(obs[1 - 3 * num])) for agent, obs in observations.items()}
        rows = next(iter(observations.values()))[: -3 * num].reshape(-1, 3).astype(int)
        food = [(int(y), int(x)) for y, x, level in rows if level > 0]
        if not food:
            return dict.fromkeys(observations, STAND)
        goal = min(food, key=lambda at: sum(_apart(at, place) for place in places.values()))
        actions = {}
        for agent, place in places.items():
            if _apart(place, goal) == 1:
                actions[agent] = LOAD
            elif rng.random() < 0.1:  # gets players apart that block each other
                actions[agent] = int(rng.integers(1, 5))
            else:
                blocked = {*food, *places.values()} - {place}
                actions[agent] = _first_step(place, goal, blocked, size, moves) or STAND
        return actions

    return act


def _apart(one: tuple[int, int], other: tuple[int, int]) -> int:
    return abs(one[0] - other[0]) + abs(one[1] - other[1])


def _first_step(
    start: tuple[int, int],
    goal: tuple[int, int],
    blocked: set[tuple[int, int]],
    size: int,
    moves: Mapping[int, tuple[int, int]],
) -> int | None:
    """Return the first move of a shortest way to a cell beside `goal`; None if there is no way."""
    queue: deque[tuple[tuple[int, int], int | None]] = deque([(start, None)])
    seen = {start}
    while queue:
        cell, first = queue.popleft()
        if _apart(cell, goal) == 1:
            return first
        for move, (down, right) in moves.items():
            after = cell[0] + down, cell[1] + right
            if after not in seen and after not in blocked and all(0 <= each < size for each in after):
                seen.add(after)
                queue.append((after, first or move))
    return None


def lander(env: Any, rng: np.random.Generator) -> Player:
    """Lean against the drift, and brake the fall more the nearer the ground is."""
    NOTHING, LEFT, MAIN, RIGHT = range(4)

    def act(obs: NDArray[Any]) -> int:
        x, y, vx, vy, angle, spin, left, right = obs.tolist()
        if left and right:
            return MAIN if vy < -0.1 else NOTHING
        wish = min(0.4, max(-0.4, 0.6 * x + 1.0 * vx))
        turn = wish - angle - 0.9 * spin
        too_fast = vy < -0.08 - 0.45 * max(0.0, y - 0.4 * abs(x))
        if too_fast and abs(turn) < 0.35:
            return MAIN
        if abs(turn) > 0.05:
            return RIGHT if turn < 0 else LEFT
        return NOTHING

    return act


def taxi(env: Any, rng: np.random.Generator) -> Player:
    """A perfect player, by value iteration over the table of transitions."""
    table: Mapping[int, Mapping[int, Any]] = env.unwrapped.P
    values = np.zeros(len(table))
    choices = np.zeros((len(table), len(table[0])))
    for _ in range(100):  # more steps than any way
        for state, actions in table.items():
            for action, outcomes in actions.items():
                choices[state, action] = sum(
                    chance * (reward + (0.0 if ended else 0.99 * values[after]))
                    for chance, after, reward, ended in outcomes
                )
        values = choices.max(axis=1)
    best = choices.argmax(axis=1)
    return lambda obs: int(best[obs])


def acrobot(env: Any, rng: np.random.Generator) -> Player:
    """Push the second joint the way in which the first one swings, which adds energy."""
    return lambda obs: 2 if obs[4] < 0 else 0


SCRIPTS: Mapping[str, Callable[[Any, np.random.Generator], Player]] = {
    "idle": functools.partial(always, "IDLE"),
    "park": functools.partial(always, "SLOWER"),
    "stand": stand,
    "nearest city": nearest_city,
    "spread": spread,
    "walker": walker,
    "lander": lander,
    "taxi": taxi,
    "acrobot": acrobot,
}
