"""CartPole: balance a pole on a cart. `CartPole` is CartPole-v1, `CartPoleV0` is CartPole-v0."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from entity_gym.compiled import Categorical, CompiledEnvironment, Entity, rand_float
from entity_gym.envs.colours import BLUE

GRAVITY = 9.8  # m/s²
MASS_POLE = 0.1  # kg
TOTAL_MASS = 1.0 + MASS_POLE
HALF_LENGTH = 0.5  # m, from the hinge to the middle of the pole
POLE_MOMENT = MASS_POLE * HALF_LENGTH
FORCE = 10.0  # N
TAU = 0.02  # s, one step
MAX_POSITION = 2.4  # m
MAX_ANGLE = 12 * 2 * math.pi / 360
RIGHT = 1


class CartPole(CompiledEnvironment):
    """Balance a pole that is hinged to a cart, by pushing the cart left or right. The same dynamics as Gymnasium's.

    **Observation.** One `Cart` [position, velocity, angle, angular_velocity], in metres, radians and seconds; the angle
    is 0 for an upright pole and grows to the right. Each starts uniformly in -0.05 <= value < 0.05. With `show_velocities`
    false both velocities are shown as 0; a policy must find them from earlier observations.

    **Actions.** `Push`: left (0) or right (1), with 10 newtons for one step of 0.02 seconds.

    **A step.** With position x, angle θ, force F, and the masses and lengths of Barto, Sutton and Anderson (1983):

        a = (F + m l θ'² sin θ) / M
        θ'' = (g sin θ - a cos θ) / (l (4/3 - m cos² θ / M))
        x'' = a - m l θ'' cos θ / M

    where m = 0.1 is the pole's mass, l = 0.5 half its length, M = 1.1 the mass of everything and g = 9.8. One step of
    Euler's method follows: positions move with the old velocities.

    **Reward.** 1 in every step, including the last.

    **End.** Terminates when |position| > 2.4 or |angle| > 12 degrees. Truncated after `max_steps` steps unless that
    step terminates: 500 for CartPole-v1 (this class), 200 for CartPole-v0 (`CartPoleV0`).

    **Best score.** `max_steps`: pushing to the side to which the pole falls, by angle + angular velocity, balances for
    longer. Solved at a mean of 475, or 195 for CartPole-v0 (`reward_threshold`).

    Args:
        show_velocities: whether the two velocities are observed.
        max_steps: steps after which an episode is truncated; None for no limit.
    """

    entities = {"Cart": Entity(["position", "velocity", "angle", "angular_velocity"], max=1, ids=True)}
    actions = {"Push": Categorical(["left", "right"], actors="Cart")}
    parameters = {"show_velocities": True}
    max_steps = 500
    reward_threshold = 475.0
    state = [
        ("position", np.float64),
        ("velocity", np.float64),
        ("angle", np.float64),
        ("angular_velocity", np.float64),
    ]
    draw = {  # the cart is as high as the angle says, so that it is in the middle where the pole is upright
        "bounds": [-MAX_POSITION, -0.5, MAX_POSITION, 0.5],
        "y_up": True,
        "types": {
            "Cart": {"position": ["position", "angle"], "shape": "square", "color": BLUE, "size": 0.3, "trail": 50}
        },
    }

    def reset(s: Any) -> None:
        s.position = 0.1 * rand_float(s) - 0.05
        s.velocity = 0.1 * rand_float(s) - 0.05
        s.angle = 0.1 * rand_float(s) - 0.05
        s.angular_velocity = 0.1 * rand_float(s) - 0.05

    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        # The order of the operations is Gymnasium's: it decides the last bit.
        force = FORCE if act.Push[0] == RIGHT else -FORCE
        cos = math.cos(s.angle)
        sin = math.sin(s.angle)
        a = (force + POLE_MOMENT * (s.angular_velocity * s.angular_velocity) * sin) / TOTAL_MASS
        angular_acceleration = (GRAVITY * sin - cos * a) / (
            HALF_LENGTH * (4.0 / 3.0 - MASS_POLE * (cos * cos) / TOTAL_MASS)
        )
        acceleration = a - POLE_MOMENT * angular_acceleration * cos / TOTAL_MASS
        s.position += TAU * s.velocity
        s.velocity += TAU * acceleration
        s.angle += TAU * s.angular_velocity
        s.angular_velocity += TAU * angular_acceleration
        lost = abs(s.position) > MAX_POSITION or abs(s.angle) > MAX_ANGLE
        return 1.0, lost, False

    def observe(s: Any, obs: Any) -> None:
        obs.n.Cart = 1
        obs.Cart[0, 0] = s.position
        obs.Cart[0, 1] = s.velocity if s.show_velocities else 0.0
        obs.Cart[0, 2] = s.angle
        obs.Cart[0, 3] = s.angular_velocity if s.show_velocities else 0.0
        obs.ids.Cart[0] = 0


class CartPoleV0(CartPole):
    """CartPole-v0: `CartPole` with a limit of 200 steps, solved at a mean of 195."""

    max_steps = 200
    reward_threshold = 195.0
