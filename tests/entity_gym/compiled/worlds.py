"""Made-up environments: one that uses everything, one that goes wrong on request, and the smallest ones."""

from collections import namedtuple
from enum import IntEnum
from typing import Any

import numpy as np

from entity_gym.compiled import (
    Categorical,
    CompiledEnvironment,
    Entity,
    GlobalCategorical,
    SelectEntity,
    kernel,
    rand_float,
    rand_int,
    rand_normal,
)

MAX_CATS, MAX_DOGS, MAX_ROCKS = 4, 3, 2
NO_VALUE = float("nan")
LUCK = 0.25

# What `Everything` does in every step of an environment whose parameter `fault` says so.
NOTHING, TOO_MANY, NEGATIVE, NAN_FEATURE, INF_GLOBAL, BAD_ACTOR, BAD_ACTEE, TOO_MANY_ACTORS, TOO_MANY_ACTEES = range(9)
SET_DECLARED, SET_GLOBAL, ALL_CLOSED, NO_PAIR, NAN_REWARD, HUGE_REWARD, RAISE, RAISE_IN_RESET = range(9, 17)


class MadeUpError(Exception):
    """A type of exception that nobody else raises."""


class Everything(CompiledEnvironment):
    """Cats and dogs that come and go at random, and everything that can be declared.

    What is offered, masked, hidden and shown depends on the state, so that every step has another shape. Rewards, metrics
    and random draws depend on the actions. Episodes end when no cat is left, are cut by bad luck, or by `max_steps`.
    With `fault`, something is wrong.
    """

    entities = {
        "Rock": Entity([], max=MAX_ROCKS),
        "Cat": Entity(["x", "y"], max=MAX_CATS, hideable=True),
        "Guard Dog": Entity(["x", "age", "mood"], max=MAX_DOGS),
    }
    global_features = ["time left", "wind"]
    actions = {
        "Walk": Categorical(["stay", "left", "right"], actors=["Guard Dog", "Cat"]),
        "Sniff": Categorical(("hold", "sniff"), max_actors=MAX_CATS + MAX_DOGS, masked=True),
        "Chase": SelectEntity(actors="Guard Dog", actees=["Cat", "Rock"], masked=True),
        "Throw Rock": SelectEntity(max_actors=2, max_actees=MAX_CATS + MAX_DOGS),
        "Weather": GlobalCategorical(["sun", "rain", "snow"], masked=True),
    }
    parameters = {"num_dogs": 2, "gravity": 0.3, "windy": True, "fault": NOTHING}
    max_steps = 9
    state = [
        ("cats", np.int64),
        ("dogs", np.int64),
        ("rocks", np.int64),
        ("cat", np.float64, (MAX_CATS, 2)),
        ("asleep", np.bool_, (MAX_CATS,)),
        ("dog", np.float64, (MAX_DOGS, 3)),
        ("wind", np.float64),
        ("weather", np.int64),
        ("score", np.float64),
        ("lucky", np.bool_),
        ("noise", np.float64),
        ("episodes", np.int64),  # survives `reset`
    ]
    info = ["score", "cats", "lucky", "noise"]
    metrics = ["noise", "cats"]

    @staticmethod
    def check_parameters(p: Any) -> None:
        if not 0 <= p.num_dogs <= MAX_DOGS:
            raise ValueError(f"Everything: num_dogs is {p.num_dogs}; allowed: 0 to {MAX_DOGS}")

    def reset(s: Any) -> None:
        if s.fault == RAISE_IN_RESET:
            raise MadeUpError("no start today")
        s.episodes += 1
        s.cats = 1 + rand_int(s, MAX_CATS)
        s.dogs = s.num_dogs
        s.rocks = rand_int(s, MAX_ROCKS + 1)
        for i in range(MAX_CATS):
            place_cat(s, i)
        for i in range(MAX_DOGS):
            s.dog[i, 0] = rand_int(s, 10)
            s.dog[i, 1] = 0.0
            s.dog[i, 2] = rand_normal(s)
        s.wind = rand_float(s) if s.windy else 0.0
        s.weather = 0
        s.score = 0.0
        s.lucky = False

    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        reward = 0.0
        for k in range(len(act.Walk)):  # dogs come first, as declared
            move = act.Walk[k]
            if k < s.dogs:
                s.dog[k, 0] += walked(move)
            else:
                s.cat[k - s.dogs, 0] += walked(move)
            reward += s.gravity * move
        for k in range(len(act.Sniff)):
            reward += 0.125 * (k + 1) * act.Sniff[k]
        caught = -1
        for k in range(len(act.Chase)):
            target = act.Chase[k]
            if target >= act.first.Cat:
                caught = target - act.first.Cat
            reward += 0.0625 * target
        for k in range(len(act.Throw_Rock)):
            target = act.Throw_Rock[k]
            if target >= act.first.Guard_Dog:
                s.dog[target - act.first.Guard_Dog, 1] += 1
            reward -= 0.03125 * target
        if len(act.Weather) > 0:
            s.weather = act.Weather[0]
            reward += act.Weather[0]
        if caught >= 0 and rand_int(s, 2) == 0:
            remove_cat(s, caught)
        elif s.cats < MAX_CATS and s.weather == 1:
            place_cat(s, s.cats)
            s.cats += 1
        s.rocks = rand_int(s, MAX_ROCKS + 1)
        s.lucky = is_lucky(s)
        s.noise = NO_VALUE if s.lucky else 0.5 * rand_int(s, 7)
        for i in range(s.dogs):
            s.dog[i, 2] = clamp(s.dog[i, 2] + 0.1 * rand_normal(s), -2.0, 2.0)
        s.score += reward
        if s.fault == RAISE:
            raise MadeUpError("the bridge is out")
        if s.fault == NAN_REWARD:
            reward = np.nan
        elif s.fault == HUGE_REWARD:
            reward = 1e300  # infinite as float32
        return reward, s.cats == 0, rand_int(s, 16) == 0

    def observe(s: Any, obs: Any) -> None:
        obs.n.Rock = s.rocks
        obs.n.Cat = s.cats
        for i in range(s.cats):
            obs.Cat[i, 0] = s.cat[i, 0]
            obs.Cat[i, 1] = s.cat[i, 1]
            if s.asleep[i]:
                obs.visible.Cat[i] = False
        obs.n.Guard_Dog = s.dogs
        for i in range(s.dogs):
            for f in range(3):
                obs.Guard_Dog[i, f] = s.dog[i, f]
        obs.global_features[0] = s.max_steps - s.steps
        obs.global_features[1] = s.wind
        total = s.rocks + s.cats + s.dogs

        if s.steps % 5 == 4:
            obs.n.Walk = 0
        sniffers = 0
        for e in range(total - 1, s.rocks - 1, -2):  # every second animal, last first
            obs.Sniff.actors[sniffers] = e
            if e % 3 == 0:
                obs.Sniff.mask[sniffers, 1] = False
            sniffers += 1
        obs.n.Sniff = sniffers

        num_actees = s.cats + s.rocks
        if s.steps % 3 == 2:
            obs.n.Chase = 0
        elif num_actees > 1:
            for k in range(s.dogs):
                obs.Chase.mask[k, (k + s.steps) % num_actees] = False
        if s.dogs > 0 and s.rocks > 0:
            obs.n.Throw_Rock = 1
            obs.Throw_Rock.actors[0] = total - 1
            if s.weather != 2:  # nobody to throw at in snow
                obs.n.Throw_Rock_actees = s.dogs + s.cats
                for j in range(s.dogs + s.cats):
                    obs.Throw_Rock.actees[j] = total - 1 - j
        if s.windy:
            obs.Weather.mask[0, (s.weather + 1) % 3] = False
        elif s.steps % 2 == 1:
            obs.n.Weather = 0

        if s.fault != NOTHING and s.steps > 0:
            show_nonsense(s.fault, obs)

    def render(s: Any) -> np.ndarray:
        image = np.zeros((4, 8, 3), np.uint8)
        image[0, : s.cats] = 255
        return image


