"""Entity environments as `gymnasium.Env`s; what `out_worlds` show and pay is worked out by hand."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium")

from gymnasium import spaces  # noqa: E402

from entity_gym.bridges import to_gymnasium  # noqa: E402
from tests.entity_gym.bridges.out_worlds import Coins, Runners, Yard  # noqa: E402

Made = Callable[..., Any]

ROOM = {"max_entities": {"Dog": 3, "Cat": 2}, "max_actors": {"chase": 3, "bark": 3}}


@pytest.fixture
def out() -> Iterator[Made]:
    """`to_gymnasium`, compiled environments as ordinary Python; closes what it made."""
    made: list[Any] = []

    def make_one(env: Any, form: Any = "padded", **options: Any) -> Any:
        if isinstance(env, str) or hasattr(env, "as_environment"):
            options.setdefault("compile", False)
        made.append(to_gymnasium(env, form, **options))
        return made[-1]

    yield make_one
    for env in made:
        env.close()


# ---- padded


# ---- both


# ---- Stable-Baselines3


def test_stable_baselines3_learns_on_the_padded_form() -> None:
    sb3 = pytest.importorskip("stable_baselines3", reason="pip install stable-baselines3")
    env = to_gymnasium(Coins, max_entities={"Coin": 3})
    model = sb3.PPO("MultiInputPolicy", env, n_steps=128, batch_size=64, learning_rate=3e-3, seed=1, device="cpu")

    def mean_reward() -> float:
        rewards = []
        for k in range(100):
            obs, _ = env.reset(seed=k)
            rewards.append(env.step(model.predict(obs, deterministic=True)[0])[1])
        return float(np.mean(rewards))

    before = mean_reward()
    model.learn(640)
    after = mean_reward()
    env.close()
    assert before < 0.8  # this seed begins with bad guesses
    assert after > 0.95


@pytest.mark.parametrize(
    ("world", "options"),
    [
        ("MineSweeper", {"compile": False}),
        ("CartPole-v1", {"compile": False}),
        (Yard, {"run": False, **ROOM}),
        (Runners, {"max_entities": {"Runner": 2}}),
    ],
)
def test_stable_baselines3_takes_the_spaces(world: Any, options: dict[str, Any], out: Made) -> None:
    sb3 = pytest.importorskip("stable_baselines3", reason="pip install stable-baselines3")
    from stable_baselines3.common.env_checker import check_env as check_for_sb3

    env = out(world, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*(symmetric|unconventional shape)")  # it recommends, and flattens
        check_for_sb3(env)
    policy = "MultiInputPolicy" if isinstance(env.observation_space, spaces.Dict) else "MlpPolicy"
    model = sb3.PPO(policy, env, n_steps=16, batch_size=16, n_epochs=1, device="cpu")
    model.learn(16)
    assert model.num_timesteps == 16


# ---- measured room
