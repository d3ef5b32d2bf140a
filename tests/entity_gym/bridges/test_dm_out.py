"""Entity worlds as dm_env's environments: specs, ends and dm_env's own tests; what they show is in test_outgoing.py."""

import unittest
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

dm_env = pytest.importorskip("dm_env")

from dm_env import specs  # noqa: E402

from entity_gym import make_dm  # noqa: E402
from entity_gym.bridges import to_dm_env  # noqa: E402
from entity_gym.bridges.dm_env.envs import DmEnvironment  # noqa: E402
from tests.entity_gym.bridges.out_worlds import ROOM, Coins, Hall, Yard, maker  # noqa: E402

Made = Callable[..., Any]
FIRST, MID, LAST = dm_env.StepType


@pytest.fixture
def out() -> Iterator[Made]:
    """`to_dm_env`, or `make_dm` with a number of environments; compiled worlds as ordinary Python. Closes what it made."""
    yield from maker(to_dm_env, make_dm)


def random_action(spec: Any, rng: np.random.Generator) -> Any:
    """Any of the actions that `spec` allows."""
    if isinstance(spec, dict):
        return {name: random_action(branch, rng) for name, branch in spec.items()}
    if spec.dtype.kind == "f":
        return rng.uniform(spec.minimum, spec.maximum).astype(spec.dtype)
    return rng.integers(spec.minimum, spec.maximum + 1)


def test_specs_carry_shapes_types_and_bounds(out: Made) -> None:
    env = out("CartPole-v1", 3)
    assert env.action_spec() == specs.BoundedArray((3,), np.int64, [0] * 3, [1] * 3)
    one = out("CartPole-v1")
    assert one.action_spec() == specs.BoundedArray((), np.int64, 0, 1)
    obs = one.observation_spec()
    assert list(obs) == ["entities/Cart", "mask/Cart", "actors/Push", "action_mask/Push", "env_id", "elapsed_step"]
    assert (obs["entities/Cart"].shape, obs["entities/Cart"].dtype) == ((1, 4), np.float32)
    assert obs["mask/Cart"] == specs.BoundedArray((1,), np.int8, 0, 1, name=obs["mask/Cart"].name)
    assert out(Hall).action_spec() == specs.BoundedArray((5,), np.int64, 0, [5, 5, 2, 2, 1])
    run = out(Yard, **ROOM).action_spec()["run"]
    assert (run.shape, run.dtype, run.minimum.tolist()) == ((3, 2), np.float32, [[-2, 1]] * 3)


@pytest.mark.parametrize("name", ["CartPole-v1", "MineSweeper", "MultiSnake", "Skirmish"])
def test_time_steps_are_as_the_specs_say(out: Made, name: str) -> None:
    for env in (out(name, max_episode_steps=6), out(name, 3, max_episode_steps=6)):
        rng, spec, step = np.random.default_rng(0), env.observation_spec(), env.reset()
        for _ in range(20):
            assert spec.keys() == step.observation.keys()
            for part, array in step.observation.items():
                spec[part].validate(array)
            if step.reward is not None:
                env.reward_spec().validate(np.asarray(step.reward))
                env.discount_spec().validate(np.asarray(step.discount))
            step = env.step(random_action(env.action_spec(), rng))


def test_environments_pass_the_tests_of_dm_env() -> None:
    pytest.importorskip("tree")
    from absl.testing import absltest
    from dm_env import test_utils

    class OfTheEnvironment(test_utils.EnvironmentTestMixin, absltest.TestCase):
        def make_object_under_test(self) -> DmEnvironment:
            return to_dm_env("MineSweeper", compile=False, max_episode_steps=8)  # its test takes 20 steps

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(OfTheEnvironment).run(result)
    assert result.testsRun >= 4
    assert [trace for _, trace in (*result.failures, *result.errors)] == []


def test_an_episode_is_first_then_mid_then_last_and_then_first_again(out: Made) -> None:
    env = out(Hall, 2)
    env.pool.reset(env_info=[{"max_steps": 1}, {"max_steps": 2}])
    lit = np.array([[0, 0, 0, 0, 1]] * 2)
    steps = [env.reset(), *(env.step(lit) for _ in range(5))]
    assert np.array([step.step_type for step in steps]).T.tolist() == [
        [FIRST, LAST, FIRST, LAST, FIRST, LAST],
        [FIRST, MID, LAST, FIRST, MID, LAST],
    ]
    # The action after a last step is ignored: nobody is paid for it.
    assert np.array([step.reward for step in steps]).T.tolist() == [
        [0, 100, 0, 100, 0, 100],
        [0, 100, 100, 0, 100, 100],
    ]
    assert [step.discount.tolist() for step in steps] == [[1, 1]] * 6  # they were cut
    assert [step.observation["elapsed_step"].tolist() for step in steps[:4]] == [[0, 0], [1, 1], [0, 2], [1, 0]]
    assert {i: dict(info) for i, info in env.obs.end_of_episode_info.items()} == {0: {"light": 1}, 1: {"light": 1}}


def test_an_episode_that_ends_by_its_own_rules_has_the_discount_0(out: Made) -> None:
    env = out(Coins, max_entities={"Coin": 3})
    first = env.reset()
    assert (first.step_type, first.reward, first.discount) == (FIRST, None, None)
    last = env.step(int(first.observation["entities/Coin"].sum() > 0))
    assert (last.step_type, last.reward, last.discount) == (LAST, 1.0, 0.0)
