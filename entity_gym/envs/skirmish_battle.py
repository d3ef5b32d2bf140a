"""The battle of `Skirmish`: sight, fire, movement and losses, as functions over its record.

Units are numbered as they are listed: army 0 from 0 to left[0] - 1, then army 1. Distances are in units of the field.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from entity_gym.compiled import kernel, new_id, rand_float, rand_int

MAX_ARMY = 64
MAX_UNITS, MAX_OBSTACLES = 2 * MAX_ARMY, 16
MELEE, RANGED, HEALER = range(3)
KINDS = 3
HEALTH = np.array([10.0, 6.0, 6.0])  # of a fresh unit, by kind
SPEED = np.array([1.0, 0.8, 0.8])  # distance of a step
REACH = np.array([1.0, 5.0, 4.0])  # distance of fire
POWER = np.array([2.0, 2.0, 1.5])  # health that fire takes, or a healer gives
PERIOD = np.array([2, 3, 3])  # steps from fire to fire
LONGEST_REACH = 5.0
SPACING = 0.5  # distance below which two units push each other apart
GAP = 1.0  # between obstacles, and between an obstacle and the edge of the field
SMALLEST_OBSTACLE, LARGEST_OBSTACLE = 0.6, 1.6  # radius
START = 3.0  # distance of the middle of an army from the edge
ARRIVED = 2.0  # distance at which a lead is followed up
NOBODY = -1


# ---- the start


@kernel
def place_obstacles(s: Any) -> None:
    """Draw obstacles in pairs opposite to each other; a pair too near to an edge or an obstacle is dropped."""
    s.obstacles_placed = 0
    for _ in range(s.num_obstacles // 2):
        radius = SMALLEST_OBSTACLE + (LARGEST_OBSTACLE - SMALLEST_OBSTACLE) * rand_float(s)
        room = s.width / 2 - radius - GAP
        x = (2 * rand_float(s) - 1) * room
        y = (2 * rand_float(s) - 1) * room
        fits = 2 * math.sqrt(x * x + y * y) >= 2 * radius + GAP
        for o in range(s.obstacles_placed):
            if distance(x, y, s.obstacle[o, 0], s.obstacle[o, 1]) < radius + s.obstacle[o, 2] + GAP:
                fits = False
        if fits:
            for side in (1.0, -1.0):
                s.obstacle[s.obstacles_placed, 0] = side * x
                s.obstacle[s.obstacles_placed, 1] = side * y
                s.obstacle[s.obstacles_placed, 2] = radius
                s.obstacles_placed += 1


@kernel
def place_armies(s: Any) -> None:
    """Draw army 0 around a point near an edge; army 1 is its image on the opposite side, so that the fight is fair.

    Three units or more are of all kinds: without healers the fight is a race, which luck decides.
    """
    angle = 2 * math.pi * rand_float(s)
    away = s.width / 2 - START
    spread = 0.5 + 0.5 * math.sqrt(s.num_units)
    fighters = 0
    for i in range(s.num_units):
        other = s.num_units + i
        s.kind[i] = i if i < KINDS <= s.num_units else draw_kind(s)
        if i == s.num_units - 1 and fighters == 0:
            s.kind[i] = rand_int(s, 2)
        if s.kind[i] != HEALER:
            fighters += 1
        turn = 2 * math.pi * rand_float(s)
        radius = spread * math.sqrt(rand_float(s))
        s.x[i] = away * math.cos(angle) + radius * math.cos(turn)
        s.y[i] = away * math.sin(angle) + radius * math.sin(turn)
        land(s, i)
        s.kind[other] = s.kind[i]
        s.x[other] = -s.x[i]
        s.y[other] = -s.y[i]
    for i in range(2 * s.num_units):
        s.health[i] = HEALTH[s.kind[i]]
        s.cooldown[i] = 0
        s.unit_id[i] = new_id(s)
    s.left[0] = s.num_units
    s.left[1] = s.num_units
    s.start_health = total_health(s, 0)
    for army in range(2):
        enemy = s.num_units * (1 - army)
        s.lead[army, 0] = s.x[enemy]
        s.lead[army, 1] = s.y[enemy]


@kernel
def draw_kind(s: Any) -> int:
    """Melee and ranged units in 2 of 5 cases each, healers in 1."""
    fifth = rand_int(s, 5)
    if fifth < 2:
        return MELEE
    return RANGED if fifth < 4 else HEALER


# ---- who is where


@kernel
def distance(x0: float, y0: float, x1: float, y1: float) -> float:
    """Between two points."""
    return math.sqrt((x0 - x1) * (x0 - x1) + (y0 - y1) * (y0 - y1))


@kernel
def between(s: Any, i: int, j: int) -> float:
    """The distance of two units."""
    return distance(s.x[i], s.y[i], s.x[j], s.y[j])


@kernel
def army_of(s: Any, i: int) -> int:
    """The army of unit i."""
    return 0 if i < s.left[0] else 1


@kernel
def first_of(s: Any, army: int) -> int:
    """The first unit of an army."""
    return 0 if army == 0 else int(s.left[0])


@kernel
def end_of(s: Any, army: int) -> int:
    """One more than the last unit of an army."""
    return int(s.left[0] if army == 0 else s.left[0] + s.left[1])


@kernel
def obstacle_between(s: Any, x0: float, y0: float, x1: float, y1: float) -> int:
    """The first obstacle in the list whose inside the segment between two points touches, or NOBODY."""
    dx = x1 - x0
    dy = y1 - y0
    length2 = dx * dx + dy * dy
    for o in range(s.obstacles_placed):
        to_x = s.obstacle[o, 0] - x0
        to_y = s.obstacle[o, 1] - y0
        radius2 = s.obstacle[o, 2] * s.obstacle[o, 2]
        along = to_x * dx + to_y * dy  # of the nearest point, times the length
        if along <= 0:
            nearest2 = to_x * to_x + to_y * to_y
        elif along >= length2:
            nearest2 = (to_x - dx) * (to_x - dx) + (to_y - dy) * (to_y - dy)
        else:
            across = to_x * dy - to_y * dx
            nearest2 = across * across / length2
        if nearest2 < radius2 * (1 - 1e-9):  # a unit on the rim still sees along it
            return o
    return NOBODY


@kernel
def sees(s: Any, i: int, j: int, reach: float) -> bool:
    """Whether unit j is at most `reach` away from unit i, and no obstacle between them."""
    dx = s.x[i] - s.x[j]
    dy = s.y[i] - s.y[j]
    if dx * dx + dy * dy > reach * reach:
        return False
    return obstacle_between(s, s.x[i], s.y[i], s.x[j], s.y[j]) == NOBODY


@kernel
def spot(s: Any) -> None:
    """Find out which units an enemy sees. As all see equally far, a unit is seen by those whom it sees."""
    total = s.left[0] + s.left[1]
    for i in range(total):
        s.spotted[i] = 0
    for i in range(s.left[0]):
        for j in range(s.left[0], total):
            if (s.spotted[i] == 0 or s.spotted[j] == 0) and sees(s, i, j, s.sight):
                s.spotted[i] = 1
                s.spotted[j] = 1


@kernel
def follow_leads(s: Any) -> None:
    """Find out where each army looks for the enemy.

    That is where it sees its first enemy, or has last seen one. When a unit arrives and nobody is seen, a new place is drawn.
    """
    for army in range(2):
        seen = NOBODY
        for j in range(first_of(s, 1 - army), end_of(s, 1 - army)):
            if seen == NOBODY and s.spotted[j] == 1:
                seen = j
        if seen != NOBODY:
            s.lead[army, 0] = s.x[seen]
            s.lead[army, 1] = s.y[seen]
            continue
        for i in range(first_of(s, army), end_of(s, army)):
            if distance(s.x[i], s.y[i], s.lead[army, 0], s.lead[army, 1]) < ARRIVED:
                s.lead[army, 0] = (rand_float(s) - 0.5) * s.width
                s.lead[army, 1] = (rand_float(s) - 0.5) * s.width
                break


@kernel
def can_fire(s: Any, i: int, j: int) -> bool:
    """Whether unit i, which is ready, may fire at unit j: an enemy, or for a healer another hurt unit of its own army."""
    friends = army_of(s, i) == army_of(s, j)
    if s.kind[i] == HEALER:
        if not friends or i == j or s.health[j] >= HEALTH[s.kind[j]]:
            return False
    elif friends:
        return False
    return sees(s, i, j, REACH[s.kind[i]])


@kernel
def engage(s: Any) -> None:
    """Find out which units are ready and have somebody to fire at."""
    total = s.left[0] + s.left[1]
    for i in range(total):
        s.engaged[i] = 0
        if s.cooldown[i] == 0:
            for j in range(total):
                if can_fire(s, i, j):
                    s.engaged[i] = 1
                    break


# ---- a step


@kernel
def fight(s: Any) -> None:
    """Units fire at their `aim`, healers first, and stand still. What is not needed any more is not fired: that unit moves."""
    total = s.left[0] + s.left[1]
    for i in range(total):
        s.given[i] = 0.0
        s.taken[i] = 0.0
    for i in range(total):
        target = s.aim[i]
        if target != NOBODY and s.kind[i] == HEALER and s.health[target] + s.given[target] < HEALTH[s.kind[target]]:
            s.given[target] += POWER[HEALER]
            fire(s, i)
        else:
            s.cooldown[i] = max(s.cooldown[i] - 1, 0)
    for i in range(total):
        s.health[i] = min(s.health[i] + s.given[i], HEALTH[s.kind[i]])
    for i in range(total):
        target = s.aim[i]
        if target != NOBODY and s.kind[i] != HEALER and s.taken[target] < s.health[target]:
            s.taken[target] += POWER[s.kind[i]]
            fire(s, i)
    for i in range(total):
        s.health[i] -= s.taken[i]


@kernel
def fire(s: Any, i: int) -> None:
    """Unit i has fired: it reloads and stands still."""
    s.cooldown[i] = PERIOD[s.kind[i]] - 1
    s.heading[i, 0] = 0.0
    s.heading[i, 1] = 0.0


@kernel
def bury(s: Any) -> None:
    """Take units without health off the field; those behind them move up in the list."""
    total = s.left[0] + s.left[1]
    alive = 0
    lost = 0  # by army 0
    for i in range(total):
        if s.health[i] <= 0:
            if i < s.left[0]:
                lost += 1
            continue
        if alive < i:
            s.kind[alive] = s.kind[i]
            s.x[alive] = s.x[i]
            s.y[alive] = s.y[i]
            s.health[alive] = s.health[i]
            s.cooldown[alive] = s.cooldown[i]
            s.unit_id[alive] = s.unit_id[i]
            s.heading[alive] = s.heading[i]
        alive += 1
    s.left[0] -= lost
    s.left[1] = alive - s.left[0]


@kernel
def march(s: Any) -> None:
    """Move all units by their heading, push apart those that are too near, and keep them on the field."""
    total = s.left[0] + s.left[1]
    for i in range(total):
        s.x[i] += SPEED[s.kind[i]] * s.heading[i, 0]
        s.y[i] += SPEED[s.kind[i]] * s.heading[i, 1]
        s.push[i, 0] = 0.0
        s.push[i, 1] = 0.0
    for i in range(total):
        for j in range(i + 1, total):
            dx = s.x[i] - s.x[j]
            dy = s.y[i] - s.y[j]
            length2 = dx * dx + dy * dy
            if length2 >= SPACING * SPACING:
                continue
            length = math.sqrt(length2)
            share = (SPACING - length) / 2
            push_x = share * dx / length if length > 1e-9 else share
            push_y = share * dy / length if length > 1e-9 else 0.0
            s.push[i, 0] += push_x
            s.push[i, 1] += push_y
            s.push[j, 0] -= push_x
            s.push[j, 1] -= push_y
    for i in range(total):
        s.x[i] += s.push[i, 0]
        s.y[i] += s.push[i, 1]
        land(s, i)


@kernel
def land(s: Any, i: int) -> None:
    """Bring a unit back onto the field, and out of an obstacle to the nearest point of its rim."""
    half = s.width / 2
    s.x[i] = min(max(s.x[i], -half), half)
    s.y[i] = min(max(s.y[i], -half), half)
    for o in range(s.obstacles_placed):
        dx = s.x[i] - s.obstacle[o, 0]
        dy = s.y[i] - s.obstacle[o, 1]
        radius = s.obstacle[o, 2]
        length2 = dx * dx + dy * dy
        if length2 < radius * radius:
            length = math.sqrt(length2)
            s.x[i] = s.obstacle[o, 0] + (radius * dx / length if length > 1e-9 else radius)
            s.y[i] = s.obstacle[o, 1] + (radius * dy / length if length > 1e-9 else 0.0)


# ---- the score


@kernel
def total_health(s: Any, army: int) -> float:
    """The health of all units of an army."""
    total = 0.0
    for i in range(first_of(s, army), end_of(s, army)):
        total += s.health[i]
    return total


@kernel
def balance(s: Any) -> float:
    """By how much army 0 is ahead, from -1 to 1: half its share of health, half its share of units, less army 1's."""
    health = (total_health(s, 0) - total_health(s, 1)) / s.start_health
    return float(0.5 * health + 0.5 * (s.left[0] - s.left[1]) / s.num_units)


@kernel
def has_fighters(s: Any, army: int) -> bool:
    """Whether an army has a unit that can attack."""
    for i in range(first_of(s, army), end_of(s, army)):
        if s.kind[i] != HEALER:
            return True
    return False
