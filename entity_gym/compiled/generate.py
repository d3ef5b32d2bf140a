"""The source of the loops around one environment: what depends on its declaration. The rest is in `runtime`.

The loops work on `a`, a named tuple of arrays. `bound_arrays` lists them: the slots, whose addresses stand in a table; the
environments and actions of a call, which are its arguments; and the packed arrays, which the call fills and which lie in one
block of memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from entity_gym.compiled.layout import Kind, Layout

#: The first entries of the table. One for each of `bound_arrays` follows: an address, or for packed arrays the offset in the
#: block, in bytes. Those of the call's arguments are not used.
NUM_SLOTS, STRIDE, BLOCK, FIRST_ARRAY = range(4)
_MANY = "MANY"  # rows of arrays whose sizes the caller knows


@dataclass(frozen=True)
class Bound:
    """One array of `a`.

    Attributes:
        name: attribute of `a`.
        dtype, shape: expressions.
        packed: whether it lies in the block that a call fills.
        argument: whether it is an argument of the call.
        column: the caller's array is (n, 1), and the code sees (n,).
    """

    name: str
    dtype: str
    shape: str
    packed: bool = False
    argument: bool = False
    column: bool = False


def bound_arrays(layout: Layout) -> list[Bound]:
    """The arrays of `a`, in the order of the table."""
    columns = len(layout.columns)
    arrays = [
        Bound("record", "RECORD", "num_slots,"),
        Bound("final_record", "RECORD", "num_slots,"),
        Bound("counts", "COUNTS", "num_slots,"),
        Bound("lengths", "np.int64", f"num_slots, {len(layout.counts.names or ())}"),  # the same memory
        Bound("settings", "np.int64", "5,"),
        Bound("coming", "np.uint64", "num_slots,"),
        Bound("instance", "np.uint64", "num_slots,"),
        Bound("report", "np.int64", "8,"),
        Bound("rooms", "np.int64", f"{columns},"),
        Bound("ended_ids", "np.int64", "num_slots,"),
        Bound("kept_ids", "np.int64", "num_slots,"),
    ]
    for slot in layout.slots:
        arrays.append(Bound(slot.name, _dtype(slot.dtype), f"num_slots, {', '.join(map(str, slot.shape))}"))
    arrays.append(Bound("ids", "np.int64", "len(ids),", argument=True))
    for action in layout.actions:
        width = "" if action.space.discrete else f" {action.space.width}"
        shape, dtype = f"{_MANY},{width}", "np.int64" if action.space.discrete else "np.float64"
        arrays.append(Bound(f"choices_{action.attribute}", dtype, shape, argument=True, column=action.space.discrete))
        arrays.append(Bound(f"starts_{action.attribute}", "np.int64", "len(ids) + 1,", argument=True))
    arrays.append(Bound("offsets", "np.int64", f"{columns}, stride", packed=True))
    for slot in layout.packed:
        shape = f"{_MANY}, {', '.join(map(str, slot.row))}"
        arrays.append(Bound(f"packed_{slot.name}", _dtype(slot.dtype), shape, packed=True))
    return arrays


def _dtype(dtype: np.dtype[Any]) -> str:
    return "np.bool_" if dtype == np.bool_ else f"np.{dtype.name}"


def generate(layout: Layout) -> str:
    """The module around `layout`'s environment."""
    parts: list[Iterable[str]] = [
        _head(layout),
        _check(layout),
        _show(layout),
        _advance(layout),
        _plan(layout),
        _copy(layout),
        _work(layout),
        _entry(layout),
    ]
    return "\n\n\n".join("\n".join(part) for part in parts) + "\n"


def _indented(lines: Iterable[str], levels: int = 1) -> Iterator[str]:
    for line in lines:
        yield "    " * levels + line if line else line


