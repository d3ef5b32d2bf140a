"""Scripted players of `ConnectFour`: `choose_column(s)` is the column of the one whose turn it is, by `s.script`.

A board is two whole numbers, the discs of the player to move and all discs: bit (rows + 1) * x + y. The highest bit of each
column stays 0, so that no row of four goes on in the next column.
"""

from __future__ import annotations

from typing import Any

from entity_gym.compiled import kernel, rand_int

RANDOM, ONE_STEP, MINIMAX, ANY, ITSELF = 1, 2, 3, 4, 5  # opponents; the first three are scripts
DEPTH = 4  # discs that minimax looks ahead
LOWEST = -100  # less than every value of a search
OWN, EVERY, BEST, LEAST_WANTED, TRIED = range(5)  # columns of `s.searched`


@kernel
def choose_column(s: Any) -> int:
    """Draw a column from those that the script of this episode values most."""
    chosen = -1
    best = LOWEST
    equals = 0
    own = s.discs[s.mover]
    every = s.discs[0] | s.discs[1]
    for x in range(s.columns):
        disc = landing(s, every, x)
        if disc == 0:
            continue
        value = 0
        if s.script == ONE_STEP:
            value = 2 if connects(s, own | disc) else 1 if connects(s, (every & ~own) | disc) else 0
        elif s.script == MINIMAX:
            value = DEPTH if connects(s, own | disc) else -search(s, every & ~own, every | disc, DEPTH - 1)
        if value > best:
            best = value
            equals = 0
        if value == best:
            equals += 1
            if rand_int(s, equals) == 0:
                chosen = x
    return chosen


@kernel
def connects(s: Any, discs: int) -> bool:
    """Whether four of these discs are in a row."""
    for step in (1, s.rows, s.rows + 1, s.rows + 2):
        pairs = discs & (discs >> step)
        if pairs & (pairs >> (2 * step)):
            return True
    return False


@kernel
def landing(s: Any, every: int, x: int) -> int:
    """The bit of the next disc in a column; 0 if the column is full."""
    first = (s.rows + 1) * x
    full = (1 << s.rows) - 1
    column = (every >> first) & full
    return 0 if column == full else (column + 1) << first


@kernel
def search(s: Any, own: int, every: int, depth: int) -> int:
    """The value of a board, from which nobody has won yet, to the player to move, looking `depth` discs ahead, at least 1.

    Positive if that player can force its four within so many discs, and the sooner, the higher: the number of discs that are left
    then, plus 1. Negative likewise for the other player, otherwise 0. Negamax with alpha-beta pruning; `s.searched` has a row for
    each disc that is ahead.
    """
    level = 0
    value = 0
    s.searched[0, OWN] = own
    s.searched[0, EVERY] = every
    s.searched[0, BEST] = LOWEST
    s.searched[0, LEAST_WANTED] = -LOWEST
    s.searched[0, TRIED] = 0
    while True:
        own = s.searched[level, OWN]
        every = s.searched[level, EVERY]
        tried = s.searched[level, TRIED]
        if tried == s.columns or s.searched[level, BEST] >= s.searched[level, LEAST_WANTED]:
            value = s.searched[level, BEST]
            if value == LOWEST:
                value = 0  # the board is full
            if level == 0:
                return value
            level -= 1
            value = -value
        else:
            s.searched[level, TRIED] += 1
            away = (tried + 1) // 2
            disc = landing(s, every, s.columns // 2 + (away if tried % 2 == 0 else -away))  # from the middle outwards
            if disc == 0:
                continue
            if connects(s, own | disc):
                value = depth - level
            elif level + 1 == depth:
                value = 0
            else:
                level += 1
                s.searched[level, OWN] = every & ~own
                s.searched[level, EVERY] = every | disc
                s.searched[level, BEST] = LOWEST
                s.searched[level, LEAST_WANTED] = -s.searched[level - 1, BEST]
                s.searched[level, TRIED] = 0
                continue
        s.searched[level, BEST] = max(s.searched[level, BEST], value)
