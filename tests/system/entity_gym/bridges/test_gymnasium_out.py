"""Stable-Baselines3 learns on an entity world."""

import numpy as np
import pytest

pytest.importorskip("gymnasium")

from entity_gym.bridges import to_gymnasium  # noqa: E402
from tests.entity_gym.bridges.out_worlds import Coins  # noqa: E402


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
