"""The rules of Skirmish on hand-made fields. Army 0 stands first; positions are (x, y), x grows to the east, y to the north."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from entity_gym.actions import Action, CategoricalAction, ContinuousAction, SelectEntityAction
from entity_gym.environment import Observation
from entity_gym.envs.skirmish import CHOICES, Skirmish
from entity_gym.envs.skirmish_battle import (
    HEALER,
    HEALTH,
    MELEE,
    NOBODY,
    RANGED,
    balance,
    bury,
    engage,
    fight,
    follow_leads,
    has_fighters,
    march,
    spot,
)
from entity_gym.envs.skirmish_scripts import FOCUS, RANDOM, RUSH, order_army
from entity_gym.pools.players import Seating, players_of
from entity_gym.pools.pool import ThreadedVecEnv
from tests.entity_gym.compiled.view import CompiledView

STAY, EAST, NORTH, WEST, SOUTH = (CHOICES.index(name) for name in ("stay", "east", "north", "west", "south"))
Place = tuple[int, float, float]  # kind, x, y


def world(
    own: Sequence[Place],
    enemies: Sequence[Place],
    obstacles: Sequence[tuple[float, float, float]] = (),
    **parameters: Any,
) -> CompiledView:
    """A field with these units, in full health and ready, and these obstacles; two players unless `parameters` say otherwise."""
    defaults = {"opponent": 0, "width": 20.0, "sight": 7.0, "num_units": max(len(own), len(enemies))}
    env = CompiledView(Skirmish(**{**defaults, **parameters}))
    env.rng = np.random.default_rng(0)
    env.reset()
    s = env.record
    s.left[:] = len(own), len(enemies)
    for i, (kind, x, y) in enumerate([*own, *enemies]):
        s.kind[i], s.x[i], s.y[i] = kind, x, y
        s.health[i], s.cooldown[i] = HEALTH[kind], 0
    s.obstacles_placed = len(obstacles)
    for o, obstacle in enumerate(obstacles):
        s.obstacle[o] = obstacle
    s.start_health = max(sum(HEALTH[kind] for kind, _, _ in army) for army in (own, enemies))
    s.ahead = balance(s)
    refresh(env)
    return env


def refresh(env: CompiledView) -> None:
    """Let the environment notice what a test has written to its record."""
    spot(env.record)
    with np.errstate(over="ignore"):  # of random numbers, whose state wraps around
        follow_leads(env.record)
    engage(env.record)
    env.observe()


def ids_of(env: CompiledView, action: str) -> list[Any]:
    """Actors of an action in the last observation."""
    offered = env.show().actions.get(action)
    return [] if offered is None else list(offered.actor_ids or [])


def actions(env: CompiledView, moves: Mapping[int, int] = {}, targets: Mapping[int, int] = {}) -> dict[str, Action]:
    """Moves and targets by unit; the others stay, and fire at nobody."""
    movers, shooters = ids_of(env, "Move"), ids_of(env, "Target")
    choices = [moves.get(unit_of(env, actor), STAY) for actor in movers]
    chosen = [targets.get(unit_of(env, actor)) for actor in shooters]
    said: dict[str, Action] = {"Move": CategoricalAction(movers, np.array(choices, np.int64))}
    if shooters:
        said["Target"] = SelectEntityAction(shooters, [None if unit is None else id_of(env, unit) for unit in chosen])
    return said


def id_of(env: CompiledView, unit: int) -> Any:
    return ("Unit", int(env.record.unit_id[unit]))


def unit_of(env: CompiledView, entity: Any) -> int:
    return env.record.unit_id[: sum(env.record.left)].tolist().index(entity[1])


def open_targets(env: CompiledView) -> dict[int, list[int]]:
    """Unit -> the units that it may fire at."""
    offered = env.show().actions.get("Target")
    if offered is None:
        return {}
    mask: Any = offered.mask
    return {
        unit_of(env, actor): [unit_of(env, offered.actee_ids[k]) for k in np.flatnonzero(mask[row])]
        for row, actor in enumerate(offered.actor_ids or [])
    }


def place(env: CompiledView, unit: int) -> tuple[float, float]:
    return float(env.record.x[unit]), float(env.record.y[unit])


def health(env: CompiledView) -> list[float]:
    return env.record.health[: sum(env.record.left)].tolist()


# --- What is seen


def test_units_are_shown_with_all_their_features_and_obstacles_after_them() -> None:
    env = world([(RANGED, 0, 0)], [(HEALER, 3, 0)], [(5, 5, 1)])
    env.record.health[1], env.record.cooldown[1] = 4.5, 2
    refresh(env)
    features = env.show().features
    assert np.asarray(features["Unit"]).tolist() == [[0, 0, 6, 0, 0, 1, RANGED], [3, 0, 4.5, 2, 1, 1, HEALER]]
    assert np.asarray(features["Obstacle"]).tolist() == [[5, 5, 1]]


@pytest.mark.parametrize(("x", "seen"), [(7.0, True), (7.001, False)])
def test_an_enemy_is_spotted_up_to_the_sight_of_a_unit(x: float, seen: bool) -> None:
    env = world([(MELEE, 0, 0), (MELEE, -9, 0)], [(MELEE, x, 0)])
    assert env.record.spotted[:3].tolist() == [seen, False, seen]


def test_no_unit_sees_through_an_obstacle_but_beside_it() -> None:
    env = world([(MELEE, -2, 0)], [(MELEE, 2, 0), (MELEE, 2, 3)], [(0, 0, 1)])
    assert env.record.spotted[:3].tolist() == [1, 0, 1]


def test_against_a_script_enemies_that_are_not_spotted_are_hidden_from_the_policy() -> None:
    env = world([(MELEE, 0, 0)], [(MELEE, 6, 0), (MELEE, 8, 0)], opponent=FOCUS)
    assert np.asarray(env.show().visible["Unit"]).tolist() == [True, True, False]
    assert ids_of(env, "Move") == [id_of(env, 0)], "the units of a script do not act"


def test_each_player_sees_its_own_army_first_and_not_what_it_has_not_spotted() -> None:
    source = Skirmish(num_units=4, opponent=0, num_obstacles=0, width=30.0)
    obs = ThreadedVecEnv(source, 1, compile=False).reset(1)
    mapping = players_of(source)
    assert mapping is not None and "Unit" not in obs.visible
    for player in (0, 1):
        seating = Seating(obs, mapping)
        seen = seating.show(seating.part(player))
        own = np.arange(8) // 4 == player
        assert seen.features["Unit"].values[:, 4].tolist() == [0.0 if mine else 1.0 for mine in own]
        assert seen.visible["Unit"].values[:, 0].tolist() == own.tolist(), "the armies start out of sight of each other"
        assert seen.action_masks["Move"].actors.values[:, 0].tolist() == np.flatnonzero(own).tolist()


def test_a_lead_is_where_the_enemy_starts_and_then_where_one_was_seen_last() -> None:
    env = CompiledView(Skirmish(num_units=3, opponent=0, num_obstacles=0, width=30.0))
    env.rng = np.random.default_rng(0)
    env.reset()
    s = env.record
    assert np.asarray(env.show().features["Lead"]) == pytest.approx(
        np.array([[s.x[3], s.y[3], 0], [s.x[0], s.y[0], 1]])
    )
    env = world([(RANGED, 0, 0)], [(RANGED, 9, 3), (RANGED, 6, 0), (RANGED, 5, 1)])
    assert np.asarray(env.show().features["Lead"]).tolist() == [[6, 0, 0], [0, 0, 1]]
    env.record.x[2:4] = 9
    refresh(env)
    assert np.asarray(env.show().features["Lead"]).tolist() == [[6, 0, 0], [0, 0, 1]]


def test_a_lead_that_is_reached_without_an_enemy_is_followed_by_one_drawn_on_the_field() -> None:
    env = world([(MELEE, 0, 0)], [(MELEE, 9, 9)])
    env.record.lead[:] = [1.9, 0.0], [1.0, 1.0]
    refresh(env)
    drawn, other = env.record.lead.tolist()
    assert drawn != [1.9, 0.0] and max(map(abs, drawn)) <= 10
    assert other == [1.0, 1.0], "nobody of army 1 has arrived"


def test_a_player_sees_its_own_lead_as_team_0_and_not_the_other() -> None:
    values, rows = Skirmish(opponent=0).values, np.array([[1, 2, 0], [3, 4, 1]], np.float32)
    assert [Skirmish.visible_to(values, player, "Lead", rows).tolist() for player in (0, 1)] == [
        [True, False],
        [False, True],
    ]
    assert Skirmish.seen_by(values, 1, "Lead", rows)[:, 2].tolist() == [1, 0]
    against_script = world([(MELEE, 0, 0)], [(MELEE, 6, 0)], opponent=FOCUS)
    assert np.asarray(against_script.show().features["Lead"]).tolist() == [[6, 0, 0]]


def test_what_is_spotted_a_player_sees() -> None:
    values = Skirmish(opponent=0).values
    rows = np.array([[0, 0, 1, 0, team, spotted, 0] for team in (0, 1) for spotted in (0, 1)], np.float32)
    assert [Skirmish.visible_to(values, player, "Unit", rows).tolist() for player in (0, 1)] == [
        [True, True, False, True],
        [False, True, True, True],
    ]
    assert Skirmish.visible_to(values, 0, "Obstacle", rows[:, :3]).all()
    assert [Skirmish.num_players(Skirmish(opponent=opponent).values) for opponent in range(4)] == [2, 1, 1, 1]


# --- Moving


@pytest.mark.parametrize(("kind", "speed"), [(MELEE, 1.0), (RANGED, 0.8), (HEALER, 0.8)])
def test_a_unit_moves_by_its_speed_in_the_direction_of_the_name(kind: int, speed: float) -> None:
    half = speed * math.sqrt(0.5)
    ways = {
        "stay": (0, 0), "east": (speed, 0), "north-east": (half, half), "north": (0, speed), "north-west": (-half, half),
        "west": (-speed, 0), "south-west": (-half, -half), "south": (0, -speed), "south-east": (half, -half),
    }  # fmt: skip
    assert list(ways) == list(CHOICES)
    for choice, way in enumerate(ways.values()):
        env = world([(kind, 0, 0)], [(MELEE, 9, 9)])
        env.act(actions(env, {0: choice}))
        assert place(env, 0) == pytest.approx(way)


def test_continuous_moves_are_cut_to_the_speed() -> None:
    env = world([(MELEE, 0, 0), (RANGED, 0, 5)], [(MELEE, 9, 9)], continuous=True)
    assert ids_of(env, "Move") == [] and len(ids_of(env, "Steer")) == 3
    steer = ContinuousAction(ids_of(env, "Steer"), np.array([[1, 1], [0.5, 0], [0, 0]], np.float32))
    env.act({"Steer": steer})
    assert place(env, 0) == pytest.approx((math.sqrt(0.5), math.sqrt(0.5)))
    assert place(env, 1) == pytest.approx((0.4, 5))


def test_the_edge_of_the_field_holds_units() -> None:
    env = world([(MELEE, 9.5, 0)], [(MELEE, -9, 9)])
    env.act(actions(env, {0: EAST}))
    assert place(env, 0) == (10, 0)


def test_an_obstacle_is_left_at_the_nearest_point_of_its_rim() -> None:
    env = world([(MELEE, -2.5, 0), (MELEE, 0, -2.2)], [(MELEE, 9, 9)], [(0, 0, 2)])
    env.act(actions(env, {0: EAST, 1: NORTH}))
    assert place(env, 0) == pytest.approx((-2, 0))
    assert place(env, 1) == pytest.approx((0, -2))


def test_units_that_are_too_near_push_each_other_apart_by_half_the_overlap_each() -> None:
    env = world([(MELEE, 0, 0), (MELEE, 0.3, 0)], [(MELEE, 9, 9)])
    env.act(actions(env))
    assert place(env, 0) == pytest.approx((-0.1, 0)) and place(env, 1) == pytest.approx((0.4, 0))
    env = world([(MELEE, 0, 0), (MELEE, 0, 0)], [(MELEE, 9, 9)])  # in one point
    env.act(actions(env))
    assert place(env, 0) == pytest.approx((0.25, 0)) and place(env, 1) == pytest.approx((-0.25, 0))


# --- Firing


@pytest.mark.parametrize(("kind", "reach"), [(MELEE, 1.0), (RANGED, 5.0)])
def test_a_fighter_may_fire_at_enemies_in_reach_and_at_nobody_else(kind: int, reach: float) -> None:
    env = world([(kind, 0, 0), (MELEE, 0, 0.9)], [(HEALER, reach, 0), (HEALER, 0, -reach - 0.001)])
    assert open_targets(env)[0] == [2]


def test_no_unit_fires_through_an_obstacle() -> None:
    env = world([(RANGED, -2, 0)], [(RANGED, 2, 0)], [(0, 0, 1)])
    assert open_targets(env) == {}


def test_a_healer_may_heal_others_of_its_army_that_have_lost_health() -> None:
    env = world([(HEALER, 0, 0), (MELEE, 1, 0), (MELEE, 0, 1), (MELEE, 4.1, 0)], [(MELEE, 0, -3)])
    env.record.health[[0, 1, 3, 4]] = 1.0
    refresh(env)
    assert open_targets(env) == {0: [1]}  # not itself, the unhurt, the distant, the enemy


@pytest.mark.parametrize(("kind", "power", "period"), [(MELEE, 2.0, 2), (RANGED, 2.0, 3)])
def test_fire_takes_health_and_then_a_unit_reloads(kind: int, power: float, period: int) -> None:
    env = world([(kind, 0, 0)], [(MELEE, 0.9, 0)])
    env.act(actions(env, targets={0: 1}))
    assert health(env) == [HEALTH[kind], 10 - power]
    for left in range(period - 1, 0, -1):
        assert env.record.cooldown[0] == left and 0 not in open_targets(env)
        env.act(actions(env))
    assert env.record.cooldown[0] == 0 and open_targets(env)[0] == [1]


def test_healing_gives_health_up_to_that_of_a_fresh_unit() -> None:
    env = world([(HEALER, 0, 0), (MELEE, 1, 0)], [(MELEE, 9, 9)])
    for before, after in ((5.0, 6.5), (9.5, 10.0)):
        env.record.health[1], env.record.cooldown[0] = before, 0
        refresh(env)
        env.act(actions(env, targets={0: 1}))
        assert health(env) == [6, after, 10]


def test_health_is_given_before_it_is_taken() -> None:
    env = world([(HEALER, 0, 0), (MELEE, 1, 0)], [(MELEE, 1.9, 0)])
    env.record.health[1] = 1.5
    refresh(env)
    env.act(actions(env, targets={0: 1, 2: 1}))
    assert health(env) == [6, 1.0, 10]


def test_a_unit_that_fires_stands_still_and_one_that_fires_at_nobody_moves() -> None:
    env = world([(RANGED, 0, 0), (RANGED, 0, 4)], [(MELEE, 3, 2)])
    env.act(actions(env, {0: WEST, 1: WEST}, {0: 2}))
    assert place(env, 0) == (0, 0) and place(env, 1) == pytest.approx((-0.8, 4))


def test_fire_that_is_not_needed_is_held() -> None:
    env = world([(RANGED, 0, 0), (RANGED, 0, 1), (RANGED, 0, 2)], [(RANGED, 3, 1), (RANGED, 3, 2)])
    env.record.health[3] = 4.0
    refresh(env)
    env.act(actions(env, {2: WEST}, {0: 3, 1: 3, 2: 3}))
    s = env.record
    assert s.left.tolist() == [3, 1] and s.cooldown[:3].tolist() == [2, 2, 0]
    assert place(env, 2) == pytest.approx((-0.8, 2)), "who holds its fire moves"


def test_a_target_that_is_healed_in_the_step_takes_more_fire() -> None:
    env = world([(HEALER, 0, 0), (MELEE, 1, 0)], [(MELEE, 1.9, 0), (MELEE, 1, 0.9)])
    env.record.health[1] = 1.0
    refresh(env)
    env.act(actions(env, targets={0: 1, 2: 1, 3: 1}))
    assert env.record.left.tolist() == [1, 2] and env.record.cooldown[1:3].tolist() == [1, 1], "both were needed"


def test_both_armies_fire_at_once() -> None:
    env = world([(MELEE, 0, 0)], [(MELEE, 0.9, 0)])
    env.record.health[:2] = 2.0
    refresh(env)
    obs = env.act(actions(env, targets={0: 1, 1: 0}))
    s = env.record
    assert obs.done and s.left.tolist() == [0, 0] and (s.won, s.lost) == (0, 0)  # a draw
    assert (s.reward_0, s.reward_1) == (0, 0)


def test_fallen_units_are_gone_and_those_behind_them_move_up_and_keep_their_ids() -> None:
    env = world([(MELEE, 0, 0), (RANGED, 5, 5), (HEALER, 0, 8)], [(MELEE, 0.9, 0), (MELEE, -9, -9)])
    names = [id_of(env, unit) for unit in range(5)]
    env.record.health[0] = 1.0
    refresh(env)
    env.act(actions(env, {1: NORTH}, {3: 0}))
    assert env.record.left.tolist() == [2, 2]
    assert [id_of(env, unit) for unit in range(4)] == names[1:]
    assert place(env, 0) == pytest.approx((5, 5.8)), "its move is its own still"
    assert env.record.kind[:4].tolist() == [RANGED, HEALER, MELEE, MELEE]


# --- Reward and end


def test_the_reward_is_the_change_of_the_balance_and_what_one_earns_the_other_loses() -> None:
    env = world([(MELEE, 0, 0), (MELEE, 5, 5)], [(MELEE, 0.9, 0), (MELEE, -9, 5)])
    obs = env.act(actions(env, targets={0: 2}))
    s = env.record
    assert s.reward_0 == pytest.approx(0.5 * 2 / 20) and s.reward_1 == -s.reward_0  # 2 of the 20 of an army
    assert obs.reward == 0 and not obs.done
    s.health[2], s.cooldown[0] = 1.0, 0
    s.ahead = balance(s)
    refresh(env)
    env.act(actions(env, targets={0: 2}))
    assert s.reward_0 == pytest.approx(0.5 * 1 / 20 + 0.5 * 1 / 2)  # its last health, and one unit of two
    assert s.score_0 == -s.score_1 == pytest.approx(0.5 * 3 / 20 + 0.25)


def test_an_army_without_fighters_is_defeated() -> None:
    env = world([(MELEE, 0, 0)], [(MELEE, 0.9, 0), (HEALER, 5, 5)], opponent=RANDOM)
    env.record.health[1] = 2.0
    env.record.cooldown[1] = 1
    env.record.ahead = before = balance(env.record)
    refresh(env)
    obs = env.act(actions(env, targets={0: 1}))
    s = env.record
    assert obs.done and not obs.truncated and (s.won, s.lost) == (1, 0)
    assert obs.reward == s.reward_0 == pytest.approx(1 + balance(s) - before)
    assert math.isnan(s.reward_1) and math.isnan(s.score_1), "there is no second player"
    assert (s.units_left, s.enemies_left) == (1, 1)


def test_the_limit_of_steps_truncates_without_a_victory() -> None:
    env = world([(MELEE, -9, 0)], [(MELEE, 9, 0)], max_steps=2)
    assert not env.act(actions(env)).done
    obs = env.act(actions(env))
    assert obs.done and obs.truncated and (env.record.won, env.record.lost) == (0, 0)


# --- The start


@pytest.mark.parametrize("num_units", [1, 5, 64])
def test_both_armies_start_alike_and_out_of_sight(num_units: int) -> None:
    env = CompiledView(Skirmish(num_units=num_units, num_obstacles=8, width=30.0))
    for seed in range(8 if num_units < 64 else 2):
        env.rng = np.random.default_rng(seed)
        env.reset()
        s, n = env.record, num_units
        assert s.left.tolist() == [n, n] and has_fighters(s, 0)
        assert s.kind[:n].tolist() == s.kind[n : 2 * n].tolist()
        assert s.x[:n].tolist() == (-s.x[n : 2 * n]).tolist() and s.y[:n].tolist() == (-s.y[n : 2 * n]).tolist()
        assert sorted(s.unit_id[: 2 * n]) == list(range(2 * n))
        assert s.spotted[: 2 * n].sum() == 0
        placed = s.obstacle[: s.obstacles_placed]
        for o, (x, y, radius) in enumerate(placed):
            assert max(abs(x), abs(y)) + radius <= 15 - 1 + 1e-9
            assert all(math.dist((x, y), other[:2]) >= radius + other[2] + 1 - 1e-9 for other in placed[:o])


# --- Scripts


def ordered(env: CompiledView, army: int, strength: int) -> Any:
    with np.errstate(over="ignore"):  # of random numbers, whose state wraps around
        order_army(env.record, army, strength)
    return env.record


def test_rush_fires_at_the_nearest_or_goes_there() -> None:
    s = ordered(world([(RANGED, 0, 0), (MELEE, 0, 2)], [(MELEE, 4, 0), (MELEE, 3, 0), (HEALER, 0, -9)]), 0, RUSH)
    assert s.aim[:2].tolist() == [3, NOBODY]
    assert s.heading[1].tolist() == pytest.approx([3 / math.sqrt(13), -2 / math.sqrt(13)])


def test_the_strongest_finishes_who_is_nearly_down_and_wastes_no_fire() -> None:
    env = world([(RANGED, 0, y) for y in (-1.0, 0.0, 1.0)], [(MELEE, 4, 0), (RANGED, 4, 1), (HEALER, 4, -1)])
    env.record.health[5] = 1.0
    refresh(env)
    s = ordered(env, 0, FOCUS)
    assert s.aim[0] == 5, "the wounded healer"
    assert s.aim[1] == s.aim[2] == 4, "the ranged unit, which falls before the melee unit"


@pytest.mark.parametrize(
    ("healer", "melee", "heading"),
    [((0, 0), (1.6, 1.2), [-0.8, -0.6]), ((9.5, 0), (8, -1), [0, 1]), ((0, -9.5), (1, -8), [-1, 0])],
)
def test_a_healer_withdraws_from_a_melee_unit_and_at_the_edge_of_the_field_along_it(
    healer: tuple[float, float], melee: tuple[float, float], heading: list[float]
) -> None:
    s = ordered(world([(HEALER, *healer)], [(MELEE, *melee)]), 0, FOCUS)
    assert s.heading[0].tolist() == pytest.approx(heading)


def test_a_script_knows_nothing_of_enemies_that_it_does_not_see() -> None:
    orders = []
    for x in (8.0, 9.0):  # the enemy is out of sight at both
        env = world([(MELEE, 0, 0)], [(RANGED, x, 0)])
        env.record.lead[0] = -3.0, 0.0
        s = ordered(env, 0, FOCUS)
        orders.append((s.heading[0].tolist(), s.aim[0]))
    assert orders == [([-1.0, 0.0], NOBODY)] * 2


def test_a_script_goes_around_an_obstacle() -> None:
    env = world([(MELEE, -3, 0.1)], [(MELEE, 9, 9)], [(0, 0, 1.5)])
    s = env.record
    s.lead[0] = 6.0, 0.0
    for _ in range(8):
        ordered(env, 0, RUSH)
        fight(s)
        march(s)
        s.spotted[:] = 0
    assert math.dist(place(env, 0), (6, 0)) < 2


def fought(strengths: tuple[int, int], num_units: int, seed: int) -> float:
    """1 for a victory of army 0, 0.5 for none, in a fight of scripts."""
    env = CompiledView(Skirmish(num_units=num_units, opponent=0))
    env.rng = np.random.default_rng(seed)
    env.reset()
    s = env.record
    for _ in range(100):
        for army in (0, 1):
            ordered(env, army, strengths[army])
        fight(s)
        bury(s)
        march(s)
        spot(s)
        with np.errstate(over="ignore"):
            follow_leads(s)
        engage(s)
        if not (has_fighters(s, 0) and has_fighters(s, 1)):
            return 0.5 + 0.5 * (has_fighters(s, 0) - has_fighters(s, 1))
    return 0.5


def test_each_script_is_stronger_than_the_one_before() -> None:
    for weak, strong in ((RANDOM, RUSH), (RUSH, FOCUS)):
        results = [fought((strong, weak), 4, seed) for seed in range(8)]
        results += [1 - fought((weak, strong), 4, 100 + seed) for seed in range(8)]
        assert np.mean(results) > 0.75, (weak, strong, results)


# --- Whole episodes


@settings(deadline=None, max_examples=8)
@given(
    num_units=st.integers(1, 6),
    opponent=st.integers(0, 3),
    num_obstacles=st.sampled_from([0, 4, 16]),
    continuous=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_health_is_within_bounds_units_on_the_field_and_the_fallen_are_gone(
    num_units: int, opponent: int, num_obstacles: int, continuous: bool, seed: int
) -> None:
    source = Skirmish(
        num_units=num_units, opponent=opponent, num_obstacles=num_obstacles, continuous=continuous, width=12.0
    )
    env = CompiledView(source)
    rng = np.random.default_rng(seed)
    env.rng = np.random.default_rng(seed)
    obs = env.reset()
    earned = [0.0, 0.0]
    for _ in range(40):
        check_invariants(env, obs, num_units)
        if obs.done:
            break
        obs = env.act(drawn(env, obs, rng))
        s = env.record
        earned[0] += s.reward_0
        if opponent == 0:
            assert s.reward_1 == -s.reward_0 and obs.reward == 0
        else:
            assert obs.reward == np.float32(s.reward_0)
    outcome = env.record.won - env.record.lost
    assert earned[0] == pytest.approx(balance(env.record) + outcome) and abs(earned[0]) <= 2


def drawn(env: CompiledView, obs: Observation, rng: np.random.Generator) -> dict[str, Action]:
    """Random actions; units fire where they can."""
    said: dict[str, Action] = {}
    if (offered := obs.actions.get("Move")) is not None:
        said["Move"] = CategoricalAction(offered.actor_ids, rng.integers(9, size=len(offered.actor_ids)))
    if (offered := obs.actions.get("Steer")) is not None:
        said["Steer"] = ContinuousAction(
            offered.actor_ids, rng.uniform(-1, 1, (len(offered.actor_ids), 2)).astype(np.float32)
        )
    if (offered := obs.actions.get("Target")) is not None:
        targets = [offered.actee_ids[rng.choice(np.flatnonzero(row))] for row in np.asarray(offered.mask)]
        said["Target"] = SelectEntityAction(offered.actor_ids, targets)
    return said


def check_invariants(env: CompiledView, obs: Observation, num_units: int) -> None:
    s = env.record
    units = np.asarray(obs.features["Unit"])
    total = int(s.left.sum())
    assert len(units) == total and (s.left <= num_units).all() and (s.left >= 0).all()
    assert (units[:, 2] > 0).all() and (units[:, 2] <= HEALTH[units[:, 6].astype(int)]).all()
    assert (np.abs(units[:, :2]) <= s.width / 2).all()
    assert units[:, 4].tolist() == [0] * s.left[0] + [1] * s.left[1]
    assert len(set(s.unit_id[:total].tolist())) == total
    for x, y, radius in s.obstacle[: s.obstacles_placed]:
        assert (np.hypot(s.x[:total] - x, s.y[:total] - y) >= radius * (1 - 1e-9)).all()
    for unit, targets in open_targets(env).items():
        assert s.cooldown[unit] == 0 and targets
        for target in targets:
            same = (unit < s.left[0]) == (target < s.left[0])
            assert same == (s.kind[unit] == HEALER) and (same or s.spotted[target])
