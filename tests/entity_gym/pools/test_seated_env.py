"""Pools in which a learner plays one player of each environment: what it sees, earns and wins, and saving."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from entity_gym import Observation, SelectEntitiesAction
from entity_gym.actions.choices import random_actions
from entity_gym.batch.vec_obs import VecAction, VecObs
from entity_gym.envs.multi_snake import MultiSnake
from entity_gym.pools.players import players_of
from entity_gym.pools.pool import ListEnv, ThreadedVecEnv
from entity_gym.pools.seats import SeatedVecEnv
from entity_gym.pools.vec_env import VecEnv
from tests.entity_gym.pools.kinds_of_pools import contents, play_together
from tests.entity_gym.pools.player_worlds import DUEL, Bidder, Dice, Duel, Picnic, bids
from tests.entity_gym.pools.processes.thread_workers import threads as threads
from tests.worlds import choose, frames

# --- A pool in which the learner plays one player of each environment


def seated(*, bid: int = 1, num_envs: int = 2, **kwargs: Any) -> tuple[SeatedVecEnv, Bidder]:
    source = functools.partial(Duel, **kwargs)
    bidder, mapping = Bidder(bid), players_of(source)
    assert mapping is not None
    return SeatedVecEnv(ListEnv(source, num_envs), mapping, bidder), bidder


def test_the_learner_moves_its_own_player_and_earns_its_own_reward() -> None:
    env, bidder = seated(bid=1, pawns=2)
    obs = env.reset()
    assert env.seats.tolist() == [0, 1]
    assert obs.action_masks["bid"].actors.to_list() == [[[2], [4]], [[3], [5]]]
    assert obs.reward.tolist() == [0, 0]
    obs = env.act(bids([2, 2], [0, 1]))
    assert obs.reward.tolist() == [4, 1]
    obs = env.act(bids([0, 0], [0, 0]))
    assert obs.reward.tolist() == [0, 0]
    assert [shown.reward.tolist() for shown in bidder.shown] == [[0, 0], [2, 2]]
    assert bidder.shown[0].features["Pawn"].to_list()[0] == [[1, 0], [0, 0], [1, 0], [0, 0]]  # as player 1 sees it


def test_a_finished_episode_says_who_won_and_against_whom() -> None:
    env, _ = seated(bid=1, num_envs=3)
    env.reset()
    for _ in range(2):
        env.act(bids([1], [1], [1]))
    obs = env.act(bids([0], [2], [1]))
    assert obs.done.all() and obs.elapsed_step.tolist() == [0, 0, 0]
    told = [obs.end_of_episode_info[i] for i in range(3)]
    assert [info["win_rate"] for info in told] == [0.0, 1.0, 0.5]
    assert [info["opponent_reward"] for info in told] == [3.0, 3.0, 3.0]
    assert {info["opponent"] for info in told} == {"bidder 1"}
    assert told[0]["score_0"] == 2.0  # what the world says stays
    assert obs.reward.tolist() == [0, 2, 1]  # of the last step, beside the first frame of the next episode
    assert obs.features["Pawn"].to_list()[0] == [[0, 0], [1, 0]]
    for _ in range(3):
        obs = env.act(bids([2], [0], [2]))
    assert [obs.end_of_episode_info[i]["win_rate"] for i in range(3)] == [1.0, 0.0, 1.0]  # counted from 0 again


def test_without_rewards_of_their_own_all_share_one_and_nobody_wins() -> None:
    env, _ = seated(bid=1, tells=False)
    env.reset()
    assert env.act(bids([2], [0])).reward.tolist() == [3, 1]  # the sums
    env.act(bids([2], [0]))
    obs = env.act(bids([2], [0]))
    assert [obs.end_of_episode_info[i]["win_rate"] for i in range(2)] == [0.5, 0.5]
    assert [obs.end_of_episode_info[i]["opponent_reward"] for i in range(2)] == [9.0, 3.0]


def test_last_observations_are_seen_by_the_learner_too() -> None:
    env, _ = seated(cut=True)
    env.reset()
    for _ in range(3):
        obs = env.act(bids([1], [1]))
    assert obs.final is not None
    assert obs.final.features["Pawn"].to_list() == [[[0, 3], [1, 3]], [[1, 3], [0, 3]]]
    assert obs.final.action_masks["bid"].actors.items() == 0


def test_sets_of_the_learner_and_of_its_opponent_reach_the_world_together() -> None:
    source, worlds = functools.partial(Picnic, pawns=2), list[Picnic]()
    mapping = players_of(source)
    assert mapping is not None

    class Basket(Bidder):
        """Every pawn of the opponent picks the last basket, and then the first, and invites nobody."""

        def act(self, obs: VecObs, env_id: NDArray[np.int64]) -> dict[str, VecAction]:
            num_pawns = obs.action_masks["invite"].actors.size1()
            nobody = [[0] * (4 * n) for n in num_pawns]
            return {
                **super().act(obs, env_id),
                **choose("invite", nobody),
                **choose("pick", [[2, 0, 1] * n for n in num_pawns]),
            }

    def make() -> Picnic:
        worlds.append(source())
        return worlds[-1]

    env = SeatedVecEnv(ListEnv(make, 2), mapping, Basket(0))
    env.reset()
    worlds = worlds[-2:]
    # every pawn of the learner invites its right neighbour; the second, who is listed first, picks bread
    invite = choose("invite", [[0, 1, 0, 0, 0, 0, 0, 1], [0, 0, 1, 0, 1, 0, 0, 0]])
    env.act({**bids([1, 1], [1, 1]), **invite, **choose("pick", [[0, 1, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0]])})
    for learner, world in enumerate(worlds):
        pawns = [(0, 0), (1, 0), (0, 1), (1, 1)]
        invited = [[pawns[(k + 1) % 4]] if player == learner else [] for k, (player, _) in enumerate(pawns)]
        assert world.invited == SelectEntitiesAction(pawns, invited)
        listed = [(1, 1), (1, 0), (0, 1), (0, 0)]
        own = {(learner, 1): ["bread"], (learner, 0): []}
        assert world.picked == SelectEntitiesAction(listed, [own.get(pawn, ["cake", "apple"]) for pawn in listed])


def test_three_players_are_two_opponents() -> None:
    source = MultiSnake(board_size=6, num_snakes=3, num_players=3, max_snake_length=3)
    mapping = players_of(source)
    assert mapping is not None
    shown: list[VecObs] = []

    class Watching(Dice):
        def act(self, obs: VecObs, env_id: NDArray[np.int64]) -> dict[str, VecAction]:
            shown.append(obs)
            return super().act(obs, env_id)

    env = SeatedVecEnv(ThreadedVecEnv(source, 4), mapping, Watching(0, source.action_space()))
    env.act(random_actions(env.reset(), np.random.default_rng(0), env.action_space()))
    assert shown[0].env_id.tolist() == [0, 1, 2, 3] * 2
    assert shown[0].action_masks["move"].actors.values[:, 0].tolist() == [1, 2, 0, 1, 2, 0, 1, 2]


def test_parameters_that_decide_who_owns_what_stay() -> None:
    source = MultiSnake(num_players=2)
    mapping = players_of(source)
    assert mapping is not None
    env = SeatedVecEnv(ThreadedVecEnv(source, 2), mapping, Dice(0, source.action_space()))
    env.reset(env_info={"board_size": [6, 7]})
    with pytest.raises(ValueError, match="env_info of environment 1 has 'num_snakes', on which it depends"):
        env.reset(env_info=[{}, {"num_snakes": 4}])
    with pytest.raises(ValueError, match="env_info of environment 0 has 'num_players'"):
        env.configure({"num_players": [1, 1]})


def test_rewards_of_some_of_the_players_only_are_refused() -> None:
    class One(Duel):
        def act(self, actions: Any) -> Observation:
            return replace(super().act(actions), player_rewards=(1.0,))

    env = SeatedVecEnv(ListEnv(One, 2), DUEL, Bidder(0))
    env.reset()
    with pytest.raises(ValueError, match="environment 0: player_rewards has 1 numbers; the world has 2 players"):
        env.act(bids([1], [1]))


# --- Saving, and any pool


def snakes(kind: str) -> VecEnv:
    source = MultiSnake(board_size=4, num_snakes=2, num_players=2, max_snake_length=4, max_steps=9)
    if kind == "list":
        return ListEnv(source.as_environment, 6, 3)
    if kind == "processes":
        return ThreadedVecEnv(source, 6, num_processes=2, seed=3)
    return ThreadedVecEnv(source, 6, 2 if kind == "threads" else 1, seed=3)


def seat(pool: VecEnv) -> SeatedVecEnv:
    mapping = players_of(MultiSnake(num_players=2))
    assert mapping is not None
    return SeatedVecEnv(pool, mapping, Dice(1, pool.action_space()))


def test_a_saved_pool_goes_on_in_the_same_way() -> None:
    with seat(snakes("one thread")) as env, seat(snakes("one thread")) as other:
        play_together(env, 5)
        assert env.can_save
        state = env.state()
        expected = play_together(env, 30, env.load_state(state), seed=7)
        assert any(obs.end_of_episode_info for obs in expected)
        assert contents(play_together(other, 30, other.load_state(state), seed=7)) == contents(expected)


@pytest.mark.parametrize("kind", ["list", "processes"])
def test_all_pools_show_the_learner_the_same(kind: str, threads: None) -> None:
    shown = []
    for pool in (snakes("one thread"), snakes(kind)):
        with seat(pool) as env:
            shown.append([frames(obs) for obs in play_together(env, 25)])
    assert shown[0] == shown[1]


def test_both_seats_together_play_the_world_as_if_all_moves_were_chosen_by_hand() -> None:
    """The learner's moves and the opponent's, put together by hand, give the same boards, rewards and results."""
    moves = np.random.default_rng(4)
    with snakes("one thread") as pool, snakes("one thread") as by_hand:
        scripted = [moves.integers(4, size=(6, 2)) for _ in range(40)]  # [mine, theirs] in every environment
        seats = np.arange(6) % 2

        class Theirs(Dice):
            step = 0

            def act(self, obs: VecObs, env_id: NDArray[np.int64]) -> dict[str, VecAction]:
                assert obs.action_masks["move"].actors.values[:, 0].tolist() == (1 - seats).tolist()
                return choose("move", [[int(c)] for c in scripted[Theirs.step][:, 1]])

        mapping = players_of(MultiSnake(num_players=2))
        assert mapping is not None
        env = SeatedVecEnv(pool, mapping, Theirs(0, pool.action_space()))
        env.reset(), by_hand.reset()
        scores = np.zeros((6, 2))
        games = 0
        for step, chosen in enumerate(scripted):
            Theirs.step = step
            obs = env.act(choose("move", [[int(c)] for c in chosen[:, 0]]))
            whole = by_hand.act(
                choose(
                    "move", [[int(c) for c in (pair if seats[i] == 0 else pair[::-1])] for i, pair in enumerate(chosen)]
                )
            )
            rewards = whole.arrays["player_reward"].values.reshape(6, -1)[:, :2]  # type: ignore[union-attr]
            scores += rewards
            assert np.allclose(rewards.sum(1), whole.reward)
            assert obs.reward.tolist() == rewards[np.arange(6), seats].tolist()
            for i in range(6):
                head = obs.features["SnakeHead"][i].values
                assert head[:, :2].tolist() == whole.features["SnakeHead"][i].values[:, :2].tolist()
                assert head[:, 2].tolist() == ([0, 1] if seats[i] == 0 else [1, 0])
            for i in np.flatnonzero(whole.done).tolist():
                own, other = scores[i, seats[i]], scores[i, 1 - seats[i]]
                assert obs.end_of_episode_info[i]["win_rate"] == (own > other) + 0.5 * (own == other)
                assert obs.end_of_episode_info[i]["opponent_reward"] == pytest.approx(other)
                assert whole.end_of_episode_info[i][f"score_{1 - seats[i]}"] == pytest.approx(other)
                scores[i] = 0
                games += 1
        assert games > 20