@kernel
def is_lucky(s: Any) -> bool:
    return rand_float(s) < LUCK


@kernel
def clamp(x: float, low: float, high: float) -> float:
    return min(max(x, low), high)


@kernel
def place_cat(s: Any, i: int) -> None:
    s.cat[i, 0] = rand_int(s, 10)
    s.cat[i, 1] = rand_float(s)
    s.asleep[i] = rand_int(s, 3) == 0


@kernel
def remove_cat(s: Any, index: int) -> None:
    for j in range(index + 1, s.cats):
        s.cat[j - 1, 0] = s.cat[j, 0]
        s.cat[j - 1, 1] = s.cat[j, 1]
        s.asleep[j - 1] = s.asleep[j]
    s.cats -= 1


@kernel
def walked(move: int) -> float:
    if move == 0:
        return 0.0
    return -1.0 if move == 1 else 1.0


@kernel
def show_nonsense(fault: int, obs: Any) -> None:
    if fault == TOO_MANY:
        obs.n.Cat = MAX_CATS + 1
    elif fault == NEGATIVE:
        obs.n.Guard_Dog = -3
    elif fault == NAN_FEATURE:
        obs.Guard_Dog[1, 2] = np.nan
    elif fault == INF_GLOBAL:
        obs.global_features[1] = np.inf
    elif fault == BAD_ACTOR:
        obs.n.Sniff = 1
        obs.Sniff.actors[0] = 99
    elif fault == BAD_ACTEE:
        obs.n.Throw_Rock = 1
        obs.Throw_Rock.actors[0] = 0
        obs.n.Throw_Rock_actees = 1
        obs.Throw_Rock.actees[0] = -1
    elif fault == TOO_MANY_ACTORS:
        obs.n.Sniff = 20
    elif fault == TOO_MANY_ACTEES:
        obs.n.Throw_Rock = 1
        obs.Throw_Rock.actors[0] = 0
        obs.n.Throw_Rock_actees = 30
    elif fault == SET_DECLARED:
        obs.n.Walk = 2
    elif fault == SET_GLOBAL:
        obs.n.Weather = 2
    elif fault == ALL_CLOSED:
        obs.n.Sniff = 1
        obs.Sniff.actors[0] = 0
        obs.Sniff.mask[0, 0] = False
        obs.Sniff.mask[0, 1] = False
    elif fault == NO_PAIR:
        obs.n.Chase = -1
        for j in range(MAX_CATS + MAX_ROCKS):
            obs.Chase.mask[1, j] = False


