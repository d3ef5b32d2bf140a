"""Entity environments as `dm_env.Environment`s; what the worlds show and pay is worked out by hand."""

import unittest
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

dm_env = pytest.importorskip("dm_env")

from entity_gym.bridges import to_dm_env  # noqa: E402
from entity_gym.bridges.dm_env.envs import DmEnvironment  # noqa: E402
from entity_gym.registry import make  # noqa: E402
from tests.entity_gym.bridges.dm_specs import random_action, validate  # noqa: E402
from tests.entity_gym.bridges.out_worlds import Coins, Runners, Yard, plain  # noqa: E402

Made = Callable[..., DmEnvironment]
FIRST, MID, LAST = dm_env.StepType.FIRST, dm_env.StepType.MID, dm_env.StepType.LAST
ROOM = {"max_entities": {"Dog": 3, "Cat": 2}, "max_actors": {"chase": 3, "bark": 3, "run": 3}}


@pytest.fixture
def out() -> Iterator[Made]:
    """`to_dm_env`, compiled environments as ordinary Python; closes what it made."""
    made: list[DmEnvironment] = []

    def make_one(env: Any, **options: Any) -> DmEnvironment:
        if isinstance(env, str) or hasattr(env, "as_environment"):
            options.setdefault("compile", False)
        made.append(to_dm_env(env, **options))
        return made[-1]

    yield make_one
    for env in made:
        env.close()


def actions(chase: list[int], bark: list[int], run: list[list[float]], gate: int) -> dict[str, Any]:
    return {"chase": np.array(chase), "bark": np.array(bark), "run": np.array(run), "gate": np.array([gate])}


def test_an_episode_goes_from_first_over_mid_to_last(out: Made) -> None:
    env = out(Yard, max_steps=2, **ROOM)
    first = env.reset()
    assert (first.step_type, first.reward, first.discount) == (FIRST, None, None)
    assert plain(first.observation["entities"]) == {"Dog": [[10], [0], [0]], "Cat": [[1, 2], [3, 4]]}
    assert plain(first.observation["counts"]) == {"Dog": 1, "Cat": 2}
    assert plain(first.observation["actors"]["bark"]) == [0, -1, -1]

    # Cat 1 is in row 4 of all rows: 1000 for the gate, 200 for the cat, 10 for the bark and 2 for running.
    rest = [[0.0, 1.0]] * 2
    mid = env.step(actions([4, 0, 0], [1, 0, 0], [[0.5, 1.5], *rest], 1))
    assert (mid.step_type, mid.reward, mid.discount) == (MID, 1212.0, 1.0)
    last = env.step(actions([5, 5, 5], [0, 0, 0], [[0.0, 1.0], *rest], 0))  # 5 is nobody, and two dogs run
    assert (last.step_type, last.reward, last.discount) == (LAST, 2.0, 1.0)  # 1: it was cut
    assert plain(last.observation["counts"]) == {"Dog": 3, "Cat": 2}
    assert plain(last.observation["elapsed_step"]) == 2
    assert plain(env.reset().observation["counts"]) == {"Dog": 1, "Cat": 2}


def test_an_episode_that_ends_by_its_own_rules_has_the_discount_0(out: Made) -> None:
    env = out(Coins, max_entities={"Coin": 3})
    first = env.reset()
    right = first.observation["entities"]["Coin"].sum() > 0
    last = env.step(int(right))
    assert (last.step_type, last.reward, last.discount) == (LAST, 1.0, 0.0)


def test_the_step_after_the_last_is_the_first_of_the_next_episode(out: Made) -> None:
    def play(restart: Callable[[DmEnvironment], Any]) -> list[Any]:
        env = out("MineSweeper", seed=4, max_episode_steps=5)
        rng, seen = np.random.default_rng(0), [env.reset()]
        for _ in range(30):
            if seen[-1].last():
                seen.append(restart(env))
            else:
                seen.append(env.step(random_action(env.action_spec(), rng)))
        return [(step.step_type, step.reward, plain(step.observation)) for step in seen]

    by_reset = play(lambda env: env.reset())
    by_step = play(lambda env: env.step(env.action_spec()))  # which is no action, and ignored
    assert by_reset == by_step
    assert [step[0] for step in by_reset].count(FIRST) > 5


def test_before_any_reset_a_step_is_one(out: Made) -> None:
    env = out(Runners, max_entities={"Runner": 2})
    assert env.step(None).step_type is FIRST


def test_continuous_actions_have_their_bounds(out: Made) -> None:
    env = out(Runners, max_entities={"Runner": 2})
    spec = env.action_spec()["run"]
    assert (spec.shape, spec.dtype, spec.minimum.tolist()) == ((2, 2), np.float32, [[-2, 1], [-2, 1]])
    env.reset()
    assert env.step({"run": np.array([[0, 1], [2, 5]], np.float32)}).reward == 8.0
    with pytest.raises(ValueError, match="it must be a finite number from 1.0 to 5.0"):
        env.step({"run": np.array([[0, 0], [2, 5]], np.float32)})
    assert env.step({"run": np.array([[0, 1], [2, 5]], np.float32)}).step_type is LAST  # the refused one was no step


@pytest.mark.parametrize("name", ["MultiSnake"])
def test_every_environment_keeps_to_its_specs(name: str, out: Made) -> None:
    env, rng = out(name, max_episode_steps=6), np.random.default_rng(0)
    step = env.reset()
    for _ in range(20):
        assert isinstance(step.step_type, dm_env.StepType)
        validate(env.observation_spec(), step.observation)
        if step.first():
            assert (step.reward, step.discount) == (None, None)
        else:
            env.reward_spec().validate(np.float64(step.reward))
            env.discount_spec().validate(np.float64(step.discount))
        step = env.step(random_action(env.action_spec(), rng))


@pytest.mark.parametrize("name", ["MineSweeper"])
def test_environments_pass_the_tests_of_dm_env(name: str) -> None:
    pytest.importorskip("tree")
    from absl.testing import absltest
    from dm_env import test_utils

    class OfTheEnvironment(test_utils.EnvironmentTestMixin, absltest.TestCase):
        def make_object_under_test(self) -> DmEnvironment:
            return to_dm_env(name, compile=False, max_episode_steps=8)  # its test takes 20 steps

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(OfTheEnvironment).run(result)
    assert result.testsRun >= 4
    assert [trace for _, trace in (*result.failures, *result.errors)] == []


def test_one_environment_object_can_be_given(out: Made) -> None:
    yard = Yard()
    env = out(yard, **ROOM)
    env.reset()
    assert list(env.action_spec()) == ["chase", "bark", "run", "gate"]
    env.close()
    assert yard.closed == 1


def test_it_is_one_environment() -> None:
    with pytest.raises(ValueError, match=r"to_dm_env makes one environment; make\(.*\) has several side by side"):
        to_dm_env("Xor", num_envs=2)
    with (
        make("Xor", 2, compile=False, env_type="dm") as pool,
        pytest.raises(ValueError, match="the pool has 2 environments"),
    ):
        DmEnvironment(pool)


def test_an_action_in_place_of_a_dictionary_is_called_as_it_was_given() -> None:
    env = to_dm_env("MineSweeper", compile=False)
    env.reset()
    with pytest.raises(
        ValueError, match=r"actions are 99; expected a dictionary with \['Move', 'Fire Orbital Cannon'\]"
    ):
        env.step(99)
