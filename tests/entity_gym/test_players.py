"""A world of two players, taken apart and put together: what each sees, does, earns and wins is worked out by hand."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from entity_gym import (
    Action,
    ActionSpace,
    CategoricalAction,
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    Environment,
    GlobalCategoricalActionMask,
    GlobalCategoricalActionSpace,
    Observation,
    ObsSpace,
    SelectEntityActionMask,
    SelectEntityActionSpace,
)
from entity_gym.batching import batch_observations
from entity_gym.envs.minesweeper import MineSweeper
from entity_gym.envs.multi_snake import MultiSnake
from entity_gym.episode_env import EpisodeVecEnv
from entity_gym.list_env import ListEnv
from entity_gym.players import join, players_of, split
from entity_gym.process_env import ProcessVecEnv
from entity_gym.ragged import RaggedBufferI64
from entity_gym.sampling import random_actions
from entity_gym.seated_env import SeatedEpisodeVecEnv, SeatedVecEnv
from entity_gym.threaded_env import ThreadedVecEnv
from entity_gym.vec_env import VecEnv
from entity_gym.vec_obs import VecAction, VecObs, VecSelectEntityActionMask
from tests.worlds import choose, frames


class Duel(Environment):
    """Two players with some pawns each bid 0, 1 or 2 a pawn, for three rounds. A player earns what its pawns bid.

    `visitors` of the first player come in every round. The episode is truncated where `cut` is set.
    """

    def __init__(self, pawns: int = 1, cut: bool = False, tells: bool = True) -> None:
        self.pawns, self.cut, self.tells = pawns, cut, tells
        self.round = 0
        self.scores = [0.0, 0.0]

    @staticmethod
    def num_players(values: Mapping[str, Any]) -> int:
        return 2

    @staticmethod
    def players(values: Mapping[str, Any], entity_type: str, rows: NDArray[np.float32]) -> NDArray[np.int64]:
        return rows[:, 0].astype(np.int64)

    @staticmethod
    def seen_by(values: Mapping[str, Any], player: Any, entity_type: str, rows: NDArray[np.float32]) -> Any:
        seen = rows.copy()
        if entity_type == "Pawn":
            seen[:, 0] = (rows[:, 0] - player) % 2  # 0: mine
        return seen

    def obs_space(self) -> ObsSpace:
        return ObsSpace({"Stone": Entity([]), "Pawn": Entity(["owner", "round"])}, global_features=["round"])

    def action_space(self) -> Mapping[str, ActionSpace]:
        return {"bid": CategoricalActionSpace(["0", "1", "2"])}

    def reset(self) -> Observation:
        self.round, self.scores = 0, [0.0, 0.0]
        return self._show([0.0, 0.0])

    def configure(self, info: Mapping[str, Any]) -> None:
        for name, value in info.items():
            setattr(self, name, value)

    def act(self, actions: Mapping[str, Action]) -> Observation:
        bid = actions["bid"]
        assert isinstance(bid, CategoricalAction)
        earned = [0.0, 0.0]
        for (player, _), choice in zip(bid.actors, bid.actions, strict=True):
            earned[player] += float(choice)
        self.round += 1
        self.scores = [score + more for score, more in zip(self.scores, earned, strict=True)]
        return self._show(earned)

    def state(self) -> dict[str, Any]:
        return {"round": self.round, "scores": list(self.scores)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.round, self.scores = state["round"], list(state["scores"])

    def _show(self, earned: list[float]) -> Observation:
        done = self.round == 3
        pawns = [(player, i) for i in range(self.pawns) for player in (0, 1)]  # they stand by turns
        info = {"score_0": self.scores[0], "score_1": self.scores[1]}
        return Observation(
            features={"Stone": np.zeros((2, 0)), "Pawn": [[player, self.round] for player, _ in pawns]},
            ids={"Pawn": pawns},
            actions={"bid": CategoricalActionMask(actor_types=["Pawn"])},
            global_features=[self.round],
            reward=sum(earned),
            done=done,
            truncated=done and self.cut,
            player_rewards=earned if self.tells else (),
            end_of_episode_info=info if done else None,
        )


class Bidder:
    """Bids the same each time, and remembers what it was shown."""

    def __init__(self, bid: int) -> None:
        self.bid = bid
        self.shown: list[VecObs] = []

    def act(self, obs: VecObs, env_id: NDArray[np.int64]) -> dict[str, VecAction]:
        assert obs.env_id.tolist() == env_id.tolist()
        self.shown.append(obs)
        actors = obs.action_masks["bid"].actors
        return {"bid": RaggedBufferI64.from_offsets(np.full_like(actors.values, self.bid), actors.offsets)}

    def faced(self, env_id: NDArray[np.int64]) -> list[str]:
        return [f"bidder {self.bid}" for _ in env_id]

    def state(self) -> dict[str, Any]:
        return {"bid": self.bid}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.bid = state["bid"]


class Dice(Bidder):
    """Draws every choice, of any world, and remembers how far its random numbers have come."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def act(self, obs: VecObs, env_id: NDArray[np.int64]) -> dict[str, VecAction]:
        return random_actions(obs, self.rng)

    def faced(self, env_id: NDArray[np.int64]) -> list[str]:
        return ["dice"] * len(env_id)

    def state(self) -> dict[str, Any]:
        return {"random": self.rng.bit_generator.state}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.rng.bit_generator.state = state["random"]


