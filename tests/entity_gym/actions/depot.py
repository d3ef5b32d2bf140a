"""A small compiled world in which trucks pick sets of crates and of each other."""

from typing import Any

import numpy as np

from entity_gym.compiled import CompiledEnvironment, Entity, SelectEntities, SelectEntity, rand_int

MAX_TRUCKS, MAX_CRATES = 3, 70  # more crates than an integer has bits


class Depot(CompiledEnvironment):
    """Up to three trucks and many crates; every option of a set occurs. An action may have no actors, or no actees.

    The reward adds up, for every number of every pair, the number times 1 + the actor's place times 1 + the actee's place, with
    a weight of the action.
    """

    entities = {"Truck": Entity(["crates"], max=MAX_TRUCKS), "Crate": Entity(["place"], max=MAX_CRATES)}
    actions = {
        "paint": SelectEntities(actors="Truck", actees=["Truck", "Crate"]),
        "meet": SelectEntities(actors="Truck", actees="Truck", exclude_self=True, min=1, max=1),
        "load": SelectEntities(actors="Truck", actees="Crate", masked=True, ordered=True),
        "check": SelectEntities(max_actors=MAX_TRUCKS, max_actees=MAX_CRATES, ordered=True, min=1, max=65),
        "tow": SelectEntities(
            max_actors=MAX_TRUCKS, actees=["Truck", "Crate"], masked=True, exclude_self=True, ordered=True, min=2
        ),
    }
    parameters = {"trucks": -1, "crates": -1}
    max_steps = 5
    state = [("num_trucks", np.int64), ("num_crates", np.int64)]

    def reset(s: Any) -> None:
        s.num_trucks = s.trucks if s.trucks >= 0 else rand_int(s, MAX_TRUCKS + 1)
        s.num_crates = s.crates if s.crates >= 0 else rand_int(s, 6) if rand_int(s, 2) == 0 else 60 + rand_int(s, 11)

    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        reward = 0.0
        for j in range(len(act.paint)):
            for k in range(s.num_trucks + s.num_crates):
                reward += act.paint[j, k] * (1 + j) * (1 + k)
            for k in range(s.num_trucks):
                reward += 2 * act.meet[j, k] * (1 + j) * (1 + k)
            for k in range(s.num_crates):
                reward += 3 * act.load[j, k] * (1 + j) * (1 + k)
        for j in range(act.check.shape[0]):
            for k in range(act.check.shape[1]):
                reward += 4 * act.check[j, k] * (1 + j) * (1 + k)
        for j in range(act.tow.shape[0]):
            for k in range(act.tow.shape[1]):
                reward += 5 * act.tow[j, k] * (1 + j) * (1 + k)
        if s.trucks < 0:
            s.num_trucks = rand_int(s, MAX_TRUCKS + 1)
        return reward, False, False

    def observe(s: Any, obs: Any) -> None:
        obs.n.Truck = s.num_trucks
        obs.n.Crate = s.num_crates
        for i in range(s.num_trucks):
            obs.Truck[i, 0] = s.num_crates
            for k in range(s.num_crates):
                obs.load.mask[i, k] = (i + k) % 3 > 0
        for k in range(s.num_crates):
            obs.Crate[k, 0] = k
        if s.steps % 2 == 0:  # the trucks in turn, the crates from the last on
            obs.n.check = s.num_trucks
            obs.n.check_actees = s.num_crates
            for i in range(s.num_trucks):
                obs.check.actors[i] = s.num_trucks - 1 - i
            for k in range(s.num_crates):
                obs.check.actees[k] = s.num_trucks + s.num_crates - 1 - k
        obs.n.tow = min(1, s.num_trucks)
        obs.tow.actors[0] = 0
        for k in range(s.num_trucks + s.num_crates):
            obs.tow.mask[0, k] = s.steps % 3 > 0 or k % 7 == 6


WEIGHTS = {name: weight for weight, name in enumerate(Depot.actions, 1)}


class LooksBack(CompiledEnvironment):
    """Has sets alone, in which nobody is -1: the last marks may be found from behind."""

    entities = {"Truck": Entity(["x"], max=2)}
    actions = {"meet": SelectEntities(actors="Truck", actees="Truck")}
    state = [("marks", np.int64, (4,))]
    max_steps = 3

    def reset(s: Any) -> None:
        s.marks[-1] = 2

    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        return float(s.marks[-1] * act.meet[0, -1]), False, False

    def observe(s: Any, obs: Any) -> None:
        obs.n.Truck = 2
        obs.Truck[0, 0] = 0.0
        obs.Truck[1, 0] = 1.0


class NoSuchCost(LooksBack):
    """Its sets have a cost that trucks do not show."""

    actions = {"meet": SelectEntities(actors="Truck", actees="Truck", ordered=True, cost="toll", budget="x")}


class LooksBackAtNobody(LooksBack):
    """Has an action that may select nobody, too."""

    actions = {**LooksBack.actions, "follow": SelectEntity(actors="Truck", actees="Truck", nobody=True)}
