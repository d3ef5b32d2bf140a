"""Scripted armies of `Skirmish`: `order_army(s, army, strength)` writes the heading and the aim of each of its units.

A script knows what a policy knows: its own army, the enemies that it sees, and where it sees none, the `lead` of its army.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from entity_gym.compiled import kernel, rand_int
from entity_gym.envs.skirmish_battle import (
    HEALER,
    HEALTH,
    MELEE,
    NOBODY,
    POWER,
    RANGED,
    REACH,
    between,
    can_fire,
    end_of,
    first_of,
    obstacle_between,
)

RANDOM, RUSH, FOCUS = 1, 2, 3  # strengths
DIRECTIONS = np.array([[0.0, 0.0], *([math.cos(k * math.pi / 4), math.sin(k * math.pi / 4)] for k in range(8))])
THREAT = np.array([1.0, 0.67, 0.5])  # health that a unit of a kind takes, or gives, in a step
DANGER = 3.0  # distance of a melee unit from which ranged units and healers withdraw
CLOSE, FAR = 4.0, 4.8  # between these a ranged unit waits for its next shot
BEHIND = 5.0  # distance that a healer keeps from enemies
STAY = 1.5  # distance at which a healer follows
LARGE = 1e9


@kernel
def order_army(s: Any, army: int, strength: int) -> None:
    """Give orders to all units of an army.

    RANDOM: every unit moves in a random direction, and fires at a random target or at nobody.
    RUSH: every unit goes to the nearest enemy and fires at the nearest in reach; healers heal the nearest and follow fighters.
    FOCUS: fighters agree on the target that is taken out of the fight soonest for what it does, and waste no fire on what
    falls anyway. Ranged units keep their distance while they reload, and with healers withdraw from melee units. Healers heal
    who lacks most, never two what one can heal, and stay behind.
    """
    for i in range(first_of(s, army), end_of(s, army)):
        s.heading[i, 0] = 0.0
        s.heading[i, 1] = 0.0
        s.aim[i] = NOBODY
    for i in range(s.left[0] + s.left[1]):
        s.promised[i] = 0.0
    for i in range(first_of(s, army), end_of(s, army)):
        if strength == RANDOM:
            order_random(s, i)
        elif strength == RUSH:
            order_rush(s, army, i)
        else:
            order_focus(s, army, i)


# ---- the weakest


@kernel
def order_random(s: Any, i: int) -> None:
    """Draw a direction, and one of the targets or nobody."""
    direction = rand_int(s, len(DIRECTIONS))
    s.heading[i, 0] = DIRECTIONS[direction, 0]
    s.heading[i, 1] = DIRECTIONS[direction, 1]
    if s.engaged[i] == 0:
        return
    choices = 1
    for j in range(s.left[0] + s.left[1]):
        if can_fire(s, i, j):
            choices += 1
            if rand_int(s, choices) == 0:
                s.aim[i] = j


# ---- the medium


@kernel
def order_rush(s: Any, army: int, i: int) -> None:
    """Fire at the nearest, or go to the nearest."""
    if s.engaged[i] == 1:
        nearest = LARGE
        for j in range(s.left[0] + s.left[1]):
            if between(s, i, j) < nearest and can_fire(s, i, j):
                nearest = between(s, i, j)
                s.aim[i] = j
    if s.aim[i] == NOBODY:
        if s.kind[i] == HEALER:
            follow(s, army, i)
        else:
            advance(s, army, i)


@kernel
def nearest_enemy(s: Any, army: int, i: int, melee_only: bool) -> int:
    """The nearest enemy that is seen, or NOBODY."""
    found = NOBODY
    nearest = LARGE
    for j in range(first_of(s, 1 - army), end_of(s, 1 - army)):
        if s.spotted[j] == 1 and (not melee_only or s.kind[j] == MELEE):
            away = between(s, i, j)
            if away < nearest:
                nearest = away
                found = j
    return found


@kernel
def advance(s: Any, army: int, i: int) -> None:
    """Go to the nearest enemy, or to the lead."""
    enemy = nearest_enemy(s, army, i, False)
    if enemy == NOBODY:
        go_to(s, i, s.lead[army, 0], s.lead[army, 1])
    else:
        go_to(s, i, s.x[enemy], s.y[enemy])


@kernel
def follow(s: Any, army: int, i: int) -> None:
    """Go to the nearest fighter of one's own, unless it is near."""
    found = NOBODY
    nearest = LARGE
    for j in range(first_of(s, army), end_of(s, army)):
        if s.kind[j] != HEALER and between(s, i, j) < nearest:
            nearest = between(s, i, j)
            found = j
    if found != NOBODY and nearest > STAY:
        go_to(s, i, s.x[found], s.y[found])