class Bare(CompiledEnvironment):
    """No entities and no features: a counter in the dark, and a choice."""

    actions = {"bet": GlobalCategorical(["even", "odd"])}
    state = [("number", np.int64)]

    def reset(s: Any) -> None:
        s.number = rand_int(s, 100)

    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        won = s.number % 2 == act.bet[0]
        s.number = rand_int(s, 100)
        return won, s.number == 0, False

    def observe(s: Any, obs: Any) -> None:
        pass


class Kind(IntEnum):
    ZERO = 0
    ONE = 1


Point = namedtuple("Point", "x y")
TABLE = np.arange(6.0).reshape(2, 3)


@kernel
def point_at(act: Any, place: int) -> Point:
    return Point(act.index[place], 2 * place)


class OddNames(CompiledEnvironment):
    """Names that mean something elsewhere, fields of small types, and constants of every kind."""

    entities = {"Größe": Entity(["x"], max=3), "count": Entity(["x", "T"], max=2), "T": Entity([], max=2)}
    actions = {
        "index": Categorical(["a", "b"], actors="count"),
        "go!": SelectEntity(actors="Größe", actees=["T", "count"]),
    }
    parameters = {"round": 2, "item": 0.5}
    max_steps = 11
    state = [
        ("size", np.int64),
        ("data", np.float64, (2, 3)),
        ("shape", np.int16),
        ("flags", np.bool_, (2, 2)),
        ("dtype", np.int8),
        ("done", np.bool_),
    ]
    info = ["shape", "done"]
    metrics = ["dtype", "done"]

    def reset(s: Any) -> None:
        s.size = rand_int(s, s.round)
        s.data[:] = s.item
        s.flags[0, 1] = True

    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        total = 0.0
        for row in s.data:
            row[1] += rand_float(s)
            total += row.sum()
        where = point_at(act, 0)
        s.size += where.x
        s.flags[1, 0] = not s.flags[1, 0]
        quotient, rest = divmod(s.size, 3)
        s.dtype = min(rest, 3) - 1
        s.shape += len(act.index)
        s.done = s.flags[0, 1] and s.size > 4
        assert s.size < 100, "larger than can be"
        total += TABLE[quotient % 2, rest] + where.y + abs(s.dtype) + (10 if act.index[1] == Kind.ONE else 20)
        if len(act.go_) > 0:
            total -= act.go_[0] - act.first.count
        return total, s.done, 0  # type: ignore[return-value]

    def observe(s: Any, obs: Any) -> None:
        obs.n.Größe = 1
        obs.Größe[0, 0] = s.size
        obs.n.count = 2
        for i in range(2):
            obs.count[i, 0] = s.data[i, 1]
            obs.count[i, 1] = s.flags[1, i]
        obs.n.T = s.size % 2


class Watching(CompiledEnvironment):
    """Things to see and nothing to do; without an end."""

    entities = {"Star": Entity(["brightness"], max=2)}
    state = [("t", np.int64)]

    def reset(s: Any) -> None:
        s.t = 0

    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        s.t += 1
        return 0.5, False, False

    def observe(s: Any, obs: Any) -> None:
        obs.n.Star = s.t % 3
        for i in range(s.t % 3):
            obs.Star[i, 0] = s.t
