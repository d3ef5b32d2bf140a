import math

import numpy as np
import pytest

from entity_gym.environment import Observation
from entity_gym.envs.move_to_origin import MoveToOrigin
from tests.entity_gym.envs.playing import act, episode, resets, rows, started

THRUSTS = {"100%": 10, "10%": 1, "hold": 0}  # thousandths
SIDES = {"horizontal_thruster": ("right", "left"), "vertical_thruster": ("up", "down")}


def nearest_thrust(missing: int, steps_left: int, sides: tuple[str, str]) -> str:
    """The choice that leaves least of a distance `missing`, in thousandths: it acts in each of the steps that are left."""
    options = {}
    for strength, thrust in THRUSTS.items():
        for side, sign in zip(sides, (1, -1), strict=True):
            options["hold" if thrust == 0 else f"{strength} {side}"] = sign * thrust
    return min(options, key=lambda name: abs(missing - options[name] * steps_left))


def fly_home(obs: Observation) -> dict[str, str]:
    x, y, x_velocity, y_velocity, step = rows(obs, "Spaceship")[0]
    left = int(32 - step)
    choices = {}
    for (action, sides), position, velocity in zip(SIDES.items(), (x, y), (x_velocity, y_velocity), strict=True):
        missing = round(-1000 * (position + velocity * left))  # from where it would end up without thrust
        choices[action] = nearest_thrust(missing, left, sides)
    return choices


def hold(obs: Observation) -> dict[str, str]:
    return {"horizontal_thruster": "hold", "vertical_thruster": "hold"}


def test_an_episode_starts_at_rest_on_the_unit_circle_in_every_direction() -> None:
    angles = []
    for env in resets(MoveToOrigin, 400):
        [[x, y, x_velocity, y_velocity, step]] = rows(env.observe(), "Spaceship")
        assert (x_velocity, y_velocity, step) == (0, 0, 0)
        assert math.hypot(x, y) == pytest.approx(1.0, abs=1e-6)
        angles.append(math.atan2(y, x))
    quarters = np.histogram(angles, bins=4, range=(-math.pi, math.pi))[0]
    assert quarters.min() > 60  # 100 expected; 9 is the standard deviation


@pytest.mark.parametrize(
    ("horizontal", "vertical", "velocity"),
    [
        ("100% right", "100% up", (0.01, 0.01)),
        ("10% right", "10% up", (0.001, 0.001)),
        ("hold", "hold", (0.0, 0.0)),
        ("10% left", "10% down", (-0.001, -0.001)),
        ("100% left", "100% down", (-0.01, -0.01)),
        ("100% left", "10% up", (-0.01, 0.001)),
    ],
)
def test_thrusters_change_the_velocity_and_the_new_velocity_the_position(
    horizontal: str, vertical: str, velocity: tuple[float, float]
) -> None:
    env = started(MoveToOrigin, x=1.0, y=0.0)
    obs = act(env, horizontal_thruster=horizontal, vertical_thruster=vertical)
    assert rows(obs, "Spaceship") == [pytest.approx([1 + velocity[0], velocity[1], *velocity, 1])]


def test_the_reward_is_the_distance_gained() -> None:
    env = started(MoveToOrigin, x=0.3, y=0.4, x_velocity=-0.29, y_velocity=-0.4, distance=0.5)
    obs = act(env, horizontal_thruster="100% left", vertical_thruster="hold")  # from (0.3, 0.4) to (0, 0)
    assert obs.reward == pytest.approx(0.5)
    obs = act(env, horizontal_thruster="hold", vertical_thruster="hold")  # and on to (-0.3, -0.4)
    assert obs.reward == pytest.approx(-0.5)


def test_an_episode_has_32_steps_and_ends_by_itself() -> None:
    env = started(MoveToOrigin)
    seen = episode(env, hold)
    assert len(seen) == 1 + 32
    assert seen[-1].done and not seen[-1].truncated
    assert seen[-1].end_of_episode_info == {"distance": 1.0}
    assert rows(env.reset(), "Spaceship")[0][4] == 0  # the clock starts again


def test_flying_home_scores_just_below_one() -> None:
    env, scores = started(MoveToOrigin), []
    for _ in range(30):
        seen = episode(env, fly_home)
        scores.append(sum(obs.reward for obs in seen))
        assert seen[-1].end_of_episode_info is not None
        assert scores[-1] == pytest.approx(1 - seen[-1].end_of_episode_info["distance"], abs=1e-5)
    assert 0.9992 < min(scores) and max(scores) < 1
    assert np.mean(scores) == pytest.approx(0.9996, abs=1e-4)


def test_the_spaceship_is_drawn_where_it_is_and_its_way_ahead_of_it() -> None:
    env = started(MoveToOrigin, x=-1.0, y=1.0, x_velocity=0.1)
    image = env.render()
    assert image.shape == (151, 151, 3)
    assert image[25, 25].tolist() == [
        38,
        110,
        200,
    ]  # a third from the left edge to the middle, and y = 1 is near the top
    assert image[25, 60].tolist() == [230, 150, 40]
