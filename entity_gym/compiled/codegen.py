"""Writes the loops around an environment's functions as Python source: what `build` compiles, or runs as it is.

The generated code works on `b`, a named tuple of arrays (`buffers`): the slots, one table of control values and the arrays
of the present call. It has no names of its own to keep: every call finds everything behind one address.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import isfinite
from typing import NamedTuple

from entity_gym.compiled.declare import safe_name
from entity_gym.compiled.layout import ActionPlan, Layout, SlotArray, Stream


class Mode:
    """What one call of the generated `run` does with the environments `ids[lo:hi]`. Numbers: an enum takes longer to look up."""

    RESET = 0
    STEP = 1
    OBSERVE = 2  # show the state again; nothing changes
    CHECK = 3  # are the actions ones that were offered?
    PLAN = 4  # where each slot's rows go in the packed arrays
    COPY = 5  # and copy them there


class Fault:
    """Numbers: why a call stopped, in `b.err[0]`; `b.err[1:4]` are the slot and two numbers that say more."""

    NONE = 0
    COUNT = 1  # which count, its value
    REWARD = 3
    INDEX = 4  # which action, the value
    ACTION = 5  # which action
    FEATURE = 6  # which stream; in one of `ids[slot:]`, and that is for Python to find
    MASK = 7  # the same


class Buffer(NamedTuple):
    """An array of `b`: `dtype` is an expression, `shape` too, and may use `N` slots."""

    name: str
    dtype: str
    shape: str


def control_index(name: str) -> int:
    """The place in `b.cfg` of a switch: "autoreset", "keep_truncated", "keep_all" or "drop_actions"."""
    return ("autoreset", "keep_truncated", "keep_all", "drop_actions").index(name)


def pair_actions(layout: Layout) -> list[ActionPlan]:
    """The actions whose masks are over pairs; each adds a row to `b.off`, after those of the counts."""
    return [action for action in layout.actions if action.selects and action.has_mask]


def pending_parameters(layout: Layout) -> tuple[str, ...]:
    """Everything that may be set for the next episode: `b.p_<name>`, which counts where `b.pending` is set."""
    return ("max_steps", *layout.parameters)


def buffers(layout: Layout) -> list[Buffer]:
    """Every array of `b`, in the order of the pointer table."""
    many = "1 << 40"  # arrays that the caller has sized
    result = [
        Buffer("S", "RECORD", "N"),
        Buffer("FS", "RECORD", "N"),
        Buffer("N", "COUNTS", "N"),
        Buffer("L", "np.int64", f"N, {len(layout.counts.names or ())}"),
        Buffer("cfg", "np.int64", "4"),
        Buffer("err", "np.int64", "4"),
        Buffer("reward", "np.float32", "N"),
        Buffer("done", "np.bool_", "N"),
        Buffer("truncated", "np.bool_", "N"),
        Buffer("elapsed", "np.int64", "N"),
        Buffer("fin", "np.bool_", "N"),
        Buffer("ids", "np.int64", "num_ids"),
        Buffer("off", "np.int64", f"{len(layout.counts.names or ()) + len(pair_actions(layout))}, num_ids + 1"),
    ]
    for slot in layout.slots:
        shape = ", ".join(["N", *map(str, slot.shape)])
        result.append(Buffer(slot.name, f"np.{slot.dtype.name}" if slot.dtype.name != "bool" else "np.bool_", shape))
    assert layout.record.fields is not None
    for name, field in layout.info.items():
        dtype = layout.record.fields[field][0].name
        result.append(Buffer(f"i_{safe_name(name)}", "np.bool_" if dtype == "bool" else f"np.{dtype}", "N"))
    result += [Buffer(f"q_{safe_name(name)}", "np.float64", "N") for name in layout.metrics]  # NaN, whatever the field
    if layout.player_rewards:
        result.append(Buffer("pr", "np.float32", f"N, {len(layout.player_rewards)}"))
    result.append(Buffer("pending", "np.bool_", "N"))
    for name in pending_parameters(layout):
        dtype = layout.record.fields[name][0].name
        result.append(Buffer(f"p_{name}", "np.bool_" if dtype == "bool" else f"np.{dtype}", "N"))
    for action in layout.actions:
        if action.bounds:
            result.append(Buffer(f"a_{action.attribute}", "np.float32", f"{many}, {len(action.bounds)}"))
        else:
            result.append(Buffer(f"a_{action.attribute}", "np.int64", many))
        result.append(Buffer(f"o_{action.attribute}", "np.int64", "num_ids + 1"))
    for stream in layout.streams:
        dtype = "np.bool_" if stream.dtype.name == "bool" else f"np.{stream.dtype.name}"
        result.append(Buffer(f"out_{stream.slot}", dtype, ", ".join([many, *map(str, stream.row)])))
    return result


def generate(layout: Layout) -> str:
    """The source of the module around `layout`'s environment."""
    parts = [
        _head(layout),
        _frame(layout),
        _advance(layout),
        _check(layout),
        _plan(layout),
        _copy(layout),
        _entry(layout),
    ]
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def _tuple(name: str, fields: list[str]) -> str:
    return f"{name} = namedtuple({name!r}, {fields!r})"


