"""The part of the loops that is the same for every environment. The generated source imports it.

Everything here is ordinary Python that compiles, so the same lines run with `compile=False`. `build` compiles the functions of
`INLINED` into their callers before the optimizer sees them: sizes that are passed as numbers are then constants, on which the
speed of short loops depends.

Shapes: N slots, n environments of one call, E the capacity of a type or list.
"""

from __future__ import annotations

from math import isfinite
from typing import Any

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

#: The functions that are compiled into their callers, by name.
INLINED: dict[str, Any] = {}


def inlined(function: Any) -> Any:
    """Mark a function that is compiled into its callers."""
    INLINED[function.__name__] = function
    return function


#: What one call does with the environments `ids[lo:hi]`; these are flags, done in this order.
CHECK = 1  # are the actions among those that were offered?
RESET = 2
STEP = 4
OBSERVE = 8  # show the state again
PLAN = 16  # count the rows and compute where each environment's rows go
COPY = 32  # copy the rows there, if there is room

#: Environments that are stepped and copied in turn: few enough for what one has written to be in the cache still.
CHUNK = 64

#: Places in `report`, which a call leaves behind.
FAULT, SLOT, WHAT, VALUE, COPIED, ENDED, KEPT = range(7)

#: `report[FAULT]`: why a call stopped. `report[SLOT]` is the slot; WHAT and VALUE say more.
NO_FAULT = 0
BAD_ACTION = 1  # WHAT: number of the action
BAD_REWARD = 2
BAD_COUNT = 3  # WHAT: column of the count, VALUE: its value
BAD_INDEX = 4  # WHAT: number of the action, VALUE: the entity index
BAD_ROW = 5  # WHAT: number of the packed array; which slot it is, Python finds out

#: Places in `settings`, which stay as they are.
AUTORESET, KEEP_TRUNCATED, KEEP_ALL, DROP_ACTIONS, HAS_GROUPS = range(5)

#: `obs.n.<Action>` before `observe` where actors or actees are declared: all of them.
EVERYBODY = -1


@intrinsic
def as_pointer(typing_context: Any, address: Any) -> Any:
    """The untyped pointer to an int64 address; `numba.carray` makes an array of it."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), codegen


@inlined
def fail(report: Any, fault: int, slot: int, what: int, value: int) -> bool:
    """Write down a fault. Returns False, as every function that has failed does."""
    report[FAULT] = fault
    report[SLOT] = slot
    report[WHAT] = what
    report[VALUE] = value
    return False


# ---- before `observe`


@inlined
def fill(flags: Any, i: int, most: int, value: Any) -> None:
    """Set the flags or ids of slot i. A loop is faster than assigning a slice."""
    for k in range(most):
        flags[i, k] = value


# ---- after `observe`


@inlined
def list_entities(listed: Any, i: int, k: int, first: int, count: int) -> int:
    """Write the entity indices of one type to slot i, from place `k` on. Returns the place behind the last."""
    for e in range(count):
        listed[i, k + e] = first + e
    return k + count


@inlined
def find_unknown(listed: Any, i: int, count: int, total: int) -> int:
    """The place of the first of `count` entity indices that no entity of the frame has; -1 if there is none."""
    for k in range(count):
        if listed[i, k] < 0 or listed[i, k] >= total:
            return k
    return -1


@inlined
def close_self(mask: Any, i: int, actors: Any, num_actors: int, actees: Any, num_actees: int) -> None:
    """Close the pairs of an actor with itself in slot i."""
    for k in range(num_actors):
        for e in range(num_actees):
            if actors[i, k] == actees[i, e]:
                mask[i, k, e] = False


# ---- packing: every `copy_...` copies the rows of ids[lo:hi] to `out`, from offsets[j] on; False if one may not be so


@inlined
def copy_features(
    ids: Any, lengths: Any, column: int, offsets: Any, slots: Any, out: Any, width: int, lo: int, hi: int
) -> bool:
    """Copy features, which must be finite. No `and`: this way the loops have no branches."""
    fine = True
    if offsets[hi] > offsets[lo]:
        for j in range(lo, hi):
            i = ids[j]
            to = offsets[j]
            for k in range(lengths[i, column]):
                for f in range(width):
                    x = slots[i, k, f]
                    out[to + k, f] = x
                    fine &= isfinite(x)
    return fine


@inlined
def are_whole(
    ids: Any, lengths: Any, column: int, slots: Any, first: int, end: int, num: int, lo: int, hi: int
) -> bool:
    """Whether the features `first` to `end` - 1 are whole numbers from 0 to `num` - 1: categories and flags."""
    fine = True
    for j in range(lo, hi):
        i = ids[j]
        for k in range(lengths[i, column]):
            for f in range(first, end):
                x = slots[i, k, f]
                fine &= (x >= 0) & (x < num) & (x == np.floor(x))
    return fine


@inlined
def copy_numbers(ids: Any, lengths: Any, column: int, offsets: Any, slots: Any, out: Any, lo: int, hi: int) -> bool:
    """Copy lists with one number for each row: actors, actees, ids, visibility."""
    if offsets[hi] > offsets[lo]:
        for j in range(lo, hi):
            i = ids[j]
            to = offsets[j]
            for k in range(lengths[i, column]):
                out[to + k, 0] = slots[i, k]
    return True


@inlined
def copy_choices(
    ids: Any, lengths: Any, column: int, offsets: Any, slots: Any, out: Any, width: int, lo: int, hi: int
) -> bool:
    """Copy the masks of choices. Every actor needs an open one."""
    fine = True
    if offsets[hi] > offsets[lo]:
        for j in range(lo, hi):
            i = ids[j]
            to = offsets[j]
            for k in range(lengths[i, column]):
                any_open = False
                for c in range(width):
                    out[to + k, c] = slots[i, k, c]
                    any_open |= slots[i, k, c]
                fine &= any_open
    return fine


@inlined
def copy_after(
    ids: Any, lengths: Any, actors: int, actees: int, offsets: Any, slots: Any, out: Any, width: int, lo: int, hi: int
) -> bool:
    """Copy masks of choices after a selection, actor by actor; `actors` and `actees` are columns of `lengths`."""
    if offsets[hi] > offsets[lo]:
        for j in range(lo, hi):
            i = ids[j]
            to = offsets[j]
            for k in range(lengths[i, actors]):
                for e in range(lengths[i, actees]):
                    for c in range(width):
                        out[to, c] = slots[i, k, e, c]
                    to += 1
    return True


@inlined
def copy_pairs(
    ids: Any,
    lengths: Any,
    actors: int,
    actees: int,
    offsets: Any,
    slots: Any,
    out: Any,
    can_close: bool,
    lo: int,
    hi: int,
) -> bool:
    """Copy masks over pairs, actor by actor; `actors` and `actees` are columns of `lengths`.

    Unless everything can be closed, every actor needs an open actee if there are any.
    """
    fine = True
    if offsets[hi] > offsets[lo]:
        for j in range(lo, hi):
            i = ids[j]
            num_actees = lengths[i, actees]
            to = offsets[j]
            for k in range(lengths[i, actors]):
                any_open = can_close or num_actees == 0
                for e in range(num_actees):
                    out[to, 0] = slots[i, k, e]
                    any_open |= slots[i, k, e]
                    to += 1
                fine &= any_open
    return fine
