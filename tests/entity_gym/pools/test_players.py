"""A world of two players, taken apart and put together: what each sees and does is worked out by hand."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from entity_gym import (
    ActionSpace,
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    GlobalCategoricalActionMask,
    GlobalCategoricalActionSpace,
    Observation,
    ObsSpace,
    SelectEntityActionMask,
    SelectEntityActionSpace,
)
from entity_gym.actions.choices import check_actions, random_actions
from entity_gym.batch.batching import batch_observations
from entity_gym.batch.ragged import RaggedBuffer
from entity_gym.batch.vec_obs import VecAction, VecObs
from entity_gym.envs.minesweeper import MineSweeper
from entity_gym.envs.multi_snake import MultiSnake
from entity_gym.pools.players import Seating, players_of
from tests.entity_gym.pools.player_worlds import DUEL, Duel, Picnic, bids, duel_obs, join, split
from tests.worlds import choose

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
    with pytest.raises(
        ValueError, match=r"Wrong.players\(\) returned float32 of shape \(2,\).*one whole number for each"
    ):
        split(duel_obs(1), players_of(functools.partial(Wrong, cut=True)), 0)  # type: ignore[arg-type]
    mapping = players_of(Wrong)
    assert mapping is not None
    with pytest.raises(ValueError, match=r"Wrong.seen_by\(\) returned float32 of shape \(2, 1\).*\(2, 2\)"):
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


class Veiled(Duel):
    """Players do not see each other's pawns; the first stone is hidden from all."""

    @staticmethod
    def visible_to(values: Any, player: Any, entity_type: str, rows: Any) -> Any:
        if values["tells"]:
            return rows[:, 0] == player if entity_type == "Pawn" else np.ones(len(rows), np.bool_)
        return np.ones((len(rows), 1), np.bool_) if values["cut"] else rows[:, 0]


def test_what_a_player_may_not_see_is_there_and_hidden() -> None:
    mapping = players_of(Veiled)
    assert mapping is not None
    obs = duel_obs(2)
    obs.visible = {"Stone": RaggedBuffer(np.array([[False], [True]]), np.array([0, 2]))}
    for player in (0, 1):
        seen = split(obs, mapping, player)
        assert seen.visible["Pawn"].to_list() == [[[player == 0], [player == 1]] * 2]
        assert seen.visible["Stone"].to_list() == [[[False], [True]]]
        assert seen.features["Pawn"].size1().tolist() == [4]
    obs.visible = {}
    assert list(split(obs, mapping, 0).visible) == ["Pawn"], "types that hide nothing are left out"
    assert split(obs, DUEL, 0).visible == {}


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
    assert point.actees is not None
    assert wave.actors.to_list() == [[[0]], [[1]]]
    assert wave.mask.to_list() == [[[True, False]], [[True, False]]]  # type: ignore[union-attr]
    assert point.actors.to_list() == [[[0]], []]
    assert point.actees.to_list() == [[[0], [1], [2]], []]  # with no actors there are no actees
    assert point.mask is not None and point.mask.to_list() == [[[True], [True], [False]], []]
    assert opening.actors.to_list() == [[], [[2]]]  # who the court belongs to, opens it


# --- And their actions one again


def test_the_parts_of_all_players_are_what_was_there() -> None:
    court = Court()
    shown = [court.show([0, 1, 1], 1, ["00", "12"]), court.show([1, 0], 0, ["10"])]
    obs = batch_observations(shown, court.obs_space(), court.action_space())
    whole = random_actions(obs, np.random.default_rng(0), court.action_space())
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
            mine[name] = RaggedBuffer.from_flattened(flat, [len(row) for row in rows])
        parts.append((player, mine))
    assert join(obs, DUEL, parts) == whole


def picnic_obs(*pawns: int) -> VecObs:
    envs = [Picnic(pawns=n) for n in pawns]
    return batch_observations([env.reset() for env in envs], envs[0].obs_space(), envs[0].action_space())


def test_every_player_sees_the_pairs_of_its_own_actors() -> None:
    mapping = players_of(Picnic)
    assert mapping is not None
    masks = split(picnic_obs(2, 0), mapping, 1).action_masks
    invite, pick = masks["invite"], masks["pick"]
    assert invite.actees is not None and pick.actees is not None and invite.mask is not None and pick.mask is not None
    assert invite.actors.to_list() == [[[4], [6]], []]  # behind three baskets, by turns with those of player 0
    assert invite.actees.to_list() == [[[3], [4], [5], [6]], []]
    assert invite.mask.to_list()[0] == [[True], [False], [True], [True], [True], [True], [True], [False]]
    assert pick.actors.to_list() == [[[6], [4]], []]
    assert pick.mask.to_list()[0] == [[True], [True], [True], [True], [False], [True]]


@pytest.mark.parametrize("pawns", [(1,), (2, 0, 3), (0,)])
def test_the_sets_of_all_players_are_put_at_their_pairs(pawns: tuple[int, ...]) -> None:
    mapping = players_of(Picnic)
    assert mapping is not None
    obs, spaces = picnic_obs(*pawns), Picnic().action_space()
    whole = random_actions(obs, np.random.default_rng(3), spaces)
    seating = Seating(obs, mapping)
    parts = []
    for player in (0, 1):
        mine: dict[str, VecAction] = {}
        for name, mask in obs.action_masks.items():
            width = mask.actees.size1() if mask.actees is not None else np.ones(len(obs), np.int64)
            own: list[list[int]] = []
            for i in range(len(obs)):
                rows = whole[name][i].values.reshape(mask.actors.size1()[i], width[i])
                owners = (mask.actors[i].values[:, 0] - 3) % 2  # they stand by turns, behind three baskets
                own.append(rows[owners == player].ravel().tolist())
            mine |= choose(name, own)
        parts.append((seating.part(player), mine))
    joined = seating.join(parts)
    assert joined == whole
    check_actions(joined, obs.action_masks, spaces, str)


def test_a_set_with_a_number_too_few_is_refused_and_the_player_named() -> None:
    mapping = players_of(Picnic)
    assert mapping is not None
    obs = picnic_obs(2)
    seating = Seating(obs, mapping)
    parts = [seating.part(player) for player in (0, 1)]
    actions = [random_actions(seating.show(part), np.random.default_rng(0), Picnic().action_space()) for part in parts]
    actions[1] |= choose("pick", [[1, 0, 0]])
    with pytest.raises(ValueError, match="frame 0, player 1: action 'pick' has 3 values, and 6 are needed"):
        seating.join(list(zip(parts, actions, strict=True)))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            [(0, bids([1], [1])), (1, bids([1, 1], [1]))],
            "frame 0, player 0: action 'bid' has 1 values, and 2 are needed",
        ),
        ([(0, bids([1, 1])), (1, bids([1, 1], [1]))], "'bid' has 1 sequences for 2 environments"),
        ([(0, {}), (1, bids([1, 1], [1]))], "action 'bid' is missing"),
    ],
)
def test_actions_that_do_not_fit_are_refused(parts: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        join(duel_obs(2, 1), DUEL, parts)