def _head(layout: Layout) -> Iterator[str]:
    yield f'"""The loops around {layout.name}: generated from its declaration, and made anew whenever that changes.'
    yield ""
    yield "a: all arrays. i: a slot. j: its place in the call, a.ids[j] == i. s: its record. n: its counts, `obs.n`."
    yield '"""'
    yield ""
    yield "from collections import namedtuple"
    yield "from math import isfinite"
    yield ""
    yield "import numpy as np"
    yield "from numba import carray, njit, types"
    yield ""
    yield "from entity_gym.compiled.compiler import entry"
    yield "from entity_gym.compiled.random import mix"
    yield "from entity_gym.compiled.runtime import *  # noqa: F403"
    yield ""
    yield "# Given by build.py: ENV, RECORD, COUNTS, JIT, OPTIONS, INNER, CHECKS."
    yield "INLINED = INLINED | CHECKS"
    yield "if JIT:"
    yield '    INLINED = {name: njit(inline="always")(function) for name, function in INLINED.items()}'
    yield "globals().update(INLINED)"
    yield "reset, step, observe = ENV.reset, ENV.step, ENV.observe"
    yield "if JIT:"
    yield "    inline = njit(forceinline=True, **INNER)"
    yield "    reset, step, observe = inline(reset), inline(step), inline(observe)"
    yield ""
    yield "MANY = 1 << 40  # rows of arrays whose sizes the caller knows"
    yield from _named_tuple("Arrays", [array.name for array in bound_arrays(layout)])
    for action in layout.actions:
        if action.written:
            yield from _named_tuple(f"Offer_{action.attribute}", list(action.written))
    for kind, name in ((Kind.VISIBLE, "Visible"), (Kind.IDS, "Ids")):
        if layout.of_kind(kind):
            yield from _named_tuple(name, [slot.owner for slot in layout.of_kind(kind)])
    yield from _named_tuple("Obs", [name for name, _ in _obs_fields(layout)])
    if layout.entities:
        yield from _named_tuple("First", list(layout.entities))
    yield from _named_tuple("Act", [*(["first"] if layout.entities else []), *(a.attribute for a in layout.actions)])


def _named_tuple(name: str, fields: list[str]) -> Iterator[str]:
    yield f'{name} = namedtuple("{name}", {fields!r})'.replace("'", '"')


def _obs_fields(layout: Layout) -> list[tuple[str, str]]:
    """The fields of `obs` and what they are for slot `i`."""
    fields = [("n", "n")]
    fields += [(slot.owner, f"a.{slot.name}[i]") for slot in layout.of_kind(Kind.FEATURES)]
    fields += [("global_features", f"a.{slot.name}[i, 0]") for slot in layout.of_kind(Kind.GLOBAL_FEATURES)]
    for action in layout.actions:
        parts = ", ".join(f"a.{slot.name}[i]" for slot in action.written.values())
        if parts:
            fields.append((action.attribute, f"Offer_{action.attribute}({parts})"))
    for kind, name, attribute in (
        (Kind.VISIBLE, "Visible", "visible"),
        (Kind.IDS, "Ids", "ids"),
    ):
        slots = layout.of_kind(kind)
        if slots:
            rows = [f"a.{slot.name}[i]" for slot in slots]
            fields.append((attribute, f"{name}({', '.join(rows)})"))
    return fields


def _check(layout: Layout) -> Iterator[str]:
    yield "def check(a, lo, hi):"
    yield '    """Are the actions for ids[lo:hi] among those that were offered?"""'
    if not layout.actions:
        yield "    return True"
        return
    yield "    for j in range(lo, hi):"
    yield "        i = a.ids[j]"
    yield "        n = a.counts[i]"
    for number, action in enumerate(layout.actions):
        name = action.attribute
        yield f"        if a.starts_{name}[j + 1] - a.starts_{name}[j] != {action.num_values}:"
        yield f"            return fail(a.report, BAD_ACTION, i, {number}, 0)"
        yield f"        if not {action.check()}:"
        yield f"            return fail(a.report, BAD_ACTION, i, {number}, 0)"
    yield "    return True"


def _show(layout: Layout) -> Iterator[str]:
    columns = list(layout.counts.names or ())
    yield "def show(a, i, s):"
    yield '    """Let `observe` write what slot i shows; fill in declared actors and actees; check counts and entity indices."""'
    yield "    n = a.counts[i]"
    for name in layout.entities:
        yield f"    n.{name} = 0"
    for slot in layout.of_kind(Kind.VISIBLE):
        yield f"    fill(a.{slot.name}, i, {slot.shape[0]}, True)"
    for slot in layout.of_kind(Kind.IDS):
        yield f"    fill(a.{slot.name}, i, {slot.shape[0]}, -1)"
    for action in layout.actions:
        yield from _indented(action.before())
    yield f"    observe(s, Obs({', '.join(value for _, value in _obs_fields(layout))}))"
    for name, entity in layout.entities.items():
        yield f"    if n.{name} < 0 or n.{name} > {entity.max}:"
        yield f"        return fail(a.report, BAD_COUNT, i, {columns.index(name)}, n.{name})"
    yield from _indented(_firsts(layout))
    for number, action in enumerate(layout.actions):
        yield from _indented(action.after(columns, number))
    yield "    return True"


