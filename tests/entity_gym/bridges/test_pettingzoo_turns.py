"""Games of PettingZoo: agents that take turns, and sides of a group that play against each other."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gymnasium")

from gymnasium import spaces  # noqa: E402

from entity_gym import CategoricalAction, Category, Entity, Flag  # noqa: E402
from entity_gym.actions.choices import random_actions  # noqa: E402
from entity_gym.bridges.pettingzoo.incoming import (  # noqa: E402
    PettingZooEnvironment,
    pettingzoo_worlds,
)
from entity_gym.bridges.views.view import load_view  # noqa: E402
from entity_gym.pools.players import players_of  # noqa: E402
from entity_gym.pools.pool import ListEnv  # noqa: E402
from entity_gym.pools.seats import SeatedVecEnv  # noqa: E402
from tests.entity_gym.bridges.herds import Herd  # noqa: E402
from tests.entity_gym.pools.player_worlds import Dice  # noqa: E402
from tests.entity_gym.pools.processes.thread_workers import threads as threads  # noqa: E402


class Nim:
    """An AEC game: agents take one or two of `heap` matches in turn; who takes the last one wins 1 from each of the others.

    Args:
        heap: number of matches.
        players: number of agents.
        outs: an agent that takes two matches is out: it ends, and the others play on.
        limit: number of turns after which all agents are truncated.
        masks: "observation" or "info", which has the open choices, or "nowhere".
        names: of the agents.
    """

    metadata = {"name": "nim_v0"}

    def __init__(
        self,
        heap: int = 4,
        players: int = 2,
        outs: bool = False,
        limit: int = 99,
        masks: str = "observation",
        names: list[str] | None = None,
    ) -> None:
        self.possible_agents = names or [f"player_{i}" for i in range(players)]
        self._heap, self._outs, self._limit, self._masks = heap, outs, limit, masks
        self.taken: list[tuple[str, int]] = []

    def observation_space(self, agent: str) -> Any:
        seen = spaces.Box(0, 100, (2,))
        in_observation = self._masks == "observation"
        return spaces.Dict(observation=seen, action_mask=spaces.MultiBinary(3)) if in_observation else seen

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.agents = list(self.possible_agents)
        self.heap = self._heap
        self.turns = 0
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations, self.truncations = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, False)
        self.agent_selection = self.agents[0]
        self.taken = []

    @property
    def infos(self) -> dict[str, Any]:
        return {agent: {"action_mask": self.mask()} if self._masks == "info" else {} for agent in self.agents}

    def mask(self) -> Any:
        return np.array([1, self.heap > 1, 0], np.int8)

    def observe(self, agent: str) -> Any:
        seen = np.array([self.heap, self.possible_agents.index(agent)], np.float32)
        return {"observation": seen, "action_mask": self.mask()} if self._masks == "observation" else seen

    def agent_iter(self) -> None: ...

    def step(self, action: int | None) -> None:
        agent = self.agent_selection
        following = self.agents[(self.agents.index(agent) + 1) % len(self.agents)]
        self.rewards = dict.fromkeys(self.agents, 0.0)
        if self.terminations[agent] or self.truncations[agent]:
            assert action is None
            self.agents.remove(agent)
            self.agent_selection = following if self.agents else agent
            return
        assert action is not None
        self.taken.append((agent, action))
        self.heap -= action + 1
        self.turns += 1
        if action == 1:
            self.terminations[agent] = self._outs
        if self.heap <= 0:
            for each in self.agents:
                self.rewards[each] += len(self.agents) - 1 if each == agent else -1
            self.terminations = dict.fromkeys(self.agents, True)
        elif self.turns == self._limit:
            self.truncations = dict.fromkeys(self.agents, True)
        self.agent_selection = following

    def render(self) -> None: ...

    def close(self) -> None: ...


def take(agent: str, number: int) -> dict[str, CategoricalAction]:
    return {"player.action": CategoricalAction([agent], np.array([number - 1]))}


# ---- one episode


def test_one_agent_acts_in_each_step_and_all_are_seen() -> None:
    env = PettingZooEnvironment(Nim())
    obs = env.reset()
    for agent, number in (("player_0", 1), ("player_1", 2)):
        assert obs.actions["player.action"].actor_ids == [agent]
        assert obs.ids["player"] == ["player_0", "player_1"]
        assert obs.metrics["agents"] == 2 and obs.reward == 0 and not obs.done
        obs = env.act(take(agent, number))
    assert np.asarray(obs.features["player"]).tolist() == [[1, 0, 1, 0], [1, 1, 0, 1]]  # matches, number, turn, side
    obs = env.act(take("player_0", 1))
    assert obs.done and not obs.truncated
    assert list(obs.player_rewards) == [1, -1]
    assert obs.end_of_episode_info == {"score.player.0": 1, "score.player.1": -1}
    assert env.env.env.taken == [("player_0", 0), ("player_1", 1), ("player_0", 0)]
    again = env.reset()
    assert not again.done and again.actions["player.action"].actor_ids == ["player_0"]
    assert np.asarray(again.features["player"])[:, 0].tolist() == [4, 4]


@pytest.mark.parametrize("masks", ["observation", "info"])
def test_masks_of_the_acting_agent_count(masks: str) -> None:
    env = PettingZooEnvironment(Nim(heap=3, masks=masks))
    obs = env.reset()
    for agent, number, open_ in (("player_0", 2, [1, 1, 0]), ("player_1", 1, [1, 0, 0])):
        mask: Any = obs.actions["player.action"]
        assert mask.actor_ids == [agent] and np.asarray(mask.mask).tolist() == [open_]
        obs = env.act(take(agent, number))
    assert obs.done


def test_who_is_out_disappears_and_the_others_play_on() -> None:
    env = PettingZooEnvironment(Nim(heap=6, players=3, outs=True))
    env.reset()
    obs = env.act(take("player_0", 2))
    assert obs.ids["player"] == ["player_1", "player_2"]
    obs = env.act(take("player_1", 1))
    obs = env.act(take("player_2", 1))
    assert obs.actions["player.action"].actor_ids == ["player_1"]  # not player_0, whose turn is passed over
    obs = env.act(take("player_1", 2))
    assert obs.done and list(obs.player_rewards) == [0, 1, -1]


def test_a_game_that_is_cut_shows_its_last_state() -> None:
    env = PettingZooEnvironment(Nim(heap=9, limit=3))
    env.reset()
    for agent in ("player_0", "player_1", "player_0"):
        obs = env.act(take(agent, 1))
    assert obs.done and obs.truncated and not obs.actions
    assert np.asarray(obs.features["player"]).tolist() == [[6, 0, 0, 0], [6, 1, 1, 1]]  # player_1 would have been next


def test_an_ended_agent_that_stays_is_an_error_and_no_endless_loop() -> None:
    class Staying(Nim):
        def step(self, action: int | None) -> None:
            if action is not None:
                super().step(action)

    env = PettingZooEnvironment(Staying(heap=2))
    env.reset()
    with pytest.raises(
        ValueError, match=r"turn of 'player_1', and the agents that have not ended are \[\]: an agent that"
    ):
        env.act(take("player_0", 2))


# ---- groups and sides


def test_agents_of_a_game_share_type_and_actions_and_each_is_a_player() -> None:
    factory = pettingzoo_worlds(Nim, players=3)
    env = factory.as_environment()
    assert env.obs_space().entities["player"] == Entity(["0", "1", Flag("turn"), Category("side", 3)])
    assert list(env.action_space()) == ["player.action"]
    mapping = players_of(factory)
    assert mapping is not None and mapping.num_players == 3
    rows = np.array([[5, 0, 1, 0], [5, 1, 0, 1], [5, 2, 0, 2]], np.float32)
    assert mapping.players("player", rows).tolist() == [0, 1, 2]
    seen = mapping.seen_by(np.full(3, 1), "player", rows)
    assert seen.tolist() == [[0, 0, 1, 2], [5, 1, 0, 0], [0, 0, 0, 1]]  # the side counts from the player's own
    others = PettingZooEnvironment(Nim(names=["black_0", "white_0"]))
    assert list(others.obs_space().entities) == ["agent"] and others.player_names == ["agent.0", "agent.1"]


def test_sides_of_a_team_game_are_lists_in_the_list_of_the_group() -> None:
    sides = {"player": [["player_0", "player_2"], ["player_1", "player_3"]]}
    factory = pettingzoo_worlds(Nim, players=4, groups=sides)
    env = factory.as_environment()
    mapping = players_of(factory)
    assert mapping is not None and mapping.num_players == 2
    env.reset()
    for agent in ("player_0", "player_1", "player_2"):
        env.act(take(agent, 1))
    obs = env.act(take("player_3", 1))
    assert list(obs.player_rewards) == [-2, 2]
    assert obs.metrics["reward.player.1"] == 2
    viewed = players_of(pettingzoo_worlds(Facing, players=4, view=VIEW, groups=sides))
    assert viewed is not None and viewed.num_players == 2
    seen = viewed.seen_by(np.full(2, 1), "Me", np.array([[0, 1, 0], [3, 0, 1]], np.float32))
    assert seen.tolist() == [[0, 1, 1], [3, 0, 0]]
    assert viewed.seen_by(np.array([1]), "Heap", np.array([[4]], np.float32)).tolist() == [[4]]


def test_groups_beside_a_group_with_sides_keep_their_own_numbers() -> None:
    factory = pettingzoo_worlds(Herd, groups={"sheep": [["sheep_0"], ["sheep_1"], ["sheep_*"]], "wolf": "wolf*"})
    mapping = players_of(factory)
    assert mapping is not None and mapping.num_players == 4
    assert mapping.players("wolf", np.zeros((2, 3), np.float32)).tolist() == [3, 3]
    row = np.array([[8, 8, 1]], np.float32)
    assert mapping.seen_by(np.array([3]), "sheep", row).tolist() == [[0, 0, 1]]
    assert mapping.seen_by(np.array([1]), "sheep", row).tolist() == [[8, 8, 0]]
    obs = factory.as_environment().reset()
    assert obs.ids["sheep"] == ["sheep_0", "sheep_1"]
    assert np.asarray(obs.features["sheep"])[:, 2].tolist() == [0, 1]


# ---- views

VIEW = {
    "entities": {"Heap": {"count": 1, "features": ["matches"]}, "Me": {"count": 1, "features": ["number"]}},
    "actor": "Me",
}


class Facing(Nim):
    """The heap is the acting agent's alone: others observe 100."""

    def observe(self, agent: str) -> Any:
        shown = super().observe(agent)
        if agent != self.agent_selection:
            shown["observation"][0] = 100
        return shown


