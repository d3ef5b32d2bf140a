"""The dm form; what `form_worlds` show and pay is worked out by hand."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

dm_env = pytest.importorskip("dm_env")

from dm_env import specs  # noqa: E402

from entity_gym.batch.vec_obs import VecObs  # noqa: E402
from entity_gym.bridges.dm_env.envs import DmVecEnv, action_spec, observation_spec  # noqa: E402
from entity_gym.pools.pool import ListEnv  # noqa: E402
from entity_gym.registry import make, make_spec  # noqa: E402
from tests.entity_gym.bridges.dm_specs import random_action, validate  # noqa: E402
from tests.entity_gym.bridges.form_worlds import Crowd, Hall  # noqa: E402
from tests.entity_gym.pools.kinds_of_pools import Counter  # noqa: E402

Made = Callable[..., DmVecEnv]
FIRST, MID, LAST = 0, 1, 2


@pytest.fixture
def dm() -> Iterator[Made]:
    """Makes dm environments, as ordinary Python, and closes them."""
    made: list[DmVecEnv] = []

    def make_one(env: Any, num_envs: int = 2, **options: Any) -> DmVecEnv:
        if isinstance(env, str) or hasattr(env, "as_environment"):
            options.setdefault("compile", False)
        made.append(make(env, num_envs, env_type="dm", **options))
        return made[-1]

    yield make_one
    for env in made:
        env.close()


def plain(tree: Any) -> Any:
    return (
        {name: plain(branch) for name, branch in tree.items()} if isinstance(tree, dict) else np.asarray(tree).tolist()
    )


def hit(*players: int) -> dict[str, np.ndarray]:
    """Of `Crowd`: in each environment, the first so many players hit."""
    return {"hit": (np.arange(4) < np.array(players)[:, None]).astype(np.int64)}


def test_specs_carry_shapes_types_and_bounds(dm: Made) -> None:
    env = dm("CartPole-v1", 3)
    action = env.action_spec()
    assert (action.shape, action.dtype, action.minimum.tolist(), action.maximum.tolist()) == (
        (3,),
        np.int64,
        [0] * 3,
        [1] * 3,
    )
    spec = make_spec("CartPole-v1")
    assert action_spec(spec) == specs.BoundedArray((), np.int64, 0, 1)
    obs = observation_spec(spec)
    assert list(obs) == ["obs", "env_id", "elapsed_step"]
    assert (obs["obs"].shape, obs["obs"].dtype) == ((4,), np.float32)
    assert obs["obs"].maximum.tolist() == [np.float32(4.8), np.inf, np.float32(0.41887903), np.inf]
    assert action_spec(make_spec(Hall))["enter"] == specs.BoundedArray((2,), np.int64, 0, 5)


@pytest.mark.parametrize("name", ["CartPole-v1", "MineSweeper", "RockPaperScissors", "Skirmish"])
def test_time_steps_are_as_the_specs_say(dm: Made, name: str) -> None:
    env, rng = dm(name, 3), np.random.default_rng(0)
    spec = env.observation_spec()
    step = env.reset(seed=1)
    for _ in range(25):
        validate(spec, step.observation)
        env.reward_spec().validate(step.reward)
        env.discount_spec().validate(step.discount)
        assert (step.step_type.shape, step.step_type.dtype) == ((3,), np.int32)
        step = env.step(random_action(env.action_spec(), rng))


def test_an_episode_is_first_then_mid_then_last_and_then_first_again(dm: Made) -> None:
    env = dm(Crowd, 2)  # two players each, of whom one leaves with every step
    steps = [env.reset(), *(env.step(hit(2, k)) for k in (1, 0, 4, 1, 0))]
    assert [step.step_type.tolist() for step in steps] == [[FIRST] * 2, [MID] * 2, [LAST] * 2] * 2
    # the third action is ignored: nobody is paid for it
    assert [step.reward.tolist() for step in steps] == [[0, 0], [2, 1], [1, 0], [0, 0], [2, 1], [1, 0]]
    assert [step.discount.tolist() for step in steps] == [[1, 1], [1, 1], [0, 0]] * 2  # they end by their own rules
    assert [plain(step.observation["clock"]) for step in steps] == [[0, 0], [1, 1], [2, 2]] * 2
    assert [plain(step.observation["elapsed_step"]) for step in steps] == [[0, 0], [1, 1], [2, 2]] * 2


def test_an_episode_that_is_cut_keeps_its_discount(dm: Made) -> None:
    env = dm(Crowd, 2, players=4)  # cut after two steps, when two are left
    env.reset()
    env.step(hit(0, 0))
    step = env.step(hit(0, 0))
    assert (step.step_type.tolist(), step.discount.tolist()) == ([LAST, LAST], [1, 1])
    assert plain(step.observation["players"]["view"]) == [[0, 2], [1, 2], [0, 2], [1, 2]]


def test_environments_end_each_in_their_own_time(dm: Made) -> None:
    env = dm(Crowd, 2)
    env.pool.reset(env_info={"players": [1, 2]})
    steps = [env.reset(), *(env.step(hit(1, 2)) for _ in range(5))]
    assert np.array([step.step_type for step in steps]).T.tolist() == [
        [FIRST, LAST, FIRST, LAST, FIRST, LAST],
        [FIRST, MID, LAST, FIRST, MID, LAST],
    ]
    assert np.array([step.reward for step in steps]).T.tolist() == [[0, 1, 0, 1, 0, 1], [0, 2, 1, 0, 2, 1]]
    # rows of players: those of environment 0, then those of environment 1
    players = [plain(step.observation["players"]) for step in steps[:3]]
    assert players[0] == {"view": [[0, 0], [0, 0], [1, 0]], "env_id": [0, 1, 1], "strength": [7, 7, 8]}
    assert players[1] == {"view": [[0, 1]], "env_id": [1], "strength": [7]}
    assert players[2] == {"view": [[0, 0]], "env_id": [0], "strength": [7]}


def test_info_and_observation_are_one_dictionary(dm: Made) -> None:
    step = dm(Crowd, 2).reset()
    assert set(step.observation) == {"players", "clock", "env_id", "elapsed_step", "action_mask", "weather"}
    assert set(step.observation["players"]) == {"view", "env_id", "strength"}
    padded = dm(Hall, 2).reset().observation
    assert plain(padded["entities"]["Door"]) == [[[10], [11], [0]]] * 2
    assert plain(padded["actors"]["enter"]) == [[3, -1]] * 2


def test_actions_that_are_not_open_are_replaced_and_counted(dm: Made) -> None:
    env = dm(Hall, 1, max_episode_steps=1)
    env.reset()
    action = {"enter": np.array([[2, 0]]), "wave": np.array([[2, 0]]), "light": np.array([[1]])}
    steps = [env.step(action) for _ in range(3)]
    assert [step.reward.tolist() for step in steps] == [
        [190.0],
        [0.0],
        [190.0],
    ]  # the lamp, door 9, for door 2; no waving
    assert [plain(step.observation["replaced_actions"]) for step in steps] == [[2], [0], [2]]
    strict = dm(Hall, 1, invalid_actions="raise")
    strict.reset()
    with pytest.raises(ValueError, match="action 'enter' of actor 0 is 2, which is not open now"):
        strict.step(action)


def test_all_forms_play_the_same_episodes(dm: Made) -> None:
    def push(step: int) -> np.ndarray:
        return np.array([0, 1, step % 2])

    env = dm("CartPole-v1", 3, max_episode_steps=13)
    with make("CartPole-v1", 3, max_episode_steps=13, env_type="gymnasium", compile=False) as pool:
        obs, _ = pool.reset(seed=4)
        episodes: list[list[list[Any]]] = [[[obs[i].tolist()]] for i in range(3)]
        for t in range(60):
            obs, _, terminated, truncated, info = pool.step(push(t))
            for i in range(3):
                done = terminated[i] or truncated[i]
                episodes[i][-1].append(info["final_obs"][i].tolist() if done else obs[i].tolist())
                if done:
                    episodes[i].append([obs[i].tolist()])

    # In the dm form an environment falls behind by a step with every episode; environments 0 and 1 take constant actions.
    step = env.reset(seed=4)
    seen: list[list[list[Any]]] = [[], []]
    for t in range(50):
        for i in range(2):
            if step.step_type[i] == FIRST:
                seen[i].append([])
            seen[i][-1].append(step.observation["obs"][i].tolist())
        step = env.step(push(t))
    for i in range(2):
        assert len(seen[i]) > 3
        assert seen[i][:-1] == episodes[i][: len(seen[i]) - 1]


def test_the_first_step_is_a_reset(dm: Made) -> None:
    step = dm("Xor", 2).step(np.zeros(2, np.int64))
    assert step.step_type.tolist() == [FIRST, FIRST]


def test_asynchronously_every_environment_has_the_same_trajectory(dm: Made) -> None:
    def frame(step: Any, k: int) -> tuple[Any, ...]:
        observation = step.observation
        shown = (observation["obs"][k].tolist(), int(observation["elapsed_step"][k]))
        return (int(step.step_type[k]), float(step.reward[k]), float(step.discount[k]), *shown)

    env = dm("CartPole-v1", 4, batch_size=2, seed=9, max_episode_steps=10, num_threads=2)
    seen: dict[int, list[Any]] = {i: [] for i in range(4)}
    env.async_reset()
    while min(map(len, seen.values())) < 25:
        step = env.recv()
        ids = step.observation["env_id"]
        assert len(ids) == 2
        for k, i in enumerate(ids.tolist()):
            seen[i].append(frame(step, k))
        env.send(ids % 2, ids)

    env = dm("CartPole-v1", 4, seed=9, max_episode_steps=10)
    step = env.reset()
    for t in range(25):
        for i in range(4):
            assert seen[i][t] == frame(step, i)
        step = env.step(np.arange(4) % 2)


def test_what_the_observation_does_not_hold_is_in_the_pools_own(dm: Made) -> None:
    env = dm(Hall, 2, max_episode_steps=1)
    env.reset()
    env.step({"enter": np.zeros((2, 2), int), "wave": np.zeros((2, 2), int), "light": np.array([[0], [1]])})
    assert isinstance(env.obs, VecObs)
    assert {i: dict(info) for i, info in env.obs.end_of_episode_info.items()} == {0: {"light": 0}, 1: {"light": 1}}


def test_wrong_actions_are_named(dm: Made) -> None:
    env = dm(Crowd, 2)
    env.reset()
    env.step(hit(0, 0))
    env.step(hit(0, 0))
    env.step(hit(0, 0), env_id=[1])  # environment 0 is at its end, and 1 has begun
    with pytest.raises(ValueError, match="expected one row for each of 2 environments"):
        env.step(hit(0))
    with pytest.raises(
        ValueError, match=r"Crowd \(environment 1\): action 'hit' of actor \d is 2; it must be from 0 to 1"
    ):
        env.step({"hit": np.full((2, 4), 2)})


def test_a_pool_without_last_observations_is_refused_when_one_is_needed() -> None:
    spec = make_spec(Counter, limit=1, env_type="dm", max_entities={"Total": 1})
    env = DmVecEnv(ListEnv(lambda: Counter(limit=1), 1, final_observations="none"), spec)
    env.reset()
    with pytest.raises(ValueError, match="final_observations='all'"):
        env.step(np.array([0]))
    env.close()


def test_rows_of_players_have_a_spec_of_their_own() -> None:
    spec = observation_spec(make_spec(Crowd))["players"]["view"]
    assert spec.shape == (-1, 2)
    for players in (0, 3):
        spec.validate(np.zeros((players, 2), np.float32))
    spec.validate(spec.generate_value())
    for wrong in (np.zeros((3, 3), np.float32), np.zeros((3, 2), np.float64)):
        with pytest.raises(ValueError, match="view has shape"):
            spec.validate(wrong)
