"""Skirmish: two armies of melee units, ranged units and healers fight in fog, against a script or against each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from entity_gym import spaces
from entity_gym.compiled import Categorical, CompiledEnvironment, Continuous, Entity, SelectEntity, kernel
from entity_gym.envs.colours import GREY
from entity_gym.envs.skirmish_battle import (
    LARGEST_OBSTACLE,
    LONGEST_REACH,
    MAX_ARMY,
    MAX_OBSTACLES,
    MAX_UNITS,
    NOBODY,
    SMALLEST_OBSTACLE,
    SPACING,
    balance,
    bury,
    can_fire,
    engage,
    fight,
    follow_leads,
    has_fighters,
    march,
    place_armies,
    place_obstacles,
    spot,
)
from entity_gym.envs.skirmish_scripts import DIRECTIONS, FOCUS, head, order_army

NAN = float("nan")
CHOICES = ("stay", "east", "north-east", "north", "north-west", "west", "south-west", "south", "south-east")
FEATURES = ("x", "y", "health", "cooldown", spaces.Flag("team"), spaces.Flag("spotted"), spaces.Category("kind", 3))
TEAM, SPOTTED, LEAD_TEAM = 4, 5, 2  # columns


class Skirmish(CompiledEnvironment):
    """Two armies fight in fog on a field with obstacles, until one has nobody left who can attack.

    **Observation.** `Unit` [x, y, health, cooldown, team, spotted, kind], `Obstacle` [x, y, radius] and `Lead` [x, y, team]. The
    field is the square -width / 2 <= x, y <= width / 2; x grows to the east and y to the north. `team` is 0 for one's own units
    and 1 for enemies. A unit is `spotted` where an enemy sees it: where one is at most `sight` away and no
    obstacle touches the line between them. `kind` is 0 for melee units, 1 for ranged units and 2 for healers; `cooldown`
    counts the steps until a unit can fire again. Enemies that are not spotted are hidden: the value function sees them,
    the policy does not. Units without health are gone. The lead of an army is where it looks for the enemy: where
    the enemy has started, then where an enemy was seen last, and when a unit comes within 2 of it and sees nobody, a place
    that is drawn at random. A policy sees its own lead only.

    | kind | health | speed | reach | power | fires every |
    |---|---|---|---|---|---|
    | melee | 10 | 1.0 | 1 | 2 | 2 steps |
    | ranged | 6 | 0.8 | 5 | 2 | 3 steps |
    | healer | 6 | 0.8 | 4 | 1.5, to friends | 3 steps |

    **Actions.** `Move`: every unit stays or goes by its speed in one of eight directions. With `continuous`, `Steer` stands
    in its place, two numbers [east, north] from -1 to 1, times the speed; a vector longer than 1 is cut to 1. `Target`: every
    unit that is ready (cooldown 0) and has somebody to fire at selects one of them, or nobody. A fighter can fire at enemies
    within its reach, a healer at others of its army that have lost health; no obstacle may touch the line. All else is masked.

    **A step**, for both armies at once:

    1. Units that have selected somebody fire, and stand still in this step: first healers, who give health up to that of a fresh
       unit, then fighters. Within an army they fire in the order in which they are listed, and one whose target needs no more
       of it holds its fire, stays ready and moves. Units with health 0 or less are gone; what they fired in this step counts.
    2. The others move. Any two that are less than 0.5 apart then push each other to that distance, which may leave them less
       far apart where there are many. Units stay on the field, and outside obstacles.

    **Reward.** The change of the balance, and 1 for a victory or -1 for a defeat. The balance, from -1 to 1, is half the
    difference of the armies' health plus half the difference of their numbers of units, each as a share of what an army
    starts with. What one army earns the other one loses, so an episode is worth from -2 to 2.

    **End.** An army is defeated when it has neither melee nor ranged units left; if both are at once, it is a draw. The
    episode is truncated after `max_steps` steps, without a victory. `end_of_episode_info` has `won` and `lost` (0 or 1, of
    army 0), `units_left` of army 0 and `enemies_left` of army 1.

    **Start.** Both armies are alike. Three units or more begin with one of each kind; the kinds of the others, or of one or two,
    are drawn: two of five are melee units, two ranged, one a healer, and one unit at least can attack. Army 0 stands around a
    point near the edge, and army 1, like the obstacles, point by point on the opposite side.

    **Opponent.** With `opponent` 1, 2 or 3, a script plays army 1, and sees no more than a policy does: 1 moves and fires at
    random, 2 rushes to the nearest enemy, 3 focuses its fire, lets ranged units keep their distance and healers stay behind.

    **Players.** With `opponent` 0 there are two players, one for each army, and one frame, in which the units of both act
    and nothing is hidden. What a player earned is the metric `reward_<player>` of every step, and `score_<player>`, the sum,
    is in `end_of_episode_info`; the environment's reward is the sum of both, 0. `seen_by` shows `team` with a player's own army
    as 0, and `visible_to` hides from it the enemies that are not spotted (see `entity_gym.pools.players`).

    **Best score.** Below 2; against script 3 a mean above 1 takes victories in nearly all episodes.

    Args:
        num_units: units of an army at the start, 1 to 64.
        opponent: who plays army 1: 0, another player, or 1 to 3, a script.
        width: of the field, 12 to 100.
        sight: distance at which units see each other, at least 5, so that nobody is fired at unseen.
        num_obstacles: at most, an even number from 0 to 16. They have a radius of 0.6 to 1.6 and at least 1 between them;
            a pair that is drawn too near to others is left out.
        continuous: move by `Steer` in the place of `Move`.
        max_steps: steps after which an episode is truncated, at least 1; None for no limit.
    """

    entities = {
        "Unit": Entity(FEATURES, max=MAX_UNITS, hideable=True, ids=True),
        "Obstacle": Entity(["x", "y", "radius"], max=MAX_OBSTACLES),
        "Lead": Entity(["x", "y", spaces.Flag("team")], max=2),
    }
    actions = {
        "Move": Categorical(CHOICES, max_actors=MAX_UNITS),
        "Steer": Continuous([-1, -1], [1, 1], ["east", "north"], max_actors=MAX_UNITS),
        "Target": SelectEntity(max_actors=MAX_UNITS, actees=["Unit"], masked=True, nobody=True),
    }
    parameters = {
        "num_units": 5,
        "opponent": 2,
        "width": 18.0,
        "sight": 8.0,
        "num_obstacles": 4,
        "continuous": False,
    }
    ranges = {
        "num_units": (1, MAX_ARMY),
        "opponent": (0, FOCUS),
        "width": (12.0, 100.0),
        "sight": (LONGEST_REACH, None),
        "num_obstacles": (0, MAX_OBSTACLES),
    }
    max_steps = 100
    state = [
        ("left", np.int64, (2,)),  # units of each army; those of army 0 stand first in all arrays of units
        ("kind", np.int64, (MAX_UNITS,)),
        ("x", np.float64, (MAX_UNITS,)),
        ("y", np.float64, (MAX_UNITS,)),
        ("health", np.float64, (MAX_UNITS,)),
        ("cooldown", np.int64, (MAX_UNITS,)),
        ("unit_id", np.int64, (MAX_UNITS,)),
        ("spotted", np.int8, (MAX_UNITS,)),
        ("engaged", np.int8, (MAX_UNITS,)),  # 1: ready, with somebody to fire at
        ("obstacles_placed", np.int64),
        ("obstacle", np.float64, (MAX_OBSTACLES, 3)),  # [x, y, radius]
        ("start_health", np.float64),  # of an army
        ("ahead", np.float64),  # the balance
        ("lead", np.float64, (2, 2)),  # [x, y] where each army looks for the enemy
        # of the step under way
        ("heading", np.float64, (MAX_UNITS, 2)),  # in units of the speed
        ("aim", np.int64, (MAX_UNITS,)),  # at which unit, or NOBODY
        ("given", np.float64, (MAX_UNITS,)),
        ("taken", np.float64, (MAX_UNITS,)),
        ("promised", np.float64, (MAX_UNITS,)),  # by units of a script that have chosen before
        ("push", np.float64, (MAX_UNITS, 2)),
        *((name, np.float64) for name in ("reward_0", "reward_1", "score_0", "score_1")),
        *((name, np.int64) for name in ("won", "lost", "units_left", "enemies_left")),
    ]
    metrics = ["reward_0", "reward_1"]
    info = ["score_0", "score_1", "won", "lost", "units_left", "enemies_left"]
    player_rewards = ["reward_0", "reward_1"]
    player_parameters = ("opponent",)  # on which it depends who plays
    reward_threshold = 1.0

    @staticmethod
    def check_parameters(p: Any) -> None:
        if p.num_obstacles % 2:
            raise ValueError(
                f"Skirmish: num_obstacles={p.num_obstacles}; it must be even, since obstacles come in pairs"
            )

    def reset(s: Any) -> None:
        place_obstacles(s)
        place_armies(s)
        spot(s)
        follow_leads(s)
        engage(s)
        s.ahead = balance(s)
        s.score_0 = 0.0
        s.score_1 = 0.0 if s.opponent == 0 else NAN
        s.won = 0
        s.lost = 0
        s.units_left = s.num_units
        s.enemies_left = s.num_units

    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        players = s.left[0] + s.left[1] if s.opponent == 0 else s.left[0]  # units that have acted
        for i in range(players):
            if s.continuous:
                head(s, i, act.Steer[i, 0], act.Steer[i, 1])
            else:
                s.heading[i, 0] = DIRECTIONS[act.Move[i], 0]
                s.heading[i, 1] = DIRECTIONS[act.Move[i], 1]
            s.aim[i] = NOBODY
        ready = 0
        for i in range(players):
            if s.engaged[i] == 1:
                s.aim[i] = act.Target[ready]
                ready += 1
        if s.opponent > 0:
            order_army(s, 1, s.opponent)

        fight(s)
        bury(s)
        march(s)
        spot(s)
        follow_leads(s)
        engage(s)
        return score(s)

    def observe(s: Any, obs: Any) -> None:
        total = s.left[0] + s.left[1]
        players = total if s.opponent == 0 else s.left[0]
        obs.n.Unit = total
        for i in range(total):
            obs.Unit[i, 0] = s.x[i]
            obs.Unit[i, 1] = s.y[i]
            obs.Unit[i, 2] = s.health[i]
            obs.Unit[i, 3] = s.cooldown[i]
            obs.Unit[i, TEAM] = 0 if i < s.left[0] else 1
            obs.Unit[i, SPOTTED] = s.spotted[i]
            obs.Unit[i, 6] = s.kind[i]
            obs.ids.Unit[i] = s.unit_id[i]
            obs.visible.Unit[i] = i < players or s.spotted[i] == 1
        obs.n.Obstacle = s.obstacles_placed
        for o in range(s.obstacles_placed):
            for f in range(3):
                obs.Obstacle[o, f] = s.obstacle[o, f]
        obs.n.Lead = 2 if s.opponent == 0 else 1
        for army in range(obs.n.Lead):
            obs.Lead[army, 0] = s.lead[army, 0]
            obs.Lead[army, 1] = s.lead[army, 1]
            obs.Lead[army, LEAD_TEAM] = army
        if s.continuous:
            obs.n.Steer = players
            for i in range(players):
                obs.Steer.actors[i] = i
        else:
            obs.n.Move = players
            for i in range(players):
                obs.Move.actors[i] = i
        ready = 0
        for i in range(players):
            if s.engaged[i] == 1:
                obs.Target.actors[ready] = i
                for j in range(total):
                    obs.Target.mask[ready, j] = can_fire(s, i, j)
                ready += 1
        obs.n.Target = ready

    def draw(s: Any) -> dict[str, Any]:
        """Hints for replays: the field, with units in the colour of their team and their health beside them."""
        half = s.width / 2
        return {
            "bounds": [-half, -half, half, half],
            "y_up": True,
            "types": {
                "Unit": {
                    "position": ["x", "y"],
                    "shape": "circle",
                    "color_by": "team",
                    "size": SPACING,
                    "label": "{health}",
                    "layer": 1,
                },
                "Lead": {"position": ["x", "y"], "shape": "cross", "color_by": "team", "size": SPACING},
                "Obstacle": {
                    "position": ["x", "y"],
                    "shape": "circle",
                    "color": GREY,
                    "size": SMALLEST_OBSTACLE + LARGEST_OBSTACLE,
                },
            },
        }

    @staticmethod
    def num_players(values: Mapping[str, Any]) -> int:
        """How many armies policies play with these parameters (`values` of a description)."""
        return 2 if values["opponent"] == 0 else 1

    @staticmethod
    def players(values: Mapping[str, Any], entity_type: str, rows: ArrayLike) -> NDArray[np.int64]:
        """Return the player of each entity."""
        return np.asarray(rows)[:, TEAM].astype(np.int64)

    @staticmethod
    def seen_by(
        values: Mapping[str, Any], player: int | NDArray[np.int64], entity_type: str, rows: ArrayLike
    ) -> NDArray[np.float32]:
        """The features with `team` 0 for `player`'s own units and lead and 1 for the others."""
        seen = np.array(rows, np.float32)
        if entity_type == "Unit":
            seen[:, TEAM] = seen[:, TEAM] != player
        elif entity_type == "Lead":
            seen[:, LEAD_TEAM] = seen[:, LEAD_TEAM] != player
        return seen

    @staticmethod
    def visible_to(
        values: Mapping[str, Any], player: int | NDArray[np.int64], entity_type: str, rows: ArrayLike
    ) -> NDArray[np.bool_]:
        """Return which entities the policy of `player` sees: all but the other's lead, and its units that are not spotted."""
        features = np.asarray(rows)
        visible = np.ones(len(features), np.bool_)
        if entity_type == "Unit":
            visible = (features[:, TEAM] == player) | (features[:, SPOTTED] == 1)
        elif entity_type == "Lead":
            visible = features[:, LEAD_TEAM] == player
        return visible


@kernel
def score(s: Any) -> tuple[float, bool, bool]:
    """Count what the step was worth to each army: the environment's reward, whether the fight is over, and not truncated."""
    ahead = balance(s)
    reward = ahead - s.ahead
    s.ahead = ahead
    standing = has_fighters(s, 0)
    opposing = has_fighters(s, 1)
    over = not (standing and opposing)
    if over:
        s.won = 1 if standing else 0
        s.lost = 1 if opposing else 0
        reward += s.won - s.lost
    s.units_left = s.left[0]
    s.enemies_left = s.left[1]
    s.reward_0 = reward
    s.reward_1 = 0.0 - reward if s.opponent == 0 else NAN
    s.score_0 += s.reward_0
    s.score_1 += s.reward_1
    return (0.0 if s.opponent == 0 else reward), over, False
