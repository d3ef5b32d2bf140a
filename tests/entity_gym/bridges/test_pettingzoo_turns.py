"""Agents that take turns, sides of a group that play against each other, and rewards that cancel."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gymnasium")

from gymnasium import spaces  # noqa: E402

from entity_gym import CategoricalAction, Category, Entity  # noqa: E402
from entity_gym.actions.choices import random_actions  # noqa: E402
from entity_gym.bridges.pettingzoo.incoming import (  # noqa: E402
    CANCELLED,
    PettingZooEnvironment,
    PettingZooFactory,
    from_pettingzoo,
)
from entity_gym.pools.players import players_of  # noqa: E402
from entity_gym.pools.pool import ListEnv  # noqa: E402
from entity_gym.pools.seats import SeatedVecEnv  # noqa: E402
from tests.entity_gym.bridges.herds import Herd  # noqa: E402
from tests.entity_gym.pools.player_worlds import Dice  # noqa: E402

MASK = np.array([1, 1, 0], np.int8)


class Nim:
    """Agents take one or two of `heap` matches in turn; who takes the last one wins 1 from each of the others.

    With `outs`, an agent that takes two matches is out: it ends, and the others play on.
    """

    metadata = {"name": "nim_v0"}

    def __init__(self, heap: int = 4, players: int = 2, outs: bool = False, masked: bool = True) -> None:
        self.possible_agents = [f"player_{i}" for i in range(players)]
        self._heap, self._outs, self._masked = heap, outs, masked

    def observation_space(self, agent: str) -> Any:
        seen = spaces.Box(0, 100, (2,))
        return spaces.Dict(observation=seen, action_mask=spaces.MultiBinary(3)) if self._masked else seen

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.agents = list(self.possible_agents)
        self.heap = self._heap
        self.rewards = dict.fromkeys(self.agents, 0)
        self.terminations, self.truncations = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, False)
        self.infos: dict[str, Any] = {agent: {} for agent in self.agents}
        self.agent_selection = self.agents[0]
        self.taken: list[tuple[str, int]] = []

    def observe(self, agent: str) -> Any:
        seen = np.array([self.heap, self.possible_agents.index(agent)], np.float32)
        return {"observation": seen, "action_mask": MASK} if self._masked else seen

    def agent_iter(self) -> None: ...

    def step(self, action: int | None) -> None:
        agent = self.agent_selection
        following = self.agents[(self.agents.index(agent) + 1) % len(self.agents)]
        self.rewards = dict.fromkeys(self.agents, 0)
        if self.terminations[agent]:
            assert action is None
            self.agents.remove(agent)
            self.agent_selection = following if self.agents else agent
            return
        assert action is not None
        self.taken.append((agent, action))
        self.heap -= action + 1
        if self._outs and action == 1:
            self.terminations[agent] = True
        if self.heap <= 0:
            self.rewards = {each: len(self.agents) - 1 if each == agent else -1 for each in self.agents}
            self.terminations = dict.fromkeys(self.agents, True)
        self.agent_selection = following

    def render(self) -> None: ...

    def close(self) -> None: ...


def take(agent: str, number: int) -> dict[str, CategoricalAction]:
    return {"player.action": CategoricalAction([agent], np.array([number - 1]))}


def test_one_agent_acts_in_each_step_and_all_are_seen() -> None:
    env = PettingZooEnvironment(Nim())
    obs = env.reset()
    for agent, number in (("player_0", 1), ("player_1", 2)):
        assert obs.actions["player.action"].actor_ids == [agent]
        assert obs.ids["player"] == ["player_0", "player_1"]
        assert obs.metrics["agents"] == 2 and obs.reward == 0 and not obs.done
        obs = env.act(take(agent, number))
    assert np.asarray(obs.features["player"]).tolist() == [[1, 0, 0], [1, 1, 1]]  # matches, number, side
    obs = env.act(take("player_0", 1))
    assert obs.done and not obs.truncated
    assert list(obs.player_rewards) == [1, -1]
    assert obs.end_of_episode_info is not None
    assert obs.end_of_episode_info["score.player_0"] == 1 and obs.end_of_episode_info["score.player_1"] == -1
    assert env.env.env.taken == [("player_0", 0), ("player_1", 1), ("player_0", 0)]


def test_without_masks_too_only_the_agent_whose_turn_it_is_acts() -> None:
    env = PettingZooEnvironment(Nim(masked=False))
    assert env.reset().actions["player.action"].actor_ids == ["player_0"]
    assert env.act(take("player_0", 1)).actions["player.action"].actor_ids == ["player_1"]


def test_who_is_out_disappears_and_the_others_play_on() -> None:
    env = PettingZooEnvironment(Nim(heap=6, players=3, outs=True))
    env.reset()
    obs = env.act(take("player_0", 2))
    assert obs.ids["player"] == ["player_1", "player_2"]
    obs = env.act(take("player_1", 1))
    obs = env.act(take("player_2", 1))
    assert obs.actions["player.action"].actor_ids == ["player_1"]  # not player_0, whose turn is passed over
    assert env.act(take("player_1", 2)).done


def test_agents_of_a_game_share_type_and_actions_and_each_is_a_player() -> None:
    factory = PettingZooFactory(Nim, players=3)
    env = factory()
    assert env.obs_space().entities["player"] == Entity(
        [*env.groups["player"].entity.features[:-1], Category("side", 3)]
    )
    assert list(env.action_space()) == ["player.action"]
    mapping = players_of(factory)
    assert mapping is not None and mapping.num_players == 3
    rows = np.array([[5, 0, 0], [5, 1, 1], [5, 2, 2]], np.float32)
    assert mapping.players("player", rows).tolist() == [0, 1, 2]
    seen = mapping.seen_by(np.full(3, 1), "player", rows)
    assert seen.tolist() == [[0, 0, 2], [5, 1, 0], [0, 0, 1]]  # the side counts from the player's own


def test_sides_of_a_team_game_are_lists_in_the_list_of_the_group() -> None:
    sides = {"player": [["player_0", "player_2"], ["player_1", "player_3"]]}
    factory = PettingZooFactory(Nim, players=4, groups=sides)
    env = factory()
    assert players_of(factory).num_players == 2  # type: ignore[union-attr]
    env.reset()
    for agent in ("player_0", "player_1", "player_2"):
        env.act(take(agent, 1))
    obs = env.act(take("player_3", 1))
    assert list(obs.player_rewards) == [-2, 2]
    assert obs.metrics["reward.player.1"] == 2


def test_groups_beside_a_group_with_sides_keep_their_own_numbers() -> None:
    factory = PettingZooFactory(Herd, groups={"sheep": [["sheep_0"], ["sheep_1"], ["sheep_*"]], "wolf": "wolf*"})
    mapping = players_of(factory)
    assert mapping is not None and mapping.num_players == 4
    assert mapping.players("wolf", np.zeros((2, 3), np.float32)).tolist() == [3, 3]
    width = len(factory().obs_space().entities["sheep"].features)
    row = np.ones((1, width), np.float32)
    assert mapping.seen_by(np.array([3]), "sheep", row).tolist() == [[0.0] * (width - 1) + [1.0]]


def test_self_play_of_a_turn_based_game_pays_each_side_its_own() -> None:
    factory = PettingZooFactory(Nim)
    mapping = players_of(factory)
    assert mapping is not None
    pool = SeatedVecEnv(ListEnv(factory, 4, seed=1), mapping, Dice(0, factory().action_space()))
    rng, results = np.random.default_rng(0), []
    obs = pool.reset(1)
    for _ in range(60):
        obs = pool.act(random_actions(obs, rng, pool.action_space()))
        results += [info["win_rate"] for info in obs.end_of_episode_info.values()]
        assert set(obs.reward.tolist()) <= {-1.0, 0.0, 1.0}
    assert 0.0 in results and 1.0 in results


def test_connect_four_is_played_by_its_id() -> None:
    pytest.importorskip("pettingzoo")
    pytest.importorskip("pygame")
    pool = from_pettingzoo("connect_four_v3", 2)
    rng, obs, ends = np.random.default_rng(0), pool.reset(), 0
    for _ in range(100):
        assert obs.action_masks["player.action"].actors.items() == 2
        assert obs.action_masks["player.action"].mask is None or obs.action_masks["player.action"].mask.values.any()
        obs = pool.act(random_actions(obs, rng, pool.action_space()))
        ends += int(obs.done.sum())
    assert ends >= 4
    pool.close()


def test_an_aec_environment_whose_agents_can_act_together_is_made_parallel() -> None:
    pytest.importorskip("pettingzoo")
    pytest.importorskip("pygame")
    env = PettingZooFactory("pettingzoo.classic.rps_v2:env")()
    assert len(env.reset().actions["player.action"].actor_ids) == 2  # type: ignore[arg-type]


# ---- rewards that cancel


def played(env: Any, steps: int = 60, num_envs: int = 2, **options: Any) -> list[str]:
    """The warnings of a pool that plays."""
    pool = from_pettingzoo(env, num_envs, **options)
    rng = np.random.default_rng(0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        obs = pool.reset()
        for _ in range(steps):
            obs = pool.act(random_actions(obs, rng, pool.action_space()))
    return [str(each.message) for each in caught if "cancelled" in str(each.message)]


def test_a_group_whose_rewards_always_cancel_draws_one_warning_that_names_groups() -> None:
    (warning,) = played(lambda: Nim(), groups={"player": "*"})
    assert warning == (
        "nim_v0: the rewards of player_0 and player_1, who are one player, 'player', have always cancelled, so their sum "
        "teaches nothing. If they play against each other, say so with groups={player: [[player_0], [player_1]]}, and train "
        "with self_play.enabled=true"
    )


def test_one_reward_that_does_not_cancel_is_enough_for_silence() -> None:
    class Generous(Nim):
        def step(self, action: int | None) -> None:
            super().step(action)
            if self.heap == 3:
                self.rewards = {agent: self.rewards[agent] + 1 for agent in self.agents}

    assert played(Nim, groups={"player": "*"}, steps=2 * CANCELLED + 20)
    assert not played(Generous, groups={"player": "*"})


def test_sides_of_their_own_draw_no_warning() -> None:
    assert not played(Nim)
