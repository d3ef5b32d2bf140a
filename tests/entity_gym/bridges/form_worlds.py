"""Small worlds without chance, for the tests of the Gymnasium and dm forms: what they show and pay is worked out by hand."""

from typing import Any

import numpy as np

from entity_gym.compiled import Array, Categorical, CompiledEnvironment, Entity, GlobalCategorical, SelectEntity

FIRST_DOOR, FIRST_GUEST = 10.0, 20.0


class Hall(CompiledEnvironment):
    """Guests choose doors and wave. The reward is 100 * light + 10 * the first guest's door + its wave; three steps."""

    entities = {
        "Door": Entity(["x"], max=3),
        "Guest": Entity(["x", "y"], max=2, hideable=True),
        "Lamp": Entity([], max=1),
    }
    global_features = ["time"]
    actions = {
        "enter": SelectEntity(actors="Guest", actees=["Door", "Lamp"]),
        "wave": Categorical(["no", "left", "right"], actors="Guest", masked=True),
        "light": GlobalCategorical(["off", "on"]),
    }
    parameters = {"doors": 2, "guests": 1}
    max_steps = 3
    state = [("light", np.int64)]
    info = ["light"]

    def reset(s: Any) -> None:
        s.light = 0

    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        s.light = act.light[0]
        place = act.enter[0]
        if place >= act.first.Lamp:
            place = 9
        return 100.0 * s.light + 10.0 * place + act.wave[0], False, False

    def observe(s: Any, obs: Any) -> None:
        obs.n.Door = s.doors
        for i in range(s.doors):
            obs.Door[i, 0] = 10.0 + i
        obs.n.Guest = s.guests
        for i in range(s.guests):
            obs.Guest[i, 0] = 20.0 + i
            obs.Guest[i, 1] = s.steps
            obs.wave.mask[i, 2] = i > 0  # the first guest cannot wave to the right
            obs.visible.Guest[i] = i == 0
        obs.n.Lamp = 1
        obs.global_features[0] = s.steps


class Crowd(CompiledEnvironment):
    """Players of whom one leaves with every step; those who hit are paid. It ends when nobody is left, or after two steps."""

    entities = {"Player": Entity(["strength"], max=4)}
    actions = {"hit": Categorical(["no", "yes"], actors="Player")}
    parameters = {"players": 2}
    max_steps = 2
    max_num_players = 4
    arrays = {
        "obs:players.view": Array((-1, 2), np.float32, low=0, high=10),
        "obs:clock": Array((), np.int64, low=0),
        "info:players.strength": Array((-1,), np.int64),
        "info:weather.wind": Array((2,), np.float64),
    }
    state = [("left", np.int64)]

    def reset(s: Any) -> None:
        s.left = s.players

    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        reward = 0.0
        for hit in act.hit:
            reward += hit
        s.left -= 1
        return reward, s.left == 0, False

    def observe(s: Any, obs: Any) -> None:
        obs.n.Player = s.left
        obs.n.players = s.left
        for i in range(s.left):
            obs.Player[i, 0] = i
            obs.arrays.obs_players_view[i, 0] = i
            obs.arrays.obs_players_view[i, 1] = s.steps
            obs.arrays.info_players_strength[i] = 7 + i
        obs.arrays.obs_clock[()] = s.steps
        obs.arrays.info_weather_wind[0] = 0.5
        obs.arrays.info_weather_wind[1] = s.steps
