import math
from typing import Any

import numpy as np
import pytest

from entity_gym.environment import Observation
from entity_gym.envs.cart_pole import CartPole, CartPoleV0
from tests.entity_gym.compiled.view import CompiledView
from tests.entity_gym.envs.playing import act, episode, resets, rows, started

FIELDS = ("position", "velocity", "angle", "angular_velocity")


def state_of(env: CompiledView) -> list[float]:
    return [float(env.record[field]) for field in FIELDS]


def balance(obs: Observation) -> dict[str, str]:
    [[_, _, angle, angular_velocity]] = rows(obs, "Cart")
    return {"Push": "right" if angle + angular_velocity > 0 else "left"}


def test_the_dynamics_are_gymnasiums_step_by_step() -> None:
    gymnasium: Any = pytest.importorskip("gymnasium.envs.classic_control.cartpole")
    reference, policy = gymnasium.CartPoleEnv(), np.random.default_rng(0)
    reference.reset()
    env, num_ends = started(CartPole), 0
    for _ in range(2000):
        push = int(policy.integers(2))
        reference.state, reference.steps_beyond_terminated = np.array(state_of(env)), None
        shown, reward, terminated, _, _ = reference.step(push)
        obs = act(env, Push=("left", "right")[push])
        np.testing.assert_allclose(state_of(env), reference.state, rtol=0, atol=1e-12)
        np.testing.assert_allclose(rows(obs, "Cart")[0], shown, rtol=0, atol=1e-6)
        assert obs.reward == reward
        assert (obs.done and not obs.truncated) == terminated
        if obs.done:
            num_ends += 1
            env.reset()
    assert num_ends > 50


def test_limits_are_gymnasiums() -> None:
    gymnasium: Any = pytest.importorskip("gymnasium")
    for name, env in (("CartPole-v0", CartPoleV0), ("CartPole-v1", CartPole)):
        spec = gymnasium.spec(name)
        assert (env.max_steps, env.reward_threshold) == (spec.max_episode_steps, spec.reward_threshold)


@pytest.mark.parametrize(("env", "limit"), [(CartPole, 500), (CartPoleV0, 200)])
def test_balancing_lasts_until_the_limit_and_scores_it(env: type[CartPole], limit: int) -> None:
    seen = episode(started(env), balance)
    assert len(seen) == 1 + limit
    assert sum(obs.reward for obs in seen) == limit
    assert seen[-1].truncated


def test_hidden_velocities_are_shown_as_zero_and_change_nothing_else() -> None:
    shown, hidden = started(CartPole, 3), started(CartPole(show_velocities=False), 3)
    for k in range(20):
        push = ("left", "right")[k % 2]
        seen, told = act(shown, Push=push), act(hidden, Push=push)
        [[position, velocity, angle, angular_velocity]] = rows(seen, "Cart")
        assert velocity and angular_velocity
        assert rows(told, "Cart") == [[position, 0, angle, 0]]
        assert (told.ids, told.reward, told.done) == (seen.ids, seen.reward, seen.done)


def test_starts_are_uniform_around_upright_rest() -> None:
    starts = np.array([state_of(env) for env in resets(CartPole, 1000)])
    assert -0.05 <= starts.min() < -0.049 and 0.049 < starts.max() < 0.05
    np.testing.assert_allclose(starts.mean(axis=0), 0, atol=0.005)
    np.testing.assert_allclose(starts.std(axis=0), 0.1 / math.sqrt(12), atol=0.002)
    np.testing.assert_allclose(np.corrcoef(starts.T), np.eye(4), atol=0.15)
