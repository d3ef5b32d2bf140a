"""PettingZoo's own environments and games as worlds of entities."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("gymnasium")


from entity_gym import CategoricalAction  # noqa: E402
from entity_gym.actions.choices import random_actions  # noqa: E402
from entity_gym.batch.vec_obs import VecAction, VecObs  # noqa: E402
from entity_gym.bridges.pettingzoo.incoming import (  # noqa: E402
    PettingZooEnvironment,
    from_pettingzoo,
    pettingzoo_worlds,
)
from entity_gym.pools.vec_env import VecEnv  # noqa: E402
from tests.entity_gym.bridges.herds import Herd  # noqa: E402


def at_random(pool: VecEnv, obs: VecObs, rng: np.random.Generator) -> dict[str, VecAction]:
    return random_actions(obs, rng, pool.action_space())


def test_threads_and_processes_play_the_same_game() -> None:
    def play(**options: int) -> list[Any]:
        pool = from_pettingzoo(Herd, 3, length=3, **options)
        rng = np.random.default_rng(0)
        obs = pool.reset()
        shown = []
        for _ in range(5):
            obs = pool.act(at_random(pool, obs, rng))
            shown.append((obs.reward.tolist(), obs.done.tolist(), obs.features["sheep"].to_list()))
        pool.close()
        return shown

    alone = play()
    assert [done for _, done, _ in alone] == [[False] * 3] * 2 + [[True] * 3] + [[False] * 3] * 2
    assert [[len(sheep) for sheep in frames] for *_, frames in alone] == [[k] * 3 for k in (1, 2, 2, 1, 2)]
    assert play(num_threads=2) == play(num_processes=2) == alone


@pytest.mark.parametrize(
    "env_id", ["classic/rps-v2", "pettingzoo.classic.rps_v2:parallel_env", "butterfly/knights_archers_zombies-v11"]
)
def test_environments_of_pettingzoo_play_through(env_id: str) -> None:
    pytest.importorskip("pettingzoo")
    pytest.importorskip("pygame")
    pool = from_pettingzoo(env_id, 2, max_cycles=12)
    assert isinstance(pool, VecEnv)
    rng = np.random.default_rng(0)
    obs = pool.reset()
    ends = 0
    for _ in range(26):
        assert sum(mask.actors.items() for mask in obs.action_masks.values()) > 0
        obs = pool.act(at_random(pool, obs, rng))
        ends += int(obs.done.sum())
    assert ends >= 4
    pool.close()


@pytest.mark.parametrize(
    ("env_id", "packages"),
    [
        ("tictactoe_v3", []),
        ("leduc_holdem_v4", ["rlcard"]),
    ],
)
def test_rewards_of_games_are_those_that_pettingzoo_sums(env_id: str, packages: list[str]) -> None:
    for package in ("pettingzoo", "pygame", *packages):
        pytest.importorskip(package)
    import pettingzoo

    def make() -> Any:
        api_id = f"classic/{env_id.replace('_v', '-v')}"
        return pettingzoo.make("aec", pettingzoo.spec("aec", api_id))

    env, reference = PettingZooEnvironment(make()), make()
    env.reseed(5, 0)
    rng, nonzero = np.random.default_rng(0), 0
    for episode in range(8):
        obs = env.reset()
        reference.reset(seed=5 if episode == 0 else None)
        sums = dict.fromkeys(reference.possible_agents, 0.0)
        while not obs.done:
            agent = reference.agent_selection
            observation, earned, terminated, truncated, _ = reference.last()
            assert not terminated and not truncated
            assert earned == sums[agent]
            ((name, mask),) = obs.actions.items()
            assert mask.actor_ids == [agent]
            choice = rng.choice(np.flatnonzero(observation["action_mask"]))
            sums[agent] = 0.0
            reference.step(choice)
            obs = env.act({name: CategoricalAction([agent], np.array([choice]))})
            for each, reward in zip(reference.possible_agents, obs.player_rewards, strict=True):
                sums[each] += reward
        for agent in reference.agent_iter():
            _, earned, *_ = reference.last()
            assert earned == sums[agent]
            nonzero += earned != 0
            reference.step(None)
    assert nonzero
    env.close()
    reference.close()


def test_an_aec_environment_whose_agents_can_act_together_is_made_parallel() -> None:
    pytest.importorskip("pettingzoo")
    pytest.importorskip("pygame")
    env = pettingzoo_worlds("pettingzoo.classic.rps_v2:env").as_environment()
    assert len(env.reset().actions["player.action"].actor_ids) == 2  # type: ignore[arg-type]