def _firsts(layout: Layout) -> Iterator[str]:
    """Set `first_<Type>`, the index of the first entity of each type, and `total`."""
    total = "0"
    for name in layout.entities:
        yield f"first_{name} = {total}"
        total = f"first_{name} + n.{name}"
    yield f"total = {total}"


def _advance(layout: Layout) -> Iterator[str]:
    yield "def advance(a, todo, lo, hi):"
    yield '    """Reset, step or observe ids[lo:hi]."""'
    yield "    for j in range(lo, hi):"
    yield "        i = a.ids[j]"
    yield "        a.report[SLOT] = i  # where an exception comes from"
    yield "        s = a.record[i]"
    yield "        fresh = todo & RESET != 0  # begins an episode"
    yield "        drop = a.settings[DROP_ACTIONS] == 1"
    yield "        if fresh:"
    yield "            a.reward[i] = 0.0"
    yield "            a.done[i] = a.truncated[i] = a.kept[i] = False"
    for slot in layout.of_kind(Kind.METRIC):
        yield f"            a.{slot.name}[i] = np.nan"
    for player in range(len(layout.env.player_rewards)):
        yield f"            a.player_rewards[i, {player}] = 0.0"
    yield "        if todo & STEP:"
    yield from _indented(_step(layout), 3)
    yield "        if fresh:"
    yield "            if a.pending[i]:"
    yield "                a.pending[i] = False"
    for slot in layout.of_kind(Kind.PENDING):
        yield f"                s.{slot.owner} = a.{slot.name}[i]"
    yield "            if a.settings[HAS_GROUPS] == 1:"
    yield "                s.rng = a.instance[i] = a.coming[i]"
    yield "                a.coming[i] = mix(a.coming[i])"
    yield "            s.steps = 0"
    if layout.of_kind(Kind.IDS):
        yield "            s.next_id = 0"
    yield "            reset(s)"
    yield "        a.elapsed[i] = s.steps"
    yield "        if not show(a, i, s):"
    yield "            return False"
    lists = [listed for action in layout.actions for listed in action.lists]
    if lists:
        yield "        if drop:"
        yield "            n = a.counts[i]"
        for listed in lists:
            yield f"            n.{listed.count} = 0"
    yield "    return True"


def _step(layout: Layout) -> Iterator[str]:
    """Step slot i. Sets `fresh` to begin the next episode, or `drop` to remove the actors of a last observation."""
    arguments = [action.chosen for action in layout.actions]
    if layout.entities:
        yield "n = a.counts[i]"
        yield from list(_firsts(layout))[:-1]
        arguments.insert(0, f"First({', '.join(f'first_{name}' for name in layout.entities)})")
    yield "s.steps = s.steps + 1"
    yield f"act = Act({', '.join(arguments)})"
    yield "reward, terminated, cut = step(s, act)"
    yield "ended = terminated or cut or (s.max_steps > 0 and s.steps >= s.max_steps)"
    yield "a.reward[i] = reward"
    yield "if not isfinite(a.reward[i]):"
    yield "    return fail(a.report, BAD_REWARD, i, 0, 0)"
    yield "a.done[i] = ended"
    yield "a.truncated[i] = ended and not terminated"
    yield "a.kept[i] = False"
    for name in layout.env.metrics:
        yield f"a.metric_{name}[i] = s.{name}"
    for player, field in enumerate(layout.env.player_rewards):
        yield f"earned = np.float64(s.{field})"
        yield f"a.player_rewards[i, {player}] = earned if earned == earned else 0.0"
        yield f"if not isfinite(a.player_rewards[i, {player}]):"
        yield "    return fail(a.report, BAD_REWARD, i, 0, 0)"
    yield "if ended:"
    yield "    a.ended_ids[a.report[ENDED]] = i"
    yield "    a.report[ENDED] += 1"
    for name in layout.env.info:
        yield f"    a.info_{name}[i] = s.{name}"
    yield "    if a.settings[AUTORESET] == 1:"
    yield "        if a.settings[KEEP_ALL] == 1 or (a.settings[KEEP_TRUNCATED] == 1 and not terminated):"
    yield "            a.final_record[i] = a.record[i]"
    yield "            a.kept[i] = True"
    yield "            a.kept_ids[a.report[KEPT]] = i"
    yield "            a.report[KEPT] += 1"
    yield "        fresh = True"
    yield "    else:"
    yield "        drop = True"