def bids(*choices: list[int]) -> dict[str, RaggedBufferI64]:
    return choose("bid", choices)


def duel_obs(*pawns: int) -> VecObs:
    envs = [Duel(pawns=n) for n in pawns]
    return batch_observations([env.reset() for env in envs], envs[0].obs_space(), envs[0].action_space())


DUEL = players_of(Duel)
assert DUEL is not None


# --- The mapping


def test_a_world_without_the_three_functions_has_no_players() -> None:
    assert players_of(MineSweeper) is None
    assert players_of(lambda: Duel()) is None


def test_parameters_come_from_the_description_or_from_the_call() -> None:
    class Tables(Duel):
        @staticmethod
        def num_players(values: Mapping[str, Any]) -> int:
            return int(values["pawns"])

    sources = [
        MultiSnake(num_snakes=6, num_players=3),
        functools.partial(Tables, 4),
        functools.partial(Tables, pawns=5),
    ]
    mappings = [players_of(source) for source in (*sources, Tables, MultiSnake)]
    assert [mapping.num_players for mapping in mappings if mapping] == [3, 4, 5, 1, 1]


def test_what_a_mapping_gets_wrong_is_named() -> None:
    class Wrong(Duel):
        @staticmethod
        def players(values: Any, entity_type: str, rows: Any) -> Any:
            return rows[:, 0] * values["pawns"] if values["cut"] else (rows[:, 0] * 2).astype(int)

        @staticmethod
        def seen_by(values: Any, player: Any, entity_type: str, rows: Any) -> Any:
            return rows[:, :1]

    with pytest.raises(
        ValueError, match=r"Wrong.players\(\) says that an entity of type 'Pawn' is player 2's; .* 0 to 1"
    ):
        split(duel_obs(1), players_of(Wrong), 0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"Wrong.players\(\) returned float32 of shape \(2,\).*one whole number each"):
        split(duel_obs(1), players_of(functools.partial(Wrong, cut=True)), 0)  # type: ignore[arg-type]
    mapping = players_of(Wrong)
    assert mapping is not None
    with pytest.raises(ValueError, match=r"Wrong.seen_by\(\) returned features of shape \(2, 1\).*\(2, 2\)"):
        mapping.seen_by(np.zeros(2, np.int64), "Pawn", np.zeros((2, 2), np.float32))
    with pytest.raises(ValueError, match="there are players 0 to 1"):
        split(duel_obs(1), DUEL, 2)


# --- One frame becomes a frame for each player


def test_every_player_sees_everything_in_its_own_way_and_moves_its_own() -> None:
    obs = duel_obs(2)
    own, other = split(obs, DUEL, 0), split(obs, DUEL, 1)
    assert own.features["Pawn"].to_list() == [[[0, 0], [1, 0], [0, 0], [1, 0]]]
    assert other.features["Pawn"].to_list() == [[[1, 0], [0, 0], [1, 0], [0, 0]]]
    assert own.features["Stone"].size1().tolist() == other.features["Stone"].size1().tolist() == [2]
    assert own.action_masks["bid"].actors.to_list() == [[[2], [4]]]  # behind two stones
    assert other.action_masks["bid"].actors.to_list() == [[[3], [5]]]
    assert obs.features["Pawn"].to_list() == [[[0, 0], [1, 0], [0, 0], [1, 0]]]  # what was given is left alone