def _views(layout: Layout) -> dict[str, list[str]]:
    """Action -> the parts of its `obs.<Action>`."""
    views = {}
    for action in layout.actions:
        parts = [] if action.is_global or action.actor_types is not None else ["actors"]
        if action.selects and action.actee_types is None:
            parts.append("actees")
        if action.masked:
            parts.append("mask")
        views[action.attribute] = parts
    return views


def _head(layout: Layout) -> Iterator[str]:
    yield f'"""The loops around {layout.name}; generated, and made anew whenever anything that it depends on changes."""'
    yield "from collections import namedtuple"
    yield "from math import isfinite"
    yield "import numpy as np"
    yield "from numba import carray, njit, types"
    yield "from entity_gym.compiled.pointer import as_pointer"
    yield "# given by build.py: ENV, RECORD, COUNTS, JIT, OPTIONS, INNER"
    yield "if JIT:"
    yield "    reset, step, observe = (njit(forceinline=True, **INNER)(f) for f in (ENV.reset, ENV.step, ENV.observe))"
    yield "else:"
    yield "    reset, step, observe = ENV.reset, ENV.step, ENV.observe"
    yield _tuple("Buffers", [buffer.name for buffer in buffers(layout)])
    for attribute, parts in _views(layout).items():
        if parts:
            yield _tuple(f"Offer_{attribute}", parts)
    hideable = [name for name, entity in layout.entities.items() if entity.hideable]
    arrays = [slot.name[2:] for slot in layout.slots if slot.name.startswith("x_")]
    if hideable:
        yield _tuple("Visible", hideable)
    if arrays:
        yield _tuple("Arrays", arrays)
    yield _tuple("Obs", [name for name, _ in _obs_fields(layout)])
    if layout.entities:
        yield _tuple("First", list(layout.entities))
    yield _tuple("Act", [*(["first"] if layout.entities else []), *(a.attribute for a in layout.actions)])
    yield "def fail(b, fault, i, what, value):"
    yield "    b.err[0] = fault; b.err[1] = i; b.err[2] = what; b.err[3] = value"
    yield "    return False"
    yield "if JIT:"
    yield "    fail = njit(**INNER)(fail)"


def _obs_fields(layout: Layout) -> list[tuple[str, str]]:
    """The fields of `obs` and what they are for slot `i`."""
    fields = [("n", "n")]
    fields += [(name, f"b.f_{name}[i]") for name, entity in layout.entities.items() if entity.features]
    if layout.global_features:
        fields.append(("global_features", "b.g[i]"))
    slots = {"actors": "w", "actees": "t", "mask": "m"}
    for name, parts in _views(layout).items():
        if parts:
            fields.append((name, f"Offer_{name}({', '.join(f'b.{slots[part]}_{name}[i]' for part in parts)})"))
    hideable = [name for name, entity in layout.entities.items() if entity.hideable]
    if hideable:
        fields.append(("visible", f"Visible({', '.join(f'b.v_{name}[i]' for name in hideable)})"))
    arrays = [slot for slot in layout.slots if slot.name.startswith("x_")]
    if arrays:  # a single number is an array of one: written as obs.arrays.name[0]
        fields.append(
            ("arrays", f"Arrays({', '.join(f'b.{s.name}[i]' if s.shape else f'b.{s.name}[i:i + 1]' for s in arrays)})")
        )
    return fields


