"""Entity worlds as Gymnasium's environments: spaces, ends, wrappers and checkers; what they show is in test_outgoing.py."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium")

from gymnasium import spaces  # noqa: E402
from gymnasium.utils.env_checker import check_env, data_equivalence  # noqa: E402
from gymnasium.vector import AutoresetMode, SyncVectorEnv  # noqa: E402

from entity_gym import make_gym  # noqa: E402
from entity_gym.bridges import to_gymnasium  # noqa: E402
from tests.entity_gym.bridges.out_worlds import (  # noqa: E402
    CHOICES,
    PACK_ROOM,
    ROOM,
    Coins,
    Hall,
    Packers,
    Runners,
    Yard,
    maker,
)
from tests.entity_gym.pools.kinds_of_pools import Counter  # noqa: E402

Made = Callable[..., Any]


@pytest.fixture
def out() -> Iterator[Made]:
    """`to_gymnasium`, or `make_gym` with a number of environments; compiled worlds as ordinary Python. Closes what it made."""
    yield from maker(to_gymnasium, make_gym)


# ---- spaces


def test_spaces_are_boxes_flags_and_choices(out: Made) -> None:
    env = out(Yard, **CHOICES)
    assert env.observation_space["entities/Cat"] == spaces.Box(-np.inf, np.inf, (2, 2), np.float32)
    assert env.observation_space["mask/Dog"] == spaces.MultiBinary((3,))
    assert env.observation_space["actors/chase"] == spaces.Box(-1, 4, (3,), np.int64)
    assert env.action_space == spaces.MultiDiscrete([6, 6, 6, 3, 3, 3, 2])
    runners = np.array([-2, 1] * 2, np.float32), np.array([2.1, 5] * 2, np.float32)
    assert out(Runners, max_entities={"Runner": 2}).action_space == spaces.Box(*runners)
    assert out(Counter, max_entities={"Total": 1}).action_space == spaces.Discrete(3)
    assert out(Packers, **PACK_ROOM).action_space == spaces.MultiDiscrete([2] * 12)
    assert out(Packers, ordered=True, max=2, **PACK_ROOM).action_space == spaces.MultiDiscrete([3] * 12)
    both = out(Yard, **ROOM).action_space
    assert both["bark"] == spaces.MultiDiscrete([3, 3, 3]) and both["run"].shape == (3, 2)


@pytest.mark.parametrize(
    ("world", "options"),
    [
        ("MineSweeper", {}),
        ("Skirmish", {}),
        (Yard, CHOICES),
        (Runners, {"max_entities": {"Runner": 2}}),
        (Packers, PACK_ROOM),
        (Packers, {"ordered": True, "others": True, "max_entities": PACK_ROOM["max_entities"]}),
    ],
)
def test_worlds_pass_gymnasiums_checker(world: Any, options: dict[str, Any], out: Made) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_env(out(world, **options), skip_render_check=True)  # it would make the world by its spec
    # Most features have no bounds, which Gymnasium remarks upon.
    said = [text for each in caught if "infinity" not in (text := str(each.message)) and "symmetric" not in text]
    assert said == []


# ---- one environment


def test_one_environment_returns_its_last_observation_and_then_wants_a_reset(out: Made) -> None:
    env = out(Hall, max_episode_steps=1)
    with pytest.raises(ValueError, match="act was called before reset"):
        env.step(np.zeros(5, int))
    env.reset()
    action = np.array([1, 0, 1, 0, 1])
    obs, reward, terminated, truncated, info = env.step(action)
    assert (obs["global"].tolist(), reward, terminated, truncated) == ([1], 111.0, False, True)
    assert (info["light"], info["elapsed_step"], info["env_id"]) == (1, 1, 0)
    with pytest.raises(ValueError, match="the episode of .* has ended.*call reset"):
        env.step(action)
    obs, info = env.reset(options={"env_info": {"doors": 3}})
    assert (obs["mask/Door"].tolist(), info["elapsed_step"]) == ([1, 1, 1], 0)


def test_what_is_open_can_be_asked_for_every_number_of_an_action(out: Made) -> None:
    env = out(Yard, **CHOICES)
    env.reset()
    chase, nobody = [0, 0, 0, 1, 1, 1], [1, 0, 0, 0, 0, 0]
    bark, none = [1, 1, 0], [1, 0, 0]
    expected = [*chase, *nobody, *nobody, *bark, *none, *none, 1, 1]
    assert env.action_masks().astype(int).tolist() == expected
    assert len(expected) == sum(env.action_space.nvec)
    cart, runners = out("CartPole-v1"), out(Runners, max_entities={"Runner": 2})
    cart.reset()
    runners.reset()
    assert (cart.action_masks().tolist(), runners.action_masks().tolist()) == ([True, True], [])


def test_every_number_of_a_set_may_be_0_and_more_where_the_row_is_open(out: Made) -> None:
    shut, open_ = [1, 0, 0], [1, 1, 1]
    env = out(Packers, ordered=True, max=2, **PACK_ROOM)
    env.reset()
    expected = [*shut, *open_, *shut, *shut, *shut, *open_, *(shut * 6)]
    assert env.action_masks().astype(int).tolist() == expected


@pytest.mark.parametrize(
    ("name", "options"),
    [("MineSweeper", {}), ("CherryPick", {}), (Packers, PACK_ROOM), (Packers, {"ordered": True} | PACK_ROOM)],
)
def test_what_is_open_is_never_replaced(name: Any, options: dict[str, Any], out: Made) -> None:
    env, rng = out(name, **options), np.random.default_rng(0)
    env.reset(seed=0)
    for _ in range(100):
        masks, nvec = env.action_masks(), getattr(env.action_space, "nvec", [getattr(env.action_space, "n", 0)])
        parts = np.split(masks, np.cumsum(nvec)[:-1])
        numbers = [rng.choice(np.flatnonzero(part)) for part in parts]
        *_, terminated, truncated, info = env.step(np.array(numbers) if len(nvec) > 1 else numbers[0])
        assert info["replaced_actions"] == 0
        if terminated or truncated:
            env.reset()


def test_images_are_those_of_the_world(out: Made) -> None:
    env = out("CherryPick", render_mode="rgb_array")
    env.reset()
    assert env.render().dtype == np.uint8 and env.metadata["render_modes"] == ["rgb_array"]
    assert out("CherryPick").render() is None


# ---- many environments


def test_the_end_of_an_episode_is_reported_as_gymnasium_does(out: Made) -> None:
    env = out(Hall, 2)
    env.reset(options={"env_info": [{"max_steps": 2}, {"max_steps": 3}]})
    still = np.array([[0, 0, 0, 0, 1], [0, 0, 0, 0, 0]])
    assert "final_obs" not in env.step(still)[-1]
    obs, _, terminated, truncated, info = env.step(still)
    assert (terminated.tolist(), truncated.tolist()) == ([False, False], [True, False])
    assert obs["global"].tolist() == [[0], [2]]
    assert info["final_obs"][0]["global"].tolist() == [2]
    assert info["final_obs"][0] in env.single_observation_space and obs in env.observation_space
    assert info["final_obs"][1] is None
    assert info["_final_obs"].tolist() == info["_final_info"].tolist() == [True, False]
    assert info["final_info"]["light"].tolist() == [1, 0]  # `info` of the environment
    assert info["final_info"]["_light"].tolist() == [True, False]
    assert info["final_info"]["elapsed_step"].tolist() == [2, 0]
    assert (info["elapsed_step"].tolist(), info["env_id"].tolist()) == ([0, 2], [0, 1])


def test_one_environment_is_the_same_in_gymnasiums_own_vector_environment(out: Made) -> None:
    options = {"orbital_cannon": True, "cooldown_period": 1, "max_episode_steps": 9}
    own = SyncVectorEnv([lambda: out("MineSweeper", **options)], autoreset_mode=AutoresetMode.SAME_STEP)
    ours = out("MineSweeper", 1, **options)
    assert own.observation_space == ours.observation_space
    assert own.action_space == ours.action_space
    assert ours.metadata["autoreset_mode"] is own.metadata["autoreset_mode"]
    assert ours.spec.config.max_episode_steps == 9
    own.action_space.seed(0)
    results: list[Any] = [own.reset(seed=3), ours.reset(seed=3)]
    ends = 0
    for _ in range(60):
        assert data_equivalence(*results, exact=True)
        assert results[1][0] in ours.observation_space
        action = own.action_space.sample()
        results = [own.step(action), ours.step(action)]
        ends += "final_obs" in results[1][-1]
    assert ends > 5


def test_reset_refuses_what_it_does_not_know(out: Made) -> None:
    env = out("Xor", 2)
    with pytest.raises(ValueError, match=r"options has \['reset_mask'\]; allowed: 'env_info'"):
        env.reset(options={"reset_mask": np.array([True, False])})


# ---- Stable-Baselines3


def test_stable_baselines3_takes_the_spaces(out: Made) -> None:
    pytest.importorskip("stable_baselines3", reason="pip install stable-baselines3")
    from stable_baselines3.common.env_checker import check_env as check_for_sb3

    coins = {"max_entities": {"Coin": 3}}
    for world, options in (("MineSweeper", {}), ("CartPole-v1", {}), (Yard, CHOICES), (Coins, coins)):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings(
                "ignore", message=".*(symmetric|unconventional shape)"
            )  # it recommends, and flattens
            check_for_sb3(out(world, **options))