@kernel
def go_to(s: Any, i: int, x: float, y: float) -> None:
    """Head for a point, and for the side of an obstacle that stands in the way."""
    o = obstacle_between(s, s.x[i], s.y[i], x, y)
    if o != NOBODY:
        dx = x - s.x[i]
        dy = y - s.y[i]
        to_x = s.obstacle[o, 0] - s.x[i]
        to_y = s.obstacle[o, 1] - s.y[i]
        side = (
            1.0 if dx * to_y - dy * to_x < 0 else -1.0
        )  # the obstacle is to the right of the way: pass it on the left
        length = max(math.sqrt(to_x * to_x + to_y * to_y), 1e-9)
        clear = side * (s.obstacle[o, 2] + 0.5) / length
        x = s.obstacle[o, 0] - clear * to_y
        y = s.obstacle[o, 1] + clear * to_x
    head(s, i, x - s.x[i], y - s.y[i])


@kernel
def head(s: Any, i: int, dx: float, dy: float) -> None:
    """Head in a direction; a vector longer than 1 is cut to 1."""
    length = max(math.sqrt(dx * dx + dy * dy), 1.0)
    s.heading[i, 0] = dx / length
    s.heading[i, 1] = dy / length


# ---- the strongest


@kernel
def order_focus(s: Any, army: int, i: int) -> None:
    """Fire at what counts most, and keep the distance that suits the kind."""
    if s.engaged[i] == 1:
        if s.kind[i] == HEALER:
            aim_healing(s, army, i)
        else:
            aim_together(s, army, i)
    if s.aim[i] != NOBODY:
        return
    threat = nearest_enemy(s, army, i, True)
    if s.kind[i] != MELEE and threat != NOBODY and between(s, i, threat) < DANGER:
        withdraw(s, i, threat)
    elif s.kind[i] == HEALER:
        stay_behind(s, army, i)
    elif s.kind[i] == RANGED and s.cooldown[i] > 0:
        keep_distance(s, army, i)
    else:
        advance(s, army, i)


@kernel
def aim_together(s: Any, army: int, i: int) -> None:
    """Take the target whose rest of health, less what is promised already, is least for its threat."""
    least = LARGE
    for j in range(first_of(s, 1 - army), end_of(s, 1 - army)):
        rest = s.health[j] - s.promised[j]
        worth = rest / THREAT[s.kind[j]]
        if rest > 0 and worth < least and can_fire(s, i, j):
            least = worth
            s.aim[i] = j
    if s.aim[i] != NOBODY:
        s.promised[s.aim[i]] += POWER[s.kind[i]]


@kernel
def aim_healing(s: Any, army: int, i: int) -> None:
    """Take the friend that lacks most health, less what is promised already."""
    most = 0.0
    for j in range(first_of(s, army), end_of(s, army)):
        lacking = HEALTH[s.kind[j]] - s.health[j] - s.promised[j]
        if lacking > most and can_fire(s, i, j):
            most = lacking
            s.aim[i] = j
    if s.aim[i] != NOBODY:
        s.promised[s.aim[i]] += POWER[HEALER]


@kernel
def withdraw(s: Any, i: int, enemy: int) -> None:
    """Head away from an enemy, and along the edge where the field ends there."""
    dx = s.x[i] - s.x[enemy]
    dy = s.y[i] - s.y[enemy]
    length = max(math.sqrt(dx * dx + dy * dy), 1e-9)
    dx /= length
    dy /= length
    if abs(s.x[i] + dx) > s.width / 2:
        dx = 0.0
        dy = 1.0 if dy > 0 else -1.0
    elif abs(s.y[i] + dy) > s.width / 2:
        dy = 0.0
        dx = 1.0 if dx > 0 else -1.0
    head(s, i, dx, dy)


@kernel
def keep_distance(s: Any, army: int, i: int) -> None:
    """While reloading: away from enemies that are close, nearer to those that are far."""
    enemy = nearest_enemy(s, army, i, False)
    if enemy == NOBODY:
        advance(s, army, i)
        return
    away = between(s, i, enemy)
    if away < CLOSE:
        withdraw(s, i, enemy)
    elif away > FAR:
        advance(s, army, i)


@kernel
def stay_behind(s: Any, army: int, i: int) -> None:
    """A healer goes to the friend that lacks most, keeps away from enemies, and otherwise follows the fighters."""
    hurt = NOBODY
    most = 0.0
    for j in range(first_of(s, army), end_of(s, army)):
        lacking = HEALTH[s.kind[j]] - s.health[j]
        if j != i and lacking > most:
            most = lacking
            hurt = j
    enemy = nearest_enemy(s, army, i, False)
    if hurt != NOBODY and between(s, i, hurt) > 0.8 * REACH[HEALER]:
        go_to(s, i, s.x[hurt], s.y[hurt])
    elif enemy != NOBODY and between(s, i, enemy) < BEHIND:
        withdraw(s, i, enemy)
    else:
        follow(s, army, i)