def _frame(layout: Layout) -> Iterator[str]:
    """Show one environment in its slot, fill in declared actors, and check what it wrote."""
    names = list(layout.counts.names or ())
    yield "def frame(b, i, s):"
    yield "    n = b.N[i]"
    for name in names:
        yield f"    n.{name} = {_count_before(layout, name)}"
    for slot in layout.slots:
        if slot.name[:2] in ("m_", "v_"):
            yield from _set_true(slot)
    yield f"    observe(s, Obs({', '.join(value for _, value in _obs_fields(layout))}))"
    total = "0"
    for name, entity in layout.entities.items():
        yield f"    if n.{name} < 0 or n.{name} > {entity.max}:"
        yield f"        return fail(b, {Fault.COUNT:d}, i, {names.index(name)}, n.{name})"
        yield f"    first_{name} = {total}"
        total = f"first_{name} + n.{name}"
    yield f"    total = {total}"
    yield f"    if n.players < 0 or n.players > {layout.max_num_players}:"
    yield f"        return fail(b, {Fault.COUNT:d}, i, {names.index('players')}, n.players)"
    for index, action in enumerate(layout.actions):
        name = action.attribute
        if action.is_global:
            yield from _fill_global(action, names.index(name))
            continue
        yield from _fill(f"n.{name}", f"b.w_{name}", action.actor_types, action.max_actors, names.index(name), index)
        if action.selects:
            count = f"{name}_actees"
            yield f"    if n.{name} == 0:"
            yield f"        n.{count} = 0"
            yield from _fill(
                f"n.{count}", f"b.t_{name}", action.actee_types, action.max_actees, names.index(count), index
            )
        if action.exclude_self:
            yield f"    for k in range(n.{name}):"
            yield f"        for e in range(n.{name}_actees):"
            yield f"            if b.w_{name}[i, k] == b.t_{name}[i, e]:"
            yield f"                b.m_{name}[i, k, e] = False"
    yield "    return True"
    yield "if JIT:"
    yield "    frame = njit(forceinline=True, **INNER)(frame)"


def _set_true(slot: SlotArray) -> Iterator[str]:
    yield from _loops("    ", slot.shape, lambda at: f"b.{slot.name}[i, {at}] = True")


def _count_before(layout: Layout, name: str) -> int:
    """What `obs.n.<name>` is before `observe`: -1 stands for all that is declared."""
    for action in layout.actions:
        if name == action.attribute:
            return -1 if action.is_global or action.actor_types is not None else 0
        if name == f"{action.attribute}_actees":
            return -1 if action.actee_types is not None else 0
    return 0


def _fill_global(action: ActionPlan, column: int) -> Iterator[str]:
    yield f"    if n.{action.attribute} != 0 and n.{action.attribute} != -1:"
    yield f"        return fail(b, {Fault.COUNT:d}, i, {column}, n.{action.attribute})"
    yield f"    n.{action.attribute} = -n.{action.attribute}"
    yield f"    b.w_{action.attribute}[i, 0] = total"


def _fill(
    count: str, slot: str, types: tuple[str, ...] | None, capacity: int, column: int, action: int
) -> Iterator[str]:
    """Fill in declared actors or actees, or check those that `observe` wrote."""
    if types is not None:
        yield f"    if {count} == -1:"
        yield "        k = 0"
        for type_ in types:
            yield f"        for e in range(n.{type_}):"
            yield f"            {slot}[i, k] = first_{type_} + e"
            yield "            k += 1"
        yield f"        {count} = k"
        yield f"    elif {count} != 0:"
        yield f"        return fail(b, {Fault.COUNT:d}, i, {column}, {count})"
        return
    yield f"    if {count} < 0 or {count} > {capacity}:"
    yield f"        return fail(b, {Fault.COUNT:d}, i, {column}, {count})"
    yield f"    for k in range({count}):"
    yield f"        if {slot}[i, k] < 0 or {slot}[i, k] >= total:"
    yield f"            return fail(b, {Fault.INDEX:d}, i, {action}, {slot}[i, k])"