def _plan(layout: Layout) -> Iterator[str]:
    yield "def plan(a, lo, hi):"
    yield '    """Compute where the rows of ids[lo:hi] go in the packed arrays."""'
    totals = [name if isinstance(name, str) else f"{name[0]}_pairs" for name in layout.columns]
    for column, total in enumerate(totals):
        yield f"    to_{total} = a.offsets[{column}, lo]"
    yield "    for j in range(lo, hi):"
    yield "        n = a.counts[a.ids[j]]"
    for column, (name, total) in enumerate(zip(layout.columns, totals, strict=True)):
        rows = f"n.{name}" if isinstance(name, str) else f"n.{name[0]} * n.{name[1]}"
        yield f"        to_{total} += {rows}"
        yield f"        a.offsets[{column}, j + 1] = to_{total}"


def _copy(layout: Layout) -> Iterator[str]:
    columns = list(layout.columns)
    yield "def copy(a, lo, hi):"
    yield '    """Copy the rows of ids[lo:hi] to the packed arrays, and check the features and masks among them."""'
    for number, slot in enumerate(layout.packed):
        counts = [
            str(columns.index(name)) for name in ((slot.rows,) if isinstance(slot.rows, str) else slot.rows or ())
        ]
        rows = ", ".join(["a.ids", "a.lengths", *counts])
        to = f"a.offsets[{columns.index(slot.rows)}], a.{slot.name}, a.packed_{slot.name}"  # type: ignore[arg-type]
        call = f"{slot.copy}({', '.join([rows, to, *slot.options])}, lo, hi)"
        if slot.copy == "copy_numbers":
            yield f"    {call}"
            continue
        checks = [f"are_whole({rows}, a.{slot.name}, {first}, {end}, {num}, lo, hi)" for first, end, num in slot.whole]
        for check in (call, *checks):
            yield f"    if not {check}:"
            yield f"        return fail(a.report, BAD_ROW, lo, {number}, 0)"
    yield "    return True"


def _work(layout: Layout) -> Iterator[str]:
    num_columns = len(layout.columns)
    yield "def work(a, todo, lo, hi):"
    yield '    """Run the phases `todo` on ids[lo:hi], CHUNK environments at a time."""'
    yield "    if todo & CHECK:"
    yield "        if not check(a, lo, hi):"
    yield "            return"
    yield "    if todo & PLAN:"
    yield f"        for c in range({num_columns}):"
    yield "            a.offsets[c, 0] = 0"
    yield "    copying = todo & COPY != 0"
    yield "    for start in range(lo, hi, CHUNK):"
    yield "        end = min(start + CHUNK, hi)"
    yield "        if todo & (RESET | STEP | OBSERVE):"
    yield "            if not advance(a, todo, start, end):"
    yield "                return"
    yield "        if todo & PLAN:"
    yield "            plan(a, start, end)"
    yield "        if copying:"
    yield f"            for c in range({num_columns}):"
    yield "                copying &= a.offsets[c, end] <= a.rooms[c]"  # is there room?
    yield "        if copying:"
    yield "            copying = copy(a, start, end)"
    yield "    a.report[COPIED] = copying"


def _entry(layout: Layout) -> Iterator[str]:
    arrays = bound_arrays(layout)
    yield "if JIT:"
    yield "    check, show, advance = inline(check), inline(show), inline(advance)"
    yield "    plan, copy, work = inline(plan), inline(copy), inline(work)"
    yield ""
    names = [array.name for array in arrays if array.argument]
    forms = ["int64[::1]"]  # ids, then choices and starts of each action
    for action in layout.actions:
        forms += ["int64[:, ::1]" if action.space.discrete else "float64[:, ::1]", "int64[::1]"]
    signature = [f"types.{form}" for form in ["int64"] * 4 + forms]
    yield f"    @entry(types.void({', '.join(signature)}), nogil=True, **OPTIONS)"
    yield f"    def run({', '.join(['address', 'todo', 'lo', 'hi', *names])}):"
    yield f"        table = carray(as_pointer(address), ({FIRST_ARRAY + len(arrays)},), np.int64)"
    yield f"        num_slots, stride, block = table[{NUM_SLOTS}], table[{STRIDE}], table[{BLOCK}]"
    yield "        a = Arrays("
    for place, array in enumerate(arrays, FIRST_ARRAY):
        if array.argument:
            yield f"            carray(as_pointer({array.name}.ctypes.data), ({array.shape}), {array.dtype}),"
        else:
            address = f"block + table[{place}]" if array.packed else f"table[{place}]"
            yield f"            carray(as_pointer({address}), ({array.shape}), {array.dtype}),  # {array.name}"
    yield "        )"
    yield "        work(a, todo, lo, hi)"