def test_with_a_view_entities_are_those_of_the_agent_whose_turn_it_is() -> None:
    env = PettingZooEnvironment(Facing(), view=load_view(VIEW))
    obs = env.reset()
    for turn, number in enumerate((1, 2)):
        heap = [4, 3][turn]
        assert np.asarray(obs.features["Heap"]).tolist() == [[heap]]
        assert np.asarray(obs.features["Me"]).tolist() == [[0, turn == 0, 0], [1, turn == 1, 1]]  # number, turn, side
        assert obs.actions["Me.action"].actor_ids == [f"player_{turn}"]
        obs = env.act({"Me.action": CategoricalAction([f"player_{turn}"], np.array([number - 1]))})
    obs = env.act({"Me.action": CategoricalAction(["player_0"], np.array([0]))})
    assert obs.done and list(obs.player_rewards) == [1, -1]


# ---- many environments


def test_self_play_of_a_turn_based_game_pays_each_side_its_own() -> None:
    factory = pettingzoo_worlds(Nim)
    mapping = players_of(factory)
    assert mapping is not None
    again = pickle.loads(pickle.dumps(factory))  # as it goes to worker processes
    pool = SeatedVecEnv(ListEnv(again, 4, seed=1), mapping, Dice(0, factory.as_environment().action_space()))
    rng, results = np.random.default_rng(0), []
    obs = pool.reset(1)
    for _ in range(60):
        rows = obs.features["player"].values.reshape(4, 2, 4)
        own = rows[:, :, 3] == 0
        assert (own.sum(axis=1) == 1).all() and (rows[own][:, 0] > 0).all() and not rows[~own][:, :2].any()
        acts = obs.action_masks["player.action"].actors.size1()
        np.testing.assert_array_equal(acts, rows[own][:, 2])
        obs = pool.act(random_actions(obs, rng, pool.action_space()))
        ended = {env_id: info["win_rate"] for env_id, info in obs.end_of_episode_info.items()}
        for env_id, reward in zip(obs.env_id.tolist(), obs.reward.tolist(), strict=True):
            assert reward == (2 * ended[env_id] - 1 if env_id in ended else 0)
        results += ended.values()
    assert 0.0 in results and 1.0 in results