def _advance(layout: Layout) -> Iterator[str]:
    """Reset, step or observe."""
    cfg = control_index
    yield "def advance(b, mode, lo, hi):"
    yield "    for j in range(lo, hi):"
    yield "        i = b.ids[j]"
    yield "        b.err[1] = i  # where an exception came from"
    yield "        s = b.S[i]"
    yield f"        fresh = mode == {Mode.RESET:d}"
    yield f"        drop = b.cfg[{cfg('drop_actions')}] == 1"
    yield "        if fresh:"
    yield "            b.reward[i] = 0.0; b.done[i] = False; b.truncated[i] = False; b.fin[i] = False"
    for name in layout.metrics:
        yield f"            b.q_{safe_name(name)}[i] = np.nan"
    for player in range(len(layout.player_rewards)):
        yield f"            b.pr[i, {player}] = 0.0"
    yield from _step(layout)
    yield "        if fresh:"
    yield "            if b.pending[i]:"
    yield "                b.pending[i] = False"
    for name in pending_parameters(layout):
        yield f"                s.{name} = b.p_{name}[i]"
    yield "            s.steps = 0"
    yield "            reset(s)"
    yield "        b.elapsed[i] = s.steps"
    yield "        if not frame(b, i, s):"
    yield "            return"
    yield "        if drop:"
    yield "            n = b.N[i]"
    for action in layout.actions:
        yield f"            n.{action.attribute} = 0"
        if action.selects:
            yield f"            n.{action.attribute}_actees = 0"
    if not layout.actions:
        yield "            pass"


def _step(layout: Layout) -> Iterator[str]:
    """The part of `advance` that steps: sets `fresh` where the next episode begins, `drop` where none does."""
    cfg = control_index
    yield f"        if mode == {Mode.STEP:d}:"
    arguments = []
    if layout.entities:
        yield "            n = b.N[i]"
        total = "0"
        for name in layout.entities:
            yield f"            first_{name} = {total}"
            total = f"first_{name} + n.{name}"
        arguments.append(f"First({', '.join(f'first_{name}' for name in layout.entities)})")
    for action in layout.actions:
        name = action.attribute
        if action.bounds:
            yield f"            for k in range(b.o_{name}[j + 1] - b.o_{name}[j]):"
            yield f"                for f in range({len(action.bounds)}):"
            yield f"                    b.d_{name}[i, k, f] = b.a_{name}[b.o_{name}[j] + k, f]"
            arguments.append(f"b.d_{name}[i, :b.o_{name}[j + 1] - b.o_{name}[j]]")
            continue
        arguments.append(f"b.a_{name}[b.o_{name}[j]:b.o_{name}[j + 1]]")
    yield "            s.steps = s.steps + 1"
    yield f"            reward, terminated, cut = step(s, Act({', '.join(arguments)}))"
    yield "            ended = terminated or cut or (s.max_steps > 0 and s.steps >= s.max_steps)"
    yield "            b.reward[i] = reward"
    yield "            if not isfinite(b.reward[i]):"
    yield f"                fail(b, {Fault.REWARD:d}, i, 0, 0)"
    yield "                return"
    yield "            b.done[i] = ended"
    yield "            b.truncated[i] = ended and not terminated"
    yield "            b.fin[i] = False"
    for name, field in layout.metrics.items():
        yield f"            b.q_{safe_name(name)}[i] = s.{field}"
    for player, field in enumerate(layout.player_rewards):
        yield f"            earned = np.float64(s.{field})"
        yield f"            b.pr[i, {player}] = earned if earned == earned else 0.0"
        yield f"            if not isfinite(b.pr[i, {player}]):"
        yield f"                fail(b, {Fault.REWARD:d}, i, 0, 0)"
        yield "                return"
    yield "            if ended:"
    for name, field in layout.info.items():
        yield f"                b.i_{safe_name(name)}[i] = s.{field}"
    yield f"                if b.cfg[{cfg('autoreset')}] == 1:"
    yield f"                    if b.cfg[{cfg('keep_all')}] == 1 or (b.cfg[{cfg('keep_truncated')}] == 1 and not terminated):"
    yield "                        b.FS[i] = b.S[i]; b.fin[i] = True"
    yield "                    fresh = True"
    yield "                else:"
    yield "                    drop = True"


def _check(layout: Layout) -> Iterator[str]:
    """Whether the actions are ones that the slots offer."""
    yield "def check(b, lo, hi):"
    yield "    for j in range(lo, hi):"
    yield "        i = b.ids[j]"
    yield "        n = b.N[i]"
    for index, action in enumerate(layout.actions):
        name = action.attribute
        failed = f"fail(b, {Fault.ACTION:d}, i, {index}, 0)"
        yield f"        start = b.o_{name}[j]"
        yield f"        if b.o_{name}[j + 1] - start != n.{name}:"
        yield f"            {failed}"
        yield "            return"
        yield f"        for k in range(n.{name}):"
        if action.bounds:
            for column, (low, high) in enumerate(action.bounds):
                yield f"            x = b.a_{name}[start + k, {column}]"
                below, above = f" or x < {low!r}" * isfinite(low), f" or x > {high!r}" * isfinite(high)
                yield f"            if not isfinite(x){below}{above}:"
                yield f"                {failed}"
                yield "                return"
            continue
        yield f"            v = b.a_{name}[start + k]"
        if action.num_choices:
            closed = f" or not b.m_{name}[i, k, v]" if action.has_mask else ""
            yield f"            if v < 0 or v >= {action.num_choices}{closed}:"
        else:
            yield from _is_offered(action)
            yield "            if not known:"
        yield f"                {failed}"
        yield "                return"


