"""Made-up environments: one that uses everything, one that goes wrong on request, and the smallest ones."""

from typing import Any

import numpy as np

from entity_gym.compiled import (
    Array,
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
from tests.entity_gym.compiled import rules

MAX_CATS, MAX_DOGS, MAX_ROCKS, MAX_PLAYERS = 4, 3, 2, 3
NO_VALUE = float("nan")


class Everything(CompiledEnvironment):
    """Cats and dogs that come and go at random, and everything that can be declared.

    What is offered, masked, hidden and shown depends on the state, so that every step has another shape. Rewards, metrics
    and random draws depend on the actions. Episodes end when no cat is left, are cut by bad luck, or by `max_steps`.
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
    parameters = {"num_dogs": 2, "gravity": 0.5, "windy": True}
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
    info = {"score": "score", "cats left": "cats", "was lucky": "lucky"}
    metrics = ["noise", "cats"]
    arrays = {
        "obs:board": Array((2, 3), np.uint8, low=0, high=9),
        "obs:clock": Array(()),
        "info:players.hand": Array((-1, 2), np.int32),
        "info:flags": Array((2,), np.bool_),
    }
    max_num_players = MAX_PLAYERS

    @staticmethod
    def check_parameters(p: Any) -> None:
        if not 0 <= p.num_dogs <= MAX_DOGS:
            raise ValueError(f"Everything: num_dogs is {p.num_dogs}; allowed: 0 to {MAX_DOGS}")

    def reset(s: Any) -> None:
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
        s.lucky = rules.is_lucky(s)
        s.noise = NO_VALUE if s.lucky else 0.5 * rand_int(s, 7)
        for i in range(s.dogs):
            s.dog[i, 2] = rules.clamp(s.dog[i, 2] + 0.1 * rand_normal(s), -2.0, 2.0)
        s.score += reward
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

        for i in range(2):
            for j in range(3):
                obs.arrays.obs_board[i, j] = (s.steps + 3 * i + j) % 10
        obs.arrays.obs_clock[...] = s.steps
        obs.n.players = s.cats % (MAX_PLAYERS + 1)
        for p in range(s.cats % (MAX_PLAYERS + 1)):
            obs.arrays.info_players_hand[p, 0] = p
            obs.arrays.info_players_hand[p, 1] = -s.steps
        obs.arrays.info_flags[0] = s.lucky
        obs.arrays.info_flags[1] = s.windy

    def render(s: Any) -> np.ndarray:
        image = np.zeros((4, 8, 3), np.uint8)
        image[0, : s.cats] = 255
        return image


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


class MadeUpError(Exception):
    """A type of exception that nobody else raises."""


# What `Faulty` does from its second step on, if its parameter `fault` says so.
(
    NOTHING,
    TOO_MANY,
    NEGATIVE,
    NAN_FEATURE,
    NAN_GLOBAL,
    NAN_REWARD,
    HUGE_REWARD,
    BAD_ACTOR,
    TOO_MANY_ACTORS,
    SET_ACTORS,
    ALL_CLOSED,
    NO_PAIR,
    RAISE,
    RAISE_IN_RESET,
    WRITE_OUTSIDE,
) = range(15)


class Faulty(CompiledEnvironment):
    """Two units that do nothing, until `fault` says otherwise."""

    entities = {"Foot Soldier": Entity(["x", "strength"], max=3), "Enemy": Entity(["hp"], max=2)}
    global_features = ["light", "heat"]
    actions = {
        "Go": Categorical(["here", "there"], actors="Foot Soldier", masked=True),
        "Point": Categorical(["left", "right"], max_actors=2),
        "Shoot": SelectEntity(actors="Foot Soldier", actees="Enemy", masked=True),
        "Call": GlobalCategorical(["help", "nothing"], masked=True),
    }
    parameters = {"fault": 0}
    max_steps = 50
    state = [("total", np.int64), ("cell", np.int64, (4,)), ("bad", np.int64)]
    info = ["total"]

    def reset(s: Any) -> None:
        if s.fault == RAISE_IN_RESET:
            raise MadeUpError("no start today")
        s.total = 0
        s.bad = 0

    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        s.total += act.Go[0] + act.Go[1]
        if s.steps < 2:
            return float(s.total), False, False
        s.bad = s.fault
        if s.fault == RAISE:
            raise MadeUpError("the bridge is out")
        if s.fault == WRITE_OUTSIDE:
            s.cell[s.steps + 3] = 1
        if s.fault == NAN_REWARD:
            return np.nan, False, False
        if s.fault == HUGE_REWARD:
            return 1e300, False, False
        return float(s.total), False, False

    def observe(s: Any, obs: Any) -> None:
        obs.n.Foot_Soldier = 2
        obs.n.Enemy = 1
        for i in range(2):
            obs.Foot_Soldier[i, 0] = i
            obs.Foot_Soldier[i, 1] = s.total
        obs.Enemy[0, 0] = 3
        obs.global_features[0] = 1
        obs.global_features[1] = s.steps
        obs.Go.mask[1, 1] = s.steps % 2 == 0
        obs.n.Point = 1
        obs.Point.actors[0] = 2
        if s.bad == TOO_MANY:
            obs.n.Foot_Soldier = 4
        elif s.bad == NEGATIVE:
            obs.n.Enemy = -3
        elif s.bad == NAN_FEATURE:
            obs.Foot_Soldier[1, 1] = np.nan
        elif s.bad == NAN_GLOBAL:
            obs.global_features[1] = np.inf
        elif s.bad == BAD_ACTOR:
            obs.Point.actors[0] = 3
        elif s.bad == TOO_MANY_ACTORS:
            obs.n.Point = 3
        elif s.bad == SET_ACTORS:
            obs.n.Go = 2
        elif s.bad == ALL_CLOSED:
            obs.Go.mask[1, 0] = False
            obs.Go.mask[1, 1] = False
        elif s.bad == NO_PAIR:
            obs.Shoot.mask[1, 0] = False


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
