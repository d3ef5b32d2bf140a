"""Actions that are real numbers: declared, offered, checked, and carried to every kind of environment."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from entity_gym import (
    CategoricalAction,
    CategoricalActionMask,
    CategoricalActionSpace,
    ContinuousAction,
    ContinuousActionMask,
    ContinuousActionSpace,
    Entity,
    Observation,
    ObsSpace,
)
from entity_gym.actions.choices import random_actions
from entity_gym.batch.batching import batch_observations
from entity_gym.batch.ragged import RaggedBuffer
from entity_gym.compiled import Continuous
from entity_gym.pools.pool import ListEnv, ThreadedVecEnv
from tests.entity_gym.actions.harbour import A_TENTH, Harbour
from tests.worlds import Script, making

STEER = ContinuousActionSpace([-1, 0], [1, np.inf], ["turn", "thrust"])
SEA = ObsSpace({"Rock": Entity(["x"]), "Ship": Entity(["x"])})
ACTIONS = {"steer": STEER, "flag": CategoricalActionSpace(["down", "up"])}
INF, NAN = np.inf, np.nan


def sea(ships: int, rocks: int = 0, **actions: Any) -> Observation:
    ids = {"Ship": [f"ship{i}" for i in range(ships)]}
    return Observation(features={"Rock": [[0.0]] * rocks, "Ship": [[0.0]] * ships}, ids=ids, actions=actions)


def pool(*observations: Observation) -> tuple[ListEnv, list[Script]]:
    envs = [Script([obs, Observation()], SEA, ACTIONS) for obs in observations]
    vec_env = ListEnv(making(*envs), len(envs))
    vec_env.reset()
    return vec_env, envs


def steer(*frames: list[list[float]]) -> dict[str, Any]:
    """`frames[i]` are the numbers of the actors of environment i; nobody flags."""
    flat = np.array([row for frame in frames for row in frame], np.float32).reshape(-1, 2)
    none = RaggedBuffer.from_flattened(np.zeros((0, 1), np.int64), [0] * len(frames))
    return {"steer": RaggedBuffer.from_flattened(flat, [len(frame) for frame in frames]), "flag": none}


# --- The space


def test_a_space_holds_bounds_and_names() -> None:
    assert (STEER.low, STEER.high, STEER.names, STEER.width) == ((-1.0, 0.0), (1.0, INF), ("turn", "thrust"), 2)
    assert ContinuousActionSpace(np.array([-1, 0]), np.array([1, INF]), ["turn", "thrust"]) == STEER
    assert hash(STEER) == hash(ContinuousActionSpace([-1, 0], [1, INF], ["turn", "thrust"]))
    low, high = STEER.bounds()
    assert (low.dtype, low.tolist(), high.tolist()) == (np.float32, [-1, 0], [1, INF])
    assert (STEER.labels, ContinuousActionSpace([0], [1]).labels) == (("turn", "thrust"), ("0",))


@pytest.mark.parametrize(
    ("low", "high", "names", "message"),
    [
        ([], [], None, "0 numbers in low and 0 in high.*at least one"),
        ([0], [1, 2], None, "1 numbers in low and 2 in high"),
        ([0], "1", None, "high is '1'; it must be a list"),
        ([NAN], [1], None, r"low\[0\] is nan"),
        ([0, INF], [1, INF], None, r"low\[1\] is inf.*or -inf for no bound"),
        ([0], [1e39], None, r"high\[0\] is 1e\+39; it must be a number that float32 can hold"),
        ([0, 1], [1, 1], None, r"low\[1\] is 1.0 and high\[1\] 1.0; low must be smaller"),
        ([1], [1 + 1e-9], None, "as float32 too"),
        ([0, 0], [1, 1], ["a"], "1 names for 2 numbers"),
    ],
)
def test_a_space_that_cannot_be_is_refused(low: Any, high: Any, names: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ContinuousActionSpace(low, high, names)
    with pytest.raises(ValueError, match=message):
        Continuous(low, high, names, actors="Ship")


# --- The way to the environment


def test_an_environment_gets_numbers_with_its_own_ids() -> None:
    flag = CategoricalActionMask(actor_ids=["ship0"])
    frames = [
        sea(2, rocks=2, steer=ContinuousActionMask(actor_ids=["ship1", "ship0"]), flag=flag),
        sea(1),
        sea(1, steer=ContinuousActionMask()),
    ]
    env, envs = pool(*frames)
    actions = steer([[-1, 0], [0.5, 7]], [], [[1, 3e38]])
    actions["flag"] = RaggedBuffer.from_flattened([[1]], [1, 0, 0])
    env.act(actions)
    first, none, last = (each.received[-1] for each in envs)
    assert isinstance(first["steer"], ContinuousAction) and isinstance(first["flag"], CategoricalAction)
    assert (first["steer"].actors, first["steer"].values.tolist()) == (["ship1", "ship0"], [[-1, 0], [0.5, 7]])
    assert first["steer"].values.dtype == np.float32
    assert none == {}
    assert last["steer"].values.tolist() == [[1, np.float32(3e38)]]


def test_numbers_may_be_given_in_double_precision() -> None:
    env, envs = pool(sea(1, steer=ContinuousActionMask()))
    env.act({**steer([]), "steer": RaggedBuffer.from_array(np.array([[[1.0 + 1e-12, A_TENTH]]]))})
    assert envs[0].received[-1]["steer"].values.tolist() == [[1.0, np.float32(A_TENTH)]]


# --- Random ones


def test_random_numbers_are_uniform_within_bounds_and_normal_without() -> None:
    space = ContinuousActionSpace([-3, -INF, 2, -INF], [5, INF, INF, 7])
    obs = batch_observations([sea(4000, steer=ContinuousActionMask())], SEA, {"steer": space})
    actions = random_actions(obs, np.random.default_rng(0), {"steer": space})["steer"]
    assert actions.dtype == np.float32
    bounded, free, above, below = actions.values.T
    assert -3 <= bounded.min() < -2.9 and 4.9 < bounded.max() <= 5
    assert above.min() >= 2 and below.max() <= 7
    # Means and their standard errors: (-3 + 5) / 2 ± 2.31 / √4000, 0 ± 1 / √4000, and √(2 / π) ± 0.6 / √4000 away from a bound.
    away = np.sqrt(2 / np.pi)
    np.testing.assert_allclose([bounded.mean(), free.mean()], [1, 0], atol=0.15)
    np.testing.assert_allclose([above.mean(), below.mean()], [2 + away, 7 - away], atol=0.05)
    assert abs(free.std() - 1) < 0.06


@given(
    st.lists(st.tuples(*[st.floats(width=32, allow_nan=False, allow_infinity=False)] * 2), min_size=1, max_size=3),
    st.integers(0, 2**32 - 1),
)
def test_random_numbers_are_always_allowed(pairs: list[tuple[float, float]], seed: int) -> None:
    bounds = [sorted(pair) for pair in pairs if pair[0] != pair[1]] or [[-1.0, 1.0]]
    space = ContinuousActionSpace([low for low, _ in bounds], [high for _, high in bounds])
    env = ListEnv(making(Script([sea(3, steer=ContinuousActionMask())], SEA, {"steer": space})), 1)
    obs = env.reset()
    env.act(random_actions(obs, np.random.default_rng(seed), env.action_space()))


# --- Compiled environments


def test_compiled_worlds_take_the_bounds_that_float32_has() -> None:
    check_bounds(compile_=False)


def check_bounds(*, compile_: bool) -> None:
    env = ThreadedVecEnv(Harbour(ships=1), 1, compile=compile_)
    obs = env.reset()
    actions = random_actions(obs, np.random.default_rng(0), env.action_space())
    tenth = np.float32(A_TENTH)
    for thrust in (tenth, 1e30):
        actions["steer"].values[0] = (-1, thrust)
        env.act(actions)
    below = np.nextafter(tenth, np.float32(0))
    for wrong in ((0, below), (0, INF), (0, NAN), (NAN, 1), (np.nextafter(np.float32(1), np.float32(2)), 1), (-2, 1)):
        actions["steer"].values[0] = wrong
        with pytest.raises(ValueError, match=r"Harbour \(environment 0\): action 'steer' of entity \d: number 't"):
            env.act(actions)
    for other in (RaggedBuffer.from_array([[[0.0]]]), RaggedBuffer.from_array([[[0, 1]]])):
        with pytest.raises(ValueError, match="action 'steer' is .*expected a RaggedBuffer of float32 with 2"):
            env.act({**actions, "steer": other})


def test_the_plain_form_of_a_compiled_environment_takes_numbers_by_id() -> None:
    env = Harbour(ships=2).as_environment()
    obs = env.reset()
    assert obs.actions["steer"] == ContinuousActionMask(actor_ids=[("Ship", 0), ("Ship", 1)])
    before = obs.features["Ship"]
    flag = CategoricalAction([("Ship", 0), ("Ship", 1)], np.zeros(2, np.int64))
    numbers = ContinuousAction([("Ship", 1), ("Ship", 0)], np.array([[0.5, 2], [-0.5, 1]]))
    after = env.act({"flag": flag, "steer": numbers}).features["Ship"]
    np.testing.assert_allclose(after - before, [[-0.5, 1], [0.5, 2]], atol=1e-6)

    for wrong, message in (
        (ContinuousAction([("Ship", 0)], np.array([[0.5, 2]])), "number 'turn' is nan"),
        (ContinuousAction([("Ship", 9)], np.array([[0.5, 2]])), "names the actor .'Ship', 9., which was not offered"),
        (ContinuousAction(numbers.actors, np.zeros(4)), r"values of shape \(4,\) .*expected numbers of shape \(2, 2\)"),
        (ContinuousAction(numbers.actors, np.zeros((2, 2), np.bool_)), "values of shape .* and type bool"),
        (ContinuousAction(numbers.actors, np.array([[0, 1e300]] * 2)), "number 'thrust' is inf"),
        (flag, "is a CategoricalAction; it must be a ContinuousAction"),
    ):
        with pytest.raises(ValueError, match=message):
            env.act({"flag": flag, "steer": wrong})