def _is_offered(action: ActionPlan) -> Iterator[str]:
    """Set `known`: whether the entity `v` is one that actor `k` may select."""
    name = action.attribute
    yield f"            known = v == -1{'' if action.nobody else f' and n.{name}_actees == 0'}"
    yield f"            for e in range(n.{name}_actees):"
    yield f"                if b.t_{name}[i, e] == v:"
    yield f"                    known = {f'b.m_{name}[i, k, e]' if action.has_mask else 'True'}"
    if action.can_close and not action.nobody:  # nobody, if all are closed
        yield "            if v == -1:"
        yield "                known = True"
        yield f"                for e in range(n.{name}_actees):"
        yield f"                    known &= not b.m_{name}[i, k, e]"


def _plan(layout: Layout) -> Iterator[str]:
    """Where the rows of each slot go in the packed arrays."""
    names = list(layout.counts.names or ())
    yield "def plan(b, num_ids):"
    yield f"    for c in range({len(names) + len(pair_actions(layout))}):"
    yield "        b.off[c, 0] = 0"
    yield "    for j in range(num_ids):"
    yield "        i = b.ids[j]"
    yield f"        for c in range({len(names)}):"
    yield "            b.off[c, j + 1] = b.off[c, j] + b.L[i, c]"
    for index, action in enumerate(pair_actions(layout), len(names)):
        actors, actees = names.index(action.attribute), names.index(f"{action.attribute}_actees")
        yield f"        b.off[{index}, j + 1] = b.off[{index}, j] + b.L[i, {actors}] * b.L[i, {actees}]"


def _loops(indent: str, shape: tuple[int, ...], statement: Callable[[str], str]) -> Iterator[str]:
    """Nested loops over an array of `shape` around `statement(indices)`: faster than assigning slices."""
    for depth, size in enumerate(shape):
        yield f"{indent}{'    ' * depth}for d{depth} in range({size}):"
    yield f"{indent}{'    ' * len(shape)}{statement(', '.join(f'd{depth}' for depth in range(len(shape))))}"


def _copy(layout: Layout) -> Iterator[str]:
    """Copy the rows there, and check that features are what they may be and that nobody's choices are all closed.

    One loop for each stream: the compiler makes more of several simple loops than of one that does everything.
    """
    names = [*(layout.counts.names or ()), *(f"{action.attribute}_pairs" for action in pair_actions(layout))]
    yield "def copy(b, lo, hi):"
    for index, stream in enumerate(layout.streams):
        name, slot, out = stream.slot, f"b.{stream.slot}", f"b.out_{stream.slot}"
        checked = stream.slot[:2] in ("f_", "m_") or stream.slot == "g"
        if checked:
            yield "    fine = True  # no `and` below: this way the loops have no branches"
        if stream.rows:
            column = names.index(stream.rows)
            yield f"    some = b.off[{column}, hi] > b.off[{column}, lo]"
        yield f"    for j in range(lo, {'hi if some else lo' if stream.rows else 'hi'}):"
        yield "        i = b.ids[j]"
        if stream.rows:
            yield "        n = b.N[i]"
            yield f"        to = b.off[{column}, j]"
        if stream.rows.endswith("_pairs"):
            action = next(action for action in pair_actions(layout) if action.attribute == name[2:])
            yield from _copy_pairs(action, slot, out)
        elif name.startswith("m_"):
            yield from _copy_masks(stream, slot, out)
        elif name.startswith("f_") or name == "g":
            yield from _copy_numbers(stream, slot, out)
        else:
            yield from _copy_rows(stream, slot, out)
        if checked:
            fault = Fault.MASK if name.startswith("m_") else Fault.FEATURE
            yield "    if not fine:"
            yield f"        fail(b, {fault}, lo, {index}, 0)"
            yield "        return"