def test_the_player_may_be_another_in_every_frame() -> None:
    obs = duel_obs(1, 0, 2)
    seen = split(obs, DUEL, np.array([1, 0, 0]))
    assert seen.action_masks["bid"].actors.to_list() == [[[3]], [], [[2], [4]]]
    assert seen.features["Pawn"].to_list() == [[[1, 0], [0, 0]], [], [[0, 0], [1, 0], [0, 0], [1, 0]]]


class Court(Duel):
    """Has every kind of mask: players whose number is a feature point at each other, and the owner of the court opens it."""

    def obs_space(self) -> ObsSpace:
        return ObsSpace({"Pawn": Entity(["owner"])}, global_features=["owner"])

    def action_space(self) -> Mapping[str, ActionSpace]:
        return {
            "wave": CategoricalActionSpace(["left", "right"]),
            "point": SelectEntityActionSpace(),
            "open": GlobalCategoricalActionSpace(["no", "yes"]),
        }

    def show(self, owners: list[int], host: int, pointing: list[str]) -> Observation:
        ids = [f"{owner}{i}" for i, owner in enumerate(owners)]
        mask = np.ones((len(pointing), len(ids)), bool)
        mask[0, -1] = False
        return Observation(
            features={"Pawn": [[owner] for owner in owners]},
            ids={"Pawn": ids},
            global_features=[host],
            actions={
                "wave": CategoricalActionMask(actor_types=["Pawn"], mask=[[True, owner == 1] for owner in owners]),
                "point": SelectEntityActionMask(actor_ids=pointing, actee_types=["Pawn"], mask=mask),
                "open": GlobalCategoricalActionMask(),
            },
        )


def test_masks_of_all_kinds_keep_only_the_own_actors() -> None:
    court = Court()
    shown = [court.show([0, 1, 1], 1, ["00", "12"]), court.show([1, 0], 0, ["10"])]
    obs = batch_observations(shown, court.obs_space(), court.action_space())
    seen = split(obs, DUEL, 0)
    wave, point, opening = (seen.action_masks[name] for name in ("wave", "point", "open"))
    assert isinstance(point, VecSelectEntityActionMask)
    assert wave.actors.to_list() == [[[0]], [[1]]]
    assert wave.mask.to_list() == [[[True, False]], [[True, False]]]  # type: ignore[union-attr]
    assert point.actors.to_list() == [[[0]], []]
    assert point.actees.to_list() == [[[0], [1], [2]], []]  # with no actors there are no actees
    assert point.mask is not None and point.mask.to_list() == [[[True], [True], [False]], []]
    assert opening.actors.to_list() == [[], [[2]]]  # who the court belongs to, opens it


def test_the_parts_of_all_players_are_what_was_there() -> None:
    court = Court()
    shown = [court.show([0, 1, 1], 1, ["00", "12"]), court.show([1, 0], 0, ["10"])]
    obs = batch_observations(shown, court.obs_space(), court.action_space())
    whole = random_actions(obs, np.random.default_rng(0))
    owners = {"wave": [[0, 1, 1], [1, 0]], "point": [[0, 1], [1]], "open": [[1], [0]]}
    parts = []
    for player in (0, 1):
        mine: dict[str, VecAction] = {}
        for name, frames_owners in owners.items():
            rows = [
                [value for value, owner in zip(values, of, strict=True) if owner == player]
                for values, of in zip(whole[name].to_list(), frames_owners, strict=True)
            ]
            flat = np.array([value for row in rows for value in row], np.int64).reshape(-1, 1)
            mine[name] = RaggedBufferI64.from_flattened(flat, [len(row) for row in rows])
        parts.append((player, mine))
    assert join(obs, DUEL, parts) == whole


# --- And their actions one again


