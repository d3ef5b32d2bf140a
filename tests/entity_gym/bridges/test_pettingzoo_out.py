"""Worlds with players as PettingZoo environments; what `Duel` shows and pays is worked out by hand."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pettingzoo")

from gymnasium import spaces  # noqa: E402
from pettingzoo.test import parallel_api_test, parallel_seed_test  # noqa: E402

from entity_gym import (  # noqa: E402
    ActionSpace,
    CategoricalActionMask,
    CategoricalActionSpace,
    ContinuousAction,
    ContinuousActionMask,
    ContinuousActionSpace,
    Entity,
    Observation,
    ObsSpace,
    SelectEntitiesActionMask,
    SelectEntitiesActionSpace,
    SelectEntityActionMask,
    SelectEntityActionSpace,
)
from entity_gym.bridges import to_pettingzoo  # noqa: E402
from entity_gym.registry import make  # noqa: E402
from tests.entity_gym.pools.player_worlds import Duel  # noqa: E402
from tests.worlds import choose  # noqa: E402

SNAKES = {"num_snakes": 4, "num_players": 2, "max_actors": {"move": 2}, "compile": False}
ROOM = {"max_entities": {"Stone": 2, "Pawn": 4}}


class Captains(Duel):
    """Every pawn points at a pawn; captains, the first pawn of each player, wave too, and not twice to the left."""

    def obs_space(self) -> ObsSpace:
        return ObsSpace({"Pawn": Entity(["owner", "round"])})

    def action_space(self) -> Mapping[str, ActionSpace]:
        return {"point": SelectEntityActionSpace(exclude_self=True), "wave": CategoricalActionSpace(["left", "right"])}

    def act(self, actions: Mapping[str, Any]) -> Observation:
        self.round += 1
        return self._show([0.0, 0.0])

    def _show(self, earned: list[float]) -> Observation:
        pawns = [(player, i) for i in range(self.pawns) for player in (0, 1)]
        return Observation(
            features={"Pawn": [[player, self.round] for player, _ in pawns]},
            ids={"Pawn": pawns},
            actions={
                "point": SelectEntityActionMask(),
                "wave": CategoricalActionMask(actor_ids=[(0, 0), (1, 0)], mask=[[self.round == 0, True]] * 2),
            },
            done=self.round == 3,
        )


class Sailors(Captains):
    """Every pawn turns its sail, from -1 to 1, and earns what its sail is at; captains wave as well."""

    def action_space(self) -> Mapping[str, ActionSpace]:
        return {"sail": ContinuousActionSpace([-1.0], [1.0]), "wave": CategoricalActionSpace(["left", "right"])}

    def act(self, actions: Mapping[str, Any]) -> Observation:
        sail = actions["sail"]
        assert isinstance(sail, ContinuousAction)
        earned = [0.0, 0.0]
        for (player, _), value in zip(sail.actors, sail.values, strict=True):
            earned[player] += float(value[0])
        self.round += 1
        return self._show(earned)

    def _show(self, earned: list[float]) -> Observation:
        shown = super()._show(earned)
        shown.actions = {"sail": ContinuousActionMask(), "wave": shown.actions["wave"]}
        shown.player_rewards = earned
        return shown


class Friends(Captains):
    """Every pawn names others in an order: place p of pawn k earns p * 10 ** k. With `sails` it turns its sail, too."""

    def __init__(self, sails: bool = False) -> None:
        super().__init__(pawns=2)
        self.sails = sails

    def action_space(self) -> Mapping[str, ActionSpace]:
        names = SelectEntitiesActionSpace(exclude_self=True, ordered=True)
        return {"name": names, **({"sail": ContinuousActionSpace([-1.0], [1.0])} if self.sails else {})}

    def act(self, actions: Mapping[str, Any]) -> Observation:
        earned = [0.0, 0.0]
        for (player, _), named in zip(actions["name"].actors, actions["name"].actees, strict=True):
            earned[player] += sum(place * 10.0 ** (2 * i + owner) for place, (owner, i) in enumerate(named, start=1))
        self.round += 1
        return self._show(earned)

    def _show(self, earned: list[float]) -> Observation:
        shown = super()._show(earned)
        shown.actions = {"name": SelectEntitiesActionMask()}
        if self.sails:
            shown.actions["sail"] = ContinuousActionMask()
        shown.player_rewards = earned
        return shown


def plain(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: plain(branch) for name, branch in tree.items()}
    return [plain(each) for each in tree] if isinstance(tree, tuple) else np.asarray(tree).tolist()


# ---- PettingZoo's own tests


@pytest.mark.parametrize(
    ("env", "options"),
    [
        ("MultiSnake", SNAKES),
        (functools.partial(Duel, cut=True), {**ROOM, "max_actors": {"bid": 1}}),
        (functools.partial(Captains, pawns=2), {"max_entities": {"Pawn": 4}}),
        (functools.partial(Sailors, pawns=2), {"max_entities": {"Pawn": 4}}),
        (Friends, {"max_entities": {"Pawn": 4}}),
        (functools.partial(Friends, sails=True), {"max_entities": {"Pawn": 4}}),
    ],
)
def test_pettingzoos_own_api_test_passes_and_finds_nothing_to_warn_of(env: Any, options: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=r"reset: options \['options'\] are not used")
        parallel_api_test(to_pettingzoo(env, **options), num_cycles=40)
        parallel_seed_test(lambda: to_pettingzoo(env, **options), num_cycles=20)


# ---- agents are players


def test_every_player_sees_the_world_with_its_own_eyes_and_moves_its_own() -> None:
    env = to_pettingzoo(functools.partial(Duel, pawns=2), **ROOM, max_actors={"bid": 2})
    observations, infos = env.reset()
    assert env.agents == env.possible_agents == ["player_0", "player_1"]
    assert plain(observations["player_0"]) == {
        "entities/Pawn": [[0, 0], [1, 0], [0, 0], [1, 0]],
        "mask/Stone": [1, 1],
        "mask/Pawn": [1, 1, 1, 1],
        "global": [0],
        "actors/bid": [2, 4],  # behind two stones
        "action_mask/bid": [[1, 1, 1], [1, 1, 1]],
    }
    assert plain(observations["player_1"]["entities/Pawn"]) == [[1, 0], [0, 0], [1, 0], [0, 0]]
    assert plain(observations["player_1"]["actors/bid"]) == [3, 5]
    assert plain(infos["player_0"]) == {"elapsed_step": 0, "replaced_actions": 0, "action_mask": [[1, 1, 1], [1, 1, 1]]}
    assert env.action_space("player_1") == spaces.MultiDiscrete([3, 3])


@pytest.mark.parametrize("cut", [False, True])
def test_every_agent_is_paid_what_its_player_earned_and_all_end_together(cut: bool) -> None:
    env = to_pettingzoo(functools.partial(Duel, cut=cut), **ROOM, max_actors={"bid": 1})
    with pytest.raises(ValueError, match="no episode is running; call reset first"):
        env.step({"player_0": 1, "player_1": 1})
    env.reset()
    for _ in range(2):
        _, rewards, terminated, truncated, _ = env.step({"player_0": 2, "player_1": np.int64(1)})
        assert rewards == {"player_0": 2.0, "player_1": 1.0}
        assert not any((*terminated.values(), *truncated.values()))
    _, rewards, terminated, truncated, infos = env.step({"player_1": 0, "player_0": 1})
    assert rewards == {"player_0": 1.0, "player_1": 0.0}
    assert terminated == dict.fromkeys(env.possible_agents, not cut)
    assert truncated == dict.fromkeys(env.possible_agents, cut)
    assert plain(infos["player_1"].pop("action_mask")) == [0, 0, 0]  # nobody acts after the end
    assert infos["player_1"] == {"elapsed_step": 3, "replaced_actions": 0, "score_0": 5.0, "score_1": 2.0}
    assert env.agents == []
    with pytest.raises(ValueError, match="no episode is running; call reset first"):
        env.step({"player_0": 1, "player_1": 1})


def test_multi_snake_plays_the_game_of_the_entity_pool() -> None:
    env = to_pettingzoo("MultiSnake", **SNAKES)
    pool = make("MultiSnake", num_snakes=4, num_players=2, compile=False)
    rng = np.random.default_rng(0)
    steps = 0
    for seed in range(8):
        observations, _ = env.reset(seed=seed)
        obs = pool.reset(seed)
        while env.agents:
            first, second = (observations[agent]["entities/SnakeHead"][:4] for agent in env.agents)
            assert np.array_equal(first, obs.features["SnakeHead"].values)
            assert np.array_equal(second[:, 2], [2, 3, 0, 1])  # the own colours are the first ones
            moves = rng.integers(4, size=4)
            observations, rewards, *_ = env.step({"player_0": moves[:2], "player_1": moves[2:]})
            obs = pool.act(choose("move", [moves.tolist()]))
            assert sum(rewards.values()) == pytest.approx(float(obs.reward[0]))
            steps += 1
        assert obs.done.all()
    assert steps > 8
    pool.close()


# ---- masks


def test_the_mask_is_what_sampling_takes() -> None:
    env = to_pettingzoo(functools.partial(Captains, pawns=2), max_entities={"Pawn": 4})
    _, infos = env.reset()
    nobody = [0, 0, 0, 0]
    assert plain(infos["player_1"]["action_mask"]) == [
        *([1, 0, 1, 1], [1, 1, 1, 0], nobody, nobody),  # pointing: pawns 1 and 3 are its own
        *([1, 1], [0, 0], [0, 0], [0, 0]),  # waving
    ]
    actions = {agent: env.action_space(agent).sample(mask=infos[agent]["action_mask"]) for agent in env.agents}
    _, _, _, _, infos = env.step(actions)
    assert infos["player_1"]["replaced_actions"] == 0
    assert plain(infos["player_1"]["action_mask"])[4] == [0, 1]


def test_every_player_has_replaced_actions_of_its_own() -> None:
    env = to_pettingzoo(Captains, max_entities={"Pawn": 2}, max_actors={"point": 1, "wave": 1})
    left = {"player_0": [1, 0], "player_1": [0, 0]}
    env.reset()
    env.step(left)
    infos = env.step({**left, "player_1": [0, 1]})[4]
    assert [infos[agent]["replaced_actions"] for agent in env.possible_agents] == [1, 0]


def test_beside_continuous_actions_masks_are_those_of_the_others() -> None:
    env = to_pettingzoo(
        functools.partial(Sailors, pawns=2), max_entities={"Pawn": 4}, max_actors={"sail": 2, "wave": 1}
    )
    _, infos = env.reset()
    mask = infos["player_0"]["action_mask"]
    assert mask["sail"] is None and plain(mask["wave"]) == [[1, 1]]
    assert env.action_space("player_0").sample(mask=mask).keys() == {"sail", "wave"}
    assert env.action_space("player_0")["sail"] == spaces.Box(-1.0, 1.0, (2, 1), np.float32)
    told = {"sail": np.array([[0.5], [0.25]], np.float32), "wave": [1]}
    rewards = env.step({"player_0": told, "player_1": {**told, "sail": np.array([[-1.0], [0.0]], np.float32)}})[1]
    assert rewards == {"player_0": 0.75, "player_1": -1.0}


def test_every_player_selects_sets_of_its_own_and_masks_are_what_sampling_takes() -> None:
    env = to_pettingzoo(Friends, max_entities={"Pawn": 4}, max_actors={"name": 2})
    _, infos = env.reset()
    itself, other = [1, 0, 0, 0, 0], [1, 1, 1, 1, 1]
    mask = infos["player_1"]["action_mask"]
    assert plain(mask) == [other, itself, other, other, other, other, other, itself]  # of pawns 1 and 3
    assert env.action_space("player_1") == spaces.MultiDiscrete([5] * 8)
    told = {"player_0": np.zeros(8, int), "player_1": np.array([2, 0, 1, 0, 0, 0, 4, 0])}
    assert env.step(told)[1] == {"player_0": 0.0, "player_1": 102.0 + 100.0}
    told = {"player_0": np.array([1, 1, 0, 0, 0, 0, 0, 0]), "player_1": env.action_space("player_1").sample(mask=mask)}
    _, rewards, *_, infos = env.step(told)
    assert rewards["player_0"] == 10 and [infos[each]["replaced_actions"] for each in env.agents] == [1, 0]


def test_masks_of_sets_beside_continuous_actions_have_a_tuple_for_each_actor() -> None:
    room: dict[str, Any] = {"max_entities": {"Pawn": 4}, "max_actors": {"name": 2, "sail": 2}}
    env = to_pettingzoo(functools.partial(Friends, sails=True), **room)
    _, infos = env.reset()
    mask = infos["player_0"]["action_mask"]
    assert [[each[1] for each in of_actor] for of_actor in plain(mask["name"])] == [[0, 1, 1, 1], [1, 1, 0, 1]]
    told = {agent: env.action_space(agent).sample(mask=infos[agent]["action_mask"]) for agent in env.agents}
    assert told["player_0"]["name"].shape == (2, 4)
    infos = env.step(told)[4]
    assert [infos[agent]["replaced_actions"] for agent in env.agents] == [0, 0]


# ---- faults


def test_a_world_without_players_is_refused() -> None:
    with pytest.raises(ValueError, match=r"MineSweeper has no players.*num_players\(\).*or use to_gymnasium"):
        to_pettingzoo("MineSweeper")


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (
            {"player_0": 1},
            r"actions are \{'player_0': 1\}; expected an action for each of the agents \['player_0', 'play",
        ),
        ({"player_0": 1, "player_1": 3}, r"Duel \(player 1\).*action 'bid' of actor \d is 3; it must be from 0 to 2"),
        ({"player_0": 1, "player_1": None}, r"numbers of \['bid'\], has shape .*expected whole numbers"),
    ],
)
def test_actions_that_cannot_be_are_named(actions: Any, message: str) -> None:
    env = to_pettingzoo(Duel, **ROOM, max_actors={"bid": 1})
    env.reset()
    with pytest.raises(ValueError, match=message):
        env.step(actions)
    assert env.step({"player_0": 1, "player_1": 2})[1] == {"player_0": 1.0, "player_1": 2.0}  # nothing has happened


def test_parameters_are_set_at_reset_but_for_those_that_say_whose_things_are() -> None:
    env = to_pettingzoo("MultiSnake", **SNAKES)
    observations, _ = env.reset(options={"env_info": {"board_size": 64, "max_snake_length": 3}})
    assert observations["player_0"]["mask/SnakeHead"].sum() == 4
    with pytest.raises(ValueError, match=r"env_info has \['num_snakes'\].*make another environment"):
        env.reset(options={"env_info": {"num_snakes": 2}})
    with pytest.raises(ValueError, match="board_sise"):
        env.reset(options={"env_info": {"board_sise": 2}})
    with pytest.warns(UserWarning, match=r"options \['mode'\] are not used; 'env_info' would be"):
        env.reset(options={"mode": 1})
    assert env.render() is None
    drawn = to_pettingzoo("MultiSnake", **SNAKES, render_mode="rgb_array", board_size=8)
    drawn.reset()
    image = drawn.render()
    assert image is not None and image.ndim == 3
