"""MoveToOrigin: a spaceship with two thrusters flies home from the unit circle."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from entity_gym.compiled import Categorical, CompiledEnvironment, Entity, rand_float
from entity_gym.envs.drawing import BLUE, DARK, LINE, ORANGE, Image, Plane, canvas, disc, line, name_of

NUM_STEPS = 32
THRUST = (0.01, 0.001, 0.0, -0.001, -0.01)  # what each choice adds to a velocity


class MoveToOrigin(CompiledEnvironment):
    """Fly a spaceship so that it is as near to the origin as possible when the episode ends.

    **Observation.** One `Spaceship` [x_pos, y_pos, x_velocity, y_velocity, step], at rest at first, at a uniformly
    drawn angle of the unit circle; x grows to the right and y upwards. `step` counts from 0 to 32.

    **Actions.** `horizontal_thruster` and `vertical_thruster`: one of five choices each, which add 0.01, 0.001, 0,
    -0.001 or -0.01 to the velocity along x and y. Right and up are positive.

    **A step.** First the velocities change, then the position moves by the new velocities.

    **Reward.** The distance to the origin before the step, less the distance after it. An episode's rewards sum to 1 -
    (final distance).

    **End.** Terminates after the 32nd step. `end_of_episode_info` then has the final `distance`.

    **Best score.** 0.9996 on average: every start allows each coordinate to be within 0.0005 of 0 at the 32nd step, a
    distance of at most 0.00071, and of 0.0004 on average.
    """

    entities = {"Spaceship": Entity(["x_pos", "y_pos", "x_velocity", "y_velocity", "step"], max=1)}
    actions = {
        "horizontal_thruster": Categorical(
            ["100% right", "10% right", "hold", "10% left", "100% left"], actors="Spaceship"
        ),
        "vertical_thruster": Categorical(["100% up", "10% up", "hold", "10% down", "100% down"], actors="Spaceship"),
    }
    state = [
        ("x", np.float64),
        ("y", np.float64),
        ("x_velocity", np.float64),
        ("y_velocity", np.float64),
        ("distance", np.float64),  # of (x, y) to the origin
    ]
    info = ["distance"]
    reward_threshold = 0.99

    def reset(s: Any) -> None:
        angle = 2 * math.pi * rand_float(s)
        s.x = math.cos(angle)
        s.y = math.sin(angle)
        s.x_velocity = 0.0
        s.y_velocity = 0.0
        s.distance = 1.0

    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        s.x_velocity += THRUST[act.horizontal_thruster[0]]
        s.y_velocity += THRUST[act.vertical_thruster[0]]
        s.x += s.x_velocity
        s.y += s.y_velocity
        before = s.distance
        s.distance = math.sqrt(s.x * s.x + s.y * s.y)
        return before - s.distance, s.steps >= NUM_STEPS, False

    def observe(s: Any, obs: Any) -> None:
        obs.n.Spaceship = 1
        obs.Spaceship[0, 0] = s.x
        obs.Spaceship[0, 1] = s.y
        obs.Spaceship[0, 2] = s.x_velocity
        obs.Spaceship[0, 3] = s.y_velocity
        obs.Spaceship[0, 4] = s.steps

    def draw(s: Any) -> dict[str, Any]:
        """Hints for replays: the square |x|, |y| <= 1.5, and where the spaceship has been."""
        ship = {
            "position": ["x_pos", "y_pos"],
            "shape": "circle",
            "color": name_of(BLUE),
            "size": 0.1,
            "trail": NUM_STEPS,
        }
        return {"bounds": [-1.5, -1.5, 1.5, 1.5], "grid": False, "y_up": True, "types": {"Spaceship": ship}}

    def render(s: Any) -> Image:
        """The square |x|, |y| <= 1.5 as a (151, 151, 3) image; the line shows where the next ten steps would lead."""
        plane = Plane(-1.5, 1.5, 151)
        image = canvas(plane.size, plane.size)
        line(image, plane.pixel(-1.5, 0), plane.pixel(1.5, 0), LINE)
        line(image, plane.pixel(0, -1.5), plane.pixel(0, 1.5), LINE)
        disc(image, *plane.pixel(0, 0), 3, DARK)
        ahead = plane.pixel(s.x + 10 * s.x_velocity, s.y + 10 * s.y_velocity)
        line(image, plane.pixel(s.x, s.y), ahead, ORANGE, 2)
        disc(image, *plane.pixel(s.x, s.y), 5, BLUE)
        return image