def test_actions_of_all_players_go_to_their_own_actors() -> None:
    obs = duel_obs(2, 1)
    joined = join(obs, DUEL, [(np.array([0, 1]), bids([1, 2], [0])), (np.array([1, 0]), bids([0, 0], [2]))])
    assert joined["bid"].to_list() == [[[1], [0], [2], [0]], [[2], [0]]]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([(0, bids([1], [1])), (1, bids([1, 1], [1]))], r"'bid' has 1 values in frame 0, where player 0 has 2 actors"),
        ([(0, bids([1, 1])), (1, bids([1, 1], [1]))], "'bid' has 1 sequences for 2 environments"),
        ([(0, {}), (1, bids([1, 1], [1]))], "action 'bid' is missing"),
        ([(0, choose("bit", [[1, 1], [1]]))], "unknown action 'bit'; .* did you mean 'bid'"),
        ([(0, bids([1, 1], [1]))], "0 parts act for player 1 in action 'bid'"),
        ([(0, bids([1, 1], [1])), (0, bids([1, 1], [1]))], "2 parts act for player 0 in action 'bid'"),
    ],
)
def test_actions_that_do_not_fit_are_refused(parts: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        join(duel_obs(2, 1), DUEL, parts)


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


def test_without_rewards_of_their_own_all_share_one_and_the_scores_decide() -> None:
    env, _ = seated(bid=1, tells=False)
    env.reset()
    assert env.act(bids([2], [0])).reward.tolist() == [3, 1]  # the sums
    env.act(bids([2], [0]))
    obs = env.act(bids([2], [0]))
    assert [obs.end_of_episode_info[i]["win_rate"] for i in range(2)] == [1.0, 0.0]
    assert [obs.end_of_episode_info[i]["opponent_reward"] for i in range(2)] == [3.0, 3.0]


def test_last_observations_are_seen_by_the_learner_too() -> None:
    env, _ = seated(cut=True)
    env.reset()
    for _ in range(3):
        obs = env.act(bids([1], [1]))
    assert obs.final is not None
    assert obs.final.features["Pawn"].to_list() == [[[0, 3], [1, 3]], [[1, 3], [0, 3]]]
    assert obs.final.action_masks["bid"].actors.items() == 0


def test_some_environments_may_be_stepped_alone() -> None:
    env, bidder = seated(bid=2, num_envs=3)
    env.reset()
    obs = env.act(bids([1], [0]), env_id=[2, 0])
    assert obs.env_id.tolist() == [2, 0] and obs.reward.tolist() == [1, 0]
    assert bidder.shown[-1].env_id.tolist() == [2, 0]
    obs = env.act(bids([1], [1]), env_id=[1, 2])
    assert obs.features["Pawn"].to_list() == [[[1, 1], [0, 1]], [[0, 2], [1, 2]]]
    assert env.act(bids([0], [0], [0])).elapsed_step.tolist() == [2, 2, 0]


def test_seats_may_be_given() -> None:
    env = SeatedVecEnv(ListEnv(Duel, 2), DUEL, Bidder(0), seats=[1, 1])
    assert env.reset().action_masks["bid"].actors.to_list() == [[[3]], [[3]]]
    with pytest.raises(ValueError, match=r"seats are \[0, 2\]; give one of the players 0 to 1 for each of 2"):
        SeatedVecEnv(ListEnv(Duel, 2), DUEL, Bidder(0), seats=[0, 2])


def test_three_players_are_two_opponents() -> None:
    source = MultiSnake(board_size=6, num_snakes=3, num_players=3, max_snake_length=3)
    mapping = players_of(source)
    assert mapping is not None
    shown: list[VecObs] = []

    class Watching(Dice):
        def act(self, obs: VecObs, env_id: NDArray[np.int64]) -> dict[str, VecAction]:
            shown.append(obs)
            return super().act(obs, env_id)

    env = SeatedVecEnv(ThreadedVecEnv(source, 4), mapping, Watching(0))
    env.act(random_actions(env.reset(), np.random.default_rng(0)))
    assert shown[0].env_id.tolist() == [0, 1, 2, 3] * 2
    assert shown[0].action_masks["move"].actors.values[:, 0].tolist() == [1, 2, 0, 1, 2, 0, 1, 2]


def test_parameters_that_decide_who_owns_what_stay() -> None:
    source = MultiSnake(num_players=2)
    mapping = players_of(source)
    assert mapping is not None
    env = SeatedVecEnv(ThreadedVecEnv(source, 2), mapping, Dice(0))
    env.reset(env_info={"board_size": [6, 7]})
    with pytest.raises(ValueError, match="env_info of environment 1 has 'num_snakes', on which it depends"):
        env.reset(env_info=[{}, {"num_snakes": 4}])
    with pytest.raises(ValueError, match="env_info of environment 0 has 'num_players'"):
        env.configure({"num_players": [1, 1]})


# --- Saving, and any pool


def snakes(kind: str) -> VecEnv:
    source = MultiSnake(board_size=4, num_snakes=2, num_players=2, max_snake_length=4, max_steps=9)
    if kind == "list":
        return ListEnv(source.as_environment, 6, 3)
    if kind == "processes":
        return ProcessVecEnv(source, 6, 2, seed=3)
    return ThreadedVecEnv(source, 6, 2 if kind == "threads" else 1, seed=3)


def seat(pool: VecEnv) -> SeatedVecEnv:
    mapping = players_of(MultiSnake(num_players=2))
    assert mapping is not None
    return SeatedVecEnv(pool, mapping, Dice(1))


def play(env: SeatedVecEnv, obs: VecObs, steps: int, rng: np.random.Generator) -> list[list[dict[str, Any]]]:
    shown = []
    for _ in range(steps):
        obs = env.act(random_actions(obs, rng))
        shown.append(frames(obs))
    return shown


def test_a_saved_pool_goes_on_in_the_same_way() -> None:
    with seat(snakes("one thread")) as env, seat(snakes("one thread")) as other:
        rng = np.random.default_rng(0)
        play(env, env.reset(), 5, rng)
        assert env.can_save
        state = env.state()
        again = np.random.default_rng(7)
        expected = play(env, env.act(random_actions(env.load_state(state), again)), 30, again)
        assert any(frame["info"] for step in expected for frame in step)
        again = np.random.default_rng(7)
        assert play(other, other.act(random_actions(other.load_state(state), again)), 30, again) == expected


def test_a_state_of_a_pool_without_seats_is_refused() -> None:
    with snakes("one thread") as pool, seat(snakes("one thread")) as env, seat(snakes("processes")) as other:
        pool.reset()
        with pytest.raises(ValueError, match="the saved state is of another kind of environments"):
            env.load_state(pool.state())
        env.reset()
        for seatless in (pool, other.pool):
            with pytest.raises(ValueError, match="the saved state is of another kind of environments"):
                seatless.load_state(env.state())


@pytest.mark.parametrize("kind", ["list", "threads", "processes"])
def test_all_pools_show_the_learner_the_same(kind: str) -> None:
    shown = []
    for pool in (snakes("one thread"), snakes(kind)):
        with seat(pool) as env:
            shown.append(play(env, env.reset(), 25, np.random.default_rng(2)))
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
        env = SeatedVecEnv(pool, mapping, Theirs(0))
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


# --- Whole episodes


def test_an_evaluation_plays_every_side_in_turn() -> None:
    env = SeatedEpisodeVecEnv(EpisodeVecEnv(Duel, 2), DUEL, Bidder(1))
    sides, results = [], []
    for _ in range(2):
        obs, running = env.reset()
        sides.append((obs.action_masks["bid"].actors.values[:, 0] - 2).tolist())
        while len(running):
            (all_obs, _), (obs, running) = env.step(bids([2], [0]))
        results.append([all_obs.end_of_episode_info[i]["win_rate"] for i in range(2)])
    assert sides == [[0, 1], [1, 0]]
    assert results == [[1.0, 0.0], [1.0, 0.0]]


def test_an_evaluation_goes_on_with_those_that_are_still_playing() -> None:
    source = MultiSnake(board_size=4, num_snakes=2, num_players=2, max_snake_length=3, max_steps=12)
    mapping = players_of(source)
    assert mapping is not None
    env = SeatedEpisodeVecEnv(EpisodeVecEnv(source, 8, seed=1), mapping, Dice(0))
    rng, games = np.random.default_rng(0), 0
    obs, running = env.reset(env_id=range(6))
    while len(running):
        assert obs.env_id.tolist() == running.tolist()
        assert obs.action_masks["move"].actors.values[:, 0].tolist() == (running % 2).tolist()
        (all_obs, _), (obs, running) = env.step(random_actions(obs, rng))
        games += len(all_obs.end_of_episode_info)
    assert games == 6
    with pytest.raises(ValueError, match="every episode has ended"):
        env.step(random_actions(obs, rng))
