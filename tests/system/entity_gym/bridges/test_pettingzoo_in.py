"""PettingZoo environments as worlds of entities; what `Herd` shows and pays is worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("gymnasium")


from entity_gym import (  # noqa: E402
    CategoricalActionSpace,
)
from entity_gym.actions.choices import random_actions  # noqa: E402
from entity_gym.batch.vec_obs import VecAction, VecObs  # noqa: E402
from entity_gym.bridges.pettingzoo.incoming import from_pettingzoo  # noqa: E402
from entity_gym.pools.vec_env import VecEnv  # noqa: E402
from tests.entity_gym.bridges.herds import Herd  # noqa: E402


def at_random(pool: VecEnv, obs: VecObs, rng: np.random.Generator) -> dict[str, VecAction]:
    return random_actions(obs, rng, pool.action_space())


# ---- agents are entities


# ---- groups


# ---- masks


# ---- pools


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


# ---- groups that play against each other


# ---- environments of PettingZoo


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


# ---- faults


@pytest.mark.parametrize(
    "env_id", ["tictactoe_v3", "classic/tictactoe-v3", "classic/tictactoe_v3", "pettingzoo:tictactoe_v3"]
)
def test_an_id_is_found_however_it_is_written(env_id: str) -> None:
    pytest.importorskip("pettingzoo")
    pytest.importorskip("pygame")
    pool = from_pettingzoo(env_id)
    assert pool.action_space() == {"player.action": CategoricalActionSpace([str(i) for i in range(9)])}
    pool.close()


def test_what_pettingzoo_cannot_make_is_said_with_its_reason() -> None:
    pytest.importorskip("pettingzoo")
    pytest.importorskip("pygame")
    with pytest.raises(
        ValueError, match=r"cannot make 'classic/rps-v2' with \{'size': 3\}: .*unexpected keyword argument"
    ):
        from_pettingzoo("classic/rps-v2", size=3)


# ---- views