def _copy_rows(stream: Stream, slot: str, out: str) -> Iterator[str]:
    """Rows as they are."""
    is_array = stream.slot.startswith("x_")  # of the others, a row is one number
    yield f"        for k in range(n.{stream.rows}):"
    if is_array:
        yield from _loops(
            "            ", stream.row, lambda at: f"{out}[{_at('to + k', at)}] = {slot}[{_at('i, k', at)}]"
        )
    else:
        yield f"            {out}[to + k, 0] = {slot}[i, k]"


def _at(first: str, rest: str) -> str:
    return f"{first}, {rest}" if rest else first


def _copy_numbers(stream: Stream, slot: str, out: str) -> Iterator[str]:
    """Features, which must be finite, and some of them whole numbers within bounds."""
    source, target = ("i, k, f", "to + k, f") if stream.rows else ("i, f", "j, f")
    rows = f"n.{stream.rows}" if stream.rows else "1"
    yield f"        for k in range({rows}):"
    yield f"            for f in range({stream.row[0]}):"
    yield f"                x = {slot}[{source}]"
    yield f"                {out}[{target}] = x"
    yield "                fine &= isfinite(x)"
    for first, end, num in stream.whole:  # loops of their own, so that the one above stays as simple as it is
        yield f"        for k in range({rows}):"
        yield f"            for f in range({first}, {end}):"
        yield f"                x = {slot}[{source}]"
        yield f"                fine &= (x >= 0) & (x < {num}) & (x == np.floor(x))"


def _copy_masks(stream: Stream, slot: str, out: str) -> Iterator[str]:
    """The mask of choices, of which every actor needs an open one."""
    yield f"        for k in range(n.{stream.rows}):"
    yield "            any_open = False"
    yield f"            for f in range({stream.row[0]}):"
    yield f"                {out}[to + k, f] = {slot}[i, k, f]"
    yield f"                any_open |= {slot}[i, k, f]"
    yield "            fine &= any_open"


def _copy_pairs(action: ActionPlan, slot: str, out: str) -> Iterator[str]:
    """The pair mask of select-entity: actor by actor, only as many actees as there are."""
    name = action.attribute
    yield f"        for k in range(n.{name}):"
    yield f"            any_open = {'True' if action.can_close else f'n.{name}_actees == 0'}"
    yield f"            for e in range(n.{name}_actees):"
    yield f"                {out}[to + k * n.{name}_actees + e, 0] = {slot}[i, k, e]"
    yield f"                any_open |= {slot}[i, k, e]"
    yield "            fine &= any_open"


def _entry(layout: Layout) -> Iterator[str]:
    """One entry for everything: it compiles once, and its arguments are an address and four numbers."""
    yield "def work(b, mode, lo, hi):"
    yield f"    if mode <= {Mode.OBSERVE:d}:"
    yield "        advance(b, mode, lo, hi)"
    yield f"    elif mode == {Mode.CHECK:d}:"
    yield "        check(b, lo, hi)"
    yield f"    elif mode == {Mode.PLAN:d}:"
    yield "        plan(b, hi)"
    yield "    else:"
    yield "        copy(b, lo, hi)"
    yield "if JIT:"
    yield "    inline = njit(forceinline=True, **INNER)  # the sizes of arrays are then constants"
    yield "    advance, check, plan, copy = inline(advance), inline(check), inline(plan), inline(copy)"
    yield "    work = inline(work)"
    arrays = ["int64[:, ::1]", "int64[::1]"]
    if any(action.bounds for action in layout.actions):
        arrays.append("float32[:, ::1]")
    yield f"    @njit([{', '.join(f'types.int64(types.{array})' for array in arrays)}], cache=True)"
    yield "    def address_of(array):"
    yield "        return array.ctypes.data"
    yield "    @njit(types.void(types.int64, types.int64, types.int64, types.int64), nogil=True, cache=True, **OPTIONS)"
    yield "    def run(address, mode, lo, hi):"
    all_buffers = buffers(layout)
    yield f"        table = carray(as_pointer(address), ({len(all_buffers) + 2},), np.int64)"
    yield "        N, num_ids = table[0], table[1]"
    yield "        work(Buffers("
    for index, buffer in enumerate(all_buffers, 2):
        yield f"            carray(as_pointer(table[{index}]), ({buffer.shape},), {buffer.dtype}),"
    yield "        ), mode, lo, hi)"
