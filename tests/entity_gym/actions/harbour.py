"""A small compiled world in which ships pick numbers, and other ships to tow."""

from typing import Any

import numpy as np

from entity_gym import compiled
from entity_gym.compiled import Categorical, CompiledEnvironment, Continuous, SelectEntity, rand_float, rand_int

MAX_SHIPS, MAX_BUOYS = 3, 2
A_TENTH = 0.1  # float32 has one that is a little more


class Harbour(CompiledEnvironment):
    """One to three ships. What they do is paid so that every part of every action makes a difference.

    The reward adds up turn + 2 * thrust of every ship, 100 for each that tows nobody, 1000 for each that calls nobody, and
    the entity index of what is towed and called otherwise.
    """

    entities = {
        "Buoy": compiled.Entity([], max=MAX_BUOYS),
        "Ship": compiled.Entity(["x", "y"], max=MAX_SHIPS),
    }
    actions = {
        "steer": Continuous([-1.0, A_TENTH], [1.0, np.inf], ["turn", "thrust"], actors="Ship"),
        "tow": SelectEntity(actors="Ship", actees=["Buoy", "Ship"], exclude_self=True, nobody=True),
        "call": SelectEntity(max_actors=MAX_SHIPS, actees="Ship", masked=True, exclude_self=True),
        "flag": Categorical(["down", "up"], actors="Ship"),
    }
    parameters = {"ships": 0, "mute": False}
    max_steps = 4
    state = [("num_ships", np.int64), ("num_buoys", np.int64), ("place", np.float64, (MAX_SHIPS, 2))]

    def reset(s: Any) -> None:
        s.num_ships = s.ships if s.ships > 0 else 1 + rand_int(s, MAX_SHIPS)
        s.num_buoys = rand_int(s, MAX_BUOYS + 1)
        for i in range(MAX_SHIPS):
            s.place[i, 0] = rand_float(s)
            s.place[i, 1] = 0.0

    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        reward = 0.0
        for i in range(s.num_ships):
            s.place[i, 0] += act.steer[i, 0]
            s.place[i, 1] += act.steer[i, 1]
            reward += act.steer[i, 0] + 2.0 * act.steer[i, 1]
            reward += 100.0 if act.tow[i] < 0 else float(act.tow[i])
            reward += 1000.0 if act.call[i] < 0 else float(act.call[i])
        return reward, False, False

    def observe(s: Any, obs: Any) -> None:
        obs.n.Buoy = s.num_buoys
        obs.n.Ship = s.num_ships
        obs.n.call = s.num_ships
        for i in range(s.num_ships):
            obs.Ship[i, 0] = s.place[i, 0]
            obs.Ship[i, 1] = s.place[i, 1]
            obs.call.actors[i] = s.num_buoys + i
            for j in range(s.num_ships):
                obs.call.mask[i, j] = not s.mute and (i + j) % 2 == 0 or i == j
