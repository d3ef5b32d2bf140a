"""Compiled environments side by side: what a pool steps, and how their observations become a batch.

The observation of every environment lies in its slot of preallocated arrays. A call of the compiled loops steps some
environments and copies what they show, packed, into one block of memory; the batch is made of arrays over that block.
"""

from __future__ import annotations

import copy
import functools
import math
import sys
from collections import UserDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions.chains import check_open_after
from entity_gym.batch.batching import check_features
from entity_gym.batch.ragged import RaggedBuffer
from entity_gym.batch.vec_obs import INSTANCE, PLAYER_REWARD, TARGET, Metric, VecAction, VecActionMask, VecObs
from entity_gym.compiled import runtime
from entity_gym.compiled.build import Program, build
from entity_gym.compiled.declare import Description
from entity_gym.compiled.generate import BLOCK, FIRST_ARRAY, NUM_SLOTS, STRIDE
from entity_gym.compiled.layout import Kind, Layout, Slot
from entity_gym.compiled.random import first_random_states
from entity_gym.compiled.record import Guarded, Record, Records
from entity_gym.compiled.runtime import CHECK, COPY, OBSERVE, PLAN, RESET, STEP
from entity_gym.errors import nearest
from entity_gym.pools.slots import EnvIds, EnvSlots, Run, SlotOptions, check_state
from entity_gym.spaces import GLOBAL_ENTITY

_WORTH_SPLITTING = 4096  # slots; copying fewer takes less time than waking a thread

_ALIGNMENT = 64  # bytes, a cache line
_MOST_BLOCKS = 8

#: Slots that `observe` writes; the last observations of episodes have their own.
_OFFERED = (Kind.ACTORS, Kind.ACTEES, Kind.MASK, Kind.MASK_AFTER)
_SHOWN = tuple(kind for kind in Kind if kind not in (Kind.OUTCOME, Kind.INFO, Kind.METRIC, Kind.PENDING))


class Block(NamedTuple):
    """One piece of memory, divided into arrays.

    Attributes:
        memory: all of it; views of `arrays` refer to it, and not to the arrays that they were taken from.
        address: of the first byte. `ndarray.ctypes.data` takes as long as dozens of steps, so it is stored.
        arrays: each as large as it was asked for.
    """

    memory: NDArray[np.uint8]
    address: int
    arrays: list[NDArray[Any]]


class Recycler:
    """Hands out blocks of one form: that of an earlier batch if nobody has the batch any more.

    What a pool returns must stay as it is for as long as somebody has it. Fresh memory every time would do, but the operating
    system hands it out page by page, which costs more than the steps themselves.

    Args:
        arrays: shape and dtype of each array.

    Attributes:
        starts: where in a block each array begins, in bytes.
        size: bytes of a block.
    """

    def __init__(self, arrays: Sequence[tuple[tuple[int, ...], np.dtype[Any]]]) -> None:
        self.starts, self.size, self._arrays = [], 0, arrays
        for shape, dtype in arrays:
            self.starts.append(self.size)
            self.size += -(-math.prod(shape) * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
        self._blocks: list[tuple[Block, int]] = []  # with the number of references while it is free

    def take(self) -> Block:
        """A block that nothing else uses."""
        for block, references in self._blocks:
            if sys.getrefcount(block.memory) == references:
                return block
        memory: NDArray[np.uint8] = np.empty(self.size, dtype=np.uint8)
        parts = zip(self.starts, self._arrays, strict=True)
        arrays = [np.ndarray(shape, dtype, memory, start) for start, (shape, dtype) in parts]
        block = Block(memory, memory.ctypes.data, arrays)
        del memory
        if len(self._blocks) < _MOST_BLOCKS:  # somebody keeps many batches: then each has its own memory
            self._blocks.append((block, sys.getrefcount(block.memory)))
        return block


class _Caller:
    """Calls the compiled loops for one thread, with a table of the addresses of the slots; see `generate`.

    Attributes:
        report: (8,) int64, what the last call left behind; see `runtime`.
        ended_ids: (N,) int64; the first report[ENDED] are the environments whose episodes ended with the last call.
        kept_ids: (N,) int64; the first report[KEPT] are those of them whose last record was kept.
    """

    def __init__(self, program: Program, num_slots: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._program = program
        self.report = np.zeros(8, dtype=np.int64)
        self.ended_ids, self.kept_ids = np.zeros((2, num_slots), dtype=np.int64)
        own = {"report": self.report, "ended_ids": self.ended_ids, "kept_ids": self.kept_ids}
        self._arrays = {**arrays, **own}  # the table has their addresses: they must stay alive
        self.places = {array.name: place for place, array in enumerate(program.arrays, FIRST_ARRAY)}
        self.table = np.zeros(FIRST_ARRAY + len(program.arrays), dtype=np.int64)
        self.table[NUM_SLOTS] = num_slots
        for name, array in self._arrays.items():
            self.table[self.places[name]] = array.ctypes.data
        self._address = self.table.ctypes.data
        self._no_actions: list[NDArray[Any]] = []
        for action in program.layout.actions:
            numbers = np.empty((0, action.space.width), np.int64 if action.space.discrete else np.float64)
            self._no_actions += [numbers, np.zeros(1, dtype=np.int64)]

    def use(self, block: Block) -> None:
        """Pack into `block` from now on."""
        self.table[BLOCK] = block.address
        if self._program.run is None:
            names = (array.name for array in self._program.arrays if array.packed)
            self._arrays.update(zip(names, block.arrays, strict=True))

    def run(self, todo: int, ids: EnvIds, lo: int, hi: int, actions: Sequence[NDArray[Any]] | None = None) -> None:
        """Run the phases `todo` on `ids[lo:hi]`. `actions`: choices and starts of each action in turn, for all `ids`."""
        actions = self._no_actions if actions is None else actions
        ids = ids if ids.flags.carray else ids.copy()
        if self._program.run is not None:
            self._program.run(self._address, todo, lo, hi, ids, *actions)
            return
        spaces = [action.space for action in self._program.layout.actions]
        is_guarded = any(space.selects and not space.per_pair for space in spaces)  # -1 is nobody, and no index
        names = (array.name for array in self._program.arrays if array.argument)
        named = self._arrays | dict(zip(names, [ids, *actions], strict=True))
        arrays: list[Any] = []
        for bound in self._program.arrays:
            array = named.get(bound.name)
            if array is None:  # a packed one, without a block
                arrays.append(None)
            elif array.dtype.names:
                arrays.append(Records(array, is_guarded))
            else:
                array = array[:, 0] if bound.column else array
                arrays.append(array.view(Guarded) if is_guarded else array)
        with np.errstate(over="ignore"):  # random numbers wrap around on purpose
            self._program.module.work(self._program.module.Arrays(*arrays), todo, lo, hi)


class CompiledSlots(EnvSlots):
    """N environments of a `CompiledEnvironment`, stepped without the GIL.

    Args:
        env: the environment with its parameters, or its class.
        num_envs: N.
        options: see `SlotOptions`.

    Raises:
        CompileError: the source cannot be compiled.
    """

    one_by_one: ClassVar[bool] = False
    acts_at_once: ClassVar[bool] = True
    has_groups: ClassVar[bool] = True

    def __init__(
        self,
        env: Description | type[Description],
        num_envs: int,
        options: SlotOptions = SlotOptions(),
    ) -> None:
        self.env = env() if isinstance(env, type) else env
        self.program = build(type(self.env), compile=options.compile)
        self.layout = self.program.layout
        super().__init__(num_envs, options, self.env.obs_space(), self.env.action_space(), self.layout.name)
        self.slots = _new_arrays(self.layout, num_envs, self.layout.slots)
        settings = self.slots["settings"]
        settings[runtime.AUTORESET] = options.autoreset
        settings[runtime.HAS_GROUPS] = options.group_size > 1
        settings[runtime.KEEP_TRUNCATED] = options.final_observations == "truncated"
        settings[runtime.KEEP_ALL] = options.final_observations == "all"
        self._keeps_last = options.autoreset and options.final_observations != "none"
        for name in self.layout.env.metrics:
            self.slots[f"metric_{name}"].fill(np.nan)
        for name, value in self.env.values.items():
            self.slots["record"][name] = value
        #: Plays as ordinary Python before compiled code, which checks no bounds, runs with other parameters.
        self.play_first: Callable[[Description], None] | None = None
        self._played: list[Mapping[str, Any]] = [self.env.values]
        self._prepare()
        self.seed(0)

    def _prepare(self) -> None:
        """Set up the callers, and what packing needs to know of the layout."""
        layout, slots = self.layout, self.slots
        self._last: CompiledSlots | None = None  # shows last observations
        self._block: Block | None = None  # memory for the next batch
        self._everyone: EnvIds | None = None  # the last `ids` that were all slots in order
        self._rooms = np.zeros(len(layout.columns), dtype=np.int64)
        arrays = {**slots, "rooms": self._rooms}
        self._callers = [_Caller(self.program, self._num_envs, arrays) for _ in range(self.options.num_workers)]
        self._choices = [(action.name, np.dtype(action.space.dtype), action.space.width) for action in layout.actions]
        columns = layout.columns
        # Of each packed array the column of its number of rows, and the bytes of a row.
        self._packed = [
            (slot, columns.index(slot.rows), slot.dtype.itemsize * math.prod(slot.row))
            for slot in layout.packed
            if slot.rows is not None
        ]
        # The parts of a batch by name, each with its places among the packed arrays.
        names, place = layout.entity_names, {(slot.kind, slot.owner): k for k, slot in enumerate(layout.packed)}
        self._features = [(names[slot.owner], place[slot.kind, slot.owner]) for slot in layout.of_kind(Kind.FEATURES)]
        self._features += [
            (GLOBAL_ENTITY, place[slot.kind, slot.owner]) for slot in layout.of_kind(Kind.GLOBAL_FEATURES)
        ]
        self._visible = [(names[slot.owner], place[slot.kind, slot.owner]) for slot in layout.of_kind(Kind.VISIBLE)]
        self._ids = [(names[slot.owner], place[slot.kind, slot.owner]) for slot in layout.of_kind(Kind.IDS)]
        self._masks: list[tuple[Any, ...]] = [
            (action.name, *(place.get((kind, action.attribute), -1) for kind in _OFFERED)) for action in layout.actions
        ]
        # Whether earlier choices close later ones, which compiled code does not check.
        self._closes = any(action.space.allowed or action.mask_after for action in layout.actions)
        self._info = {name: slots[f"info_{name}"] for name in layout.env.info}
        self._metrics = {name: slots[f"metric_{name}"] for name in layout.env.metrics}
        self._make_room(0, [0] * len(columns))

    def seed(self, seed: int) -> None:
        group_size = self.options.group_size
        states = first_random_states(seed, len(self), self._reader.first_env, group_size)
        if group_size > 1:
            self.slots["coming"][:] = states
        else:
            self.slots["record"]["rng"] = states

    def configure(self, ids: EnvIds, env_info: Sequence[Mapping[str, Any]]) -> None:
        slots = self.slots
        checked = []  # all before any is set
        for i, info in zip(ids.tolist(), env_info, strict=True):
            waiting = slots["pending"][i]
            current = {
                name: (slots[f"pending_{name}"] if waiting else slots["record"][name])[i].item()
                for name in self.env.values
            }
            current["max_steps"] = current["max_steps"] or None
            try:
                checked.append(self.env.with_values({**current, **info}).values)
                self._play_first(checked[-1])
            except Exception as error:
                error.add_note(f"in env_info of {self.where(i)}")
                raise
        for name in self.env.values:
            slots[f"pending_{name}"][ids] = [values[name] for values in checked]
        slots["pending"][ids] = True

    def _play_first(self, values: Mapping[str, Any]) -> None:
        """Play with these parameters if one is beyond all that were played: rules may index an array with it."""
        if self.play_first and any(
            not min(played) <= values[name] <= max(played)
            for name in values
            for played in [[each[name] for each in self._played]]
        ):
            env = copy.copy(self.env)
            env.values = {**values}
            self.play_first(env)
            self._played.append(values)

    def reset(self, ids: EnvIds, worker: int = 0) -> None:
        self._run(self._callers[worker], RESET, ids)

    def observe(self, ids: EnvIds) -> None:
        """Observe the states of `ids` again, for example after they were written to."""
        self._run(self._callers[0], OBSERVE, ids)

    def check(self, actions: Mapping[str, VecAction], ids: EnvIds, shown: VecObs | None = None) -> None:
        arrays = self._arrays_of(actions, len(ids))
        if arrays is not None:
            report = self._run(self._callers[0], CHECK, ids, arrays)
            if report[runtime.FAULT] == runtime.NO_FAULT and not self._closes:
                return
        super().check(actions, ids, self._collect(ids))
        assert self._closes, f"actions {actions!r:.200} were refused, though they were offered"

    def step(self, actions: Mapping[str, VecAction], ids: EnvIds, lo: int, hi: int, worker: int = 0) -> None:
        arrays = self._arrays_of(actions, len(ids))
        assert arrays is not None, "the actions have not been checked"
        self._run(self._callers[worker], STEP, ids, arrays, lo, hi)

    def act(self, actions: Mapping[str, VecAction], ids: EnvIds) -> VecObs | None:
        arrays = self._arrays_of(actions, len(ids))
        if arrays is None or self._closes:
            return None
        block = self._take_block(len(ids))
        caller = self._callers[0]
        report = self._run(caller, CHECK | STEP | PLAN | COPY, ids, arrays)
        if report[runtime.FAULT] == runtime.BAD_ACTION:
            return None
        if report[runtime.COPIED]:
            obs = self._batch(ids, block, caller.ended_ids[: report[runtime.ENDED]])
        else:
            obs = self._collect(ids)
        if report[runtime.KEPT]:
            self._add_last_observations(obs, caller.kept_ids[: report[runtime.KEPT]].copy())
        return obs

    def collect(self, ids: EnvIds, run: Run) -> VecObs:
        obs = self._collect(ids, run)
        if self._keeps_last and obs.done.any():
            ended = ids[self.slots["kept"][ids]]
            if len(ended):
                self._add_last_observations(obs, ended)
        return obs

    def render(self, i: int) -> NDArray[np.uint8]:
        draw = type(self.env).render
        return super().render(i) if draw is None else draw(Record(self.slots["record"][i]))

    def draw(self, i: int) -> Mapping[str, Any] | None:
        hints = type(self.env).draw
        return hints(Record(self.slots["record"][i])) if callable(hints) else hints

    @property
    def can_save(self) -> bool:
        return True

    def state(self) -> dict[str, Any]:
        saved = self._saved()
        return {"num_envs": len(self)} | {
            part: {name: array.copy() for name, array in arrays.items()} for part, arrays in saved.items()
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        own = self._saved()
        check_state(state, len(self), "num_envs", *own)
        other = f"the saved state is of another version of {self.layout.name}"
        for part, arrays in own.items():
            if state[part].keys() != arrays.keys():
                raise ValueError(f"{other}: fields {sorted(state[part].keys() ^ arrays.keys())} differ")
            for name, values in arrays.items():
                saved = state[part][name]
                if saved.shape != values.shape:
                    raise ValueError(f"{other}: {name} was {saved.shape[1:]} and is {values.shape[1:]}")
        for part, arrays in own.items():
            for name, values in arrays.items():
                values[...] = state[part][name]
        self.slots["kept"][:] = False

    def _saved(self) -> dict[str, dict[str, NDArray[Any]]]:
        """Return the state that goes on in another pool: the records, and the last observation of each slot."""
        records = self.slots["record"]
        names = [each.name for each in self.layout.slots if each.name != "kept" and 0 not in each.shape]
        saved = {
            "fields": {name: records[name] for name in self.layout.record.names or ()},
            "slots": {name: self.slots[name] for name in ("lengths", *names)},
        }
        if self.options.group_size > 1:
            saved["seeds"] = {name: self.slots[name] for name in ("coming", "instance")}
        return saved

    # ---- calls of the compiled loops

    def _arrays_of(self, actions: Mapping[str, VecAction], num_ids: int) -> list[NDArray[Any]] | None:
        """Choices and starts of each action; None if they do not have the right form to be looked at."""
        if len(actions) != len(self._choices):
            return None
        arrays, num_starts = [], num_ids + 1
        for name, dtype, width in self._choices:
            given = actions.get(name)
            if not isinstance(given, RaggedBuffer):
                return None
            values, starts = given.values, given.offsets
            if len(starts) != num_starts or values.dtype != dtype or values.shape[1:] != (width,):
                return None
            if values.dtype == np.float32:  # compiled code and ordinary Python calculate alike in float64
                values = values.astype(np.float64)
            for array in (values, starts):
                arrays.append(array if array.flags.carray else array.copy(order="C"))  # else compiled code takes none
        return arrays

    def _run(
        self,
        caller: _Caller,
        todo: int,
        ids: EnvIds,
        actions: Sequence[NDArray[Any]] | None = None,
        lo: int = 0,
        hi: int | None = None,
    ) -> list[int]:
        """Run the phases `todo` on `ids[lo:hi]`, and raise what they raise; returns the report."""
        caller.report.fill(0)
        try:
            caller.run(todo, ids, lo, len(ids) if hi is None else hi, actions)
        except Exception as error:
            function = "reset" if todo & RESET else "act"
            error.add_note(f"raised by {self.where(int(caller.report[runtime.SLOT]))} in {function}()")
            if isinstance(error, AttributeError) and (names := getattr(error.obj, "_fields", ())):  # of `act` or `obs`
                declare = "masked, hideable, ids, max_actors or max_actees in the declaration add more"
                error.add_note(f"{nearest(error.name, names)}; {declare}")
            raise
        report: list[int] = caller.report.tolist()
        if report[runtime.FAULT] not in (runtime.NO_FAULT, runtime.BAD_ROW, runtime.BAD_ACTION):
            raise self._fault(report)
        return report

    def _fault(self, report: list[int]) -> ValueError:
        """The error for a fault of `reset`, `step` or `observe`."""
        i, what, value = (report[place] for place in (runtime.SLOT, runtime.WHAT, runtime.VALUE))
        layout, where = self.layout, self.where(i)
        if report[runtime.FAULT] == runtime.BAD_REWARD:
            return ValueError(
                f"{where}: step() returned the reward {self.slots['reward'][i]}; it must be a finite number"
            )
        if report[runtime.FAULT] == runtime.BAD_INDEX:
            total = sum(int(self.slots["counts"][i][name]) for name in layout.entities)
            return ValueError(
                f"{where}: action {layout.actions[what].name!r} names entity {value} as an actor or actee; the frame has "
                f"{total} entities"
            )
        count = (layout.counts.names or ())[what]
        if count in layout.entities:
            name, most = layout.entity_names[count], layout.entities[count].max
            return ValueError(f"{where}: observe() shows {value} entities of type {name!r}; allowed: 0 to max={most}")
        [(action, listed)] = [(each, of) for each in layout.actions for of in each.lists if of.count == count]
        allowed = f"allowed: 0 to max_{listed.role}={listed.max}"
        if listed.ranges is not None:
            allowed = f"the {listed.role} of {action.name!r} are declared, so it can only be set to 0"
        return ValueError(f"{where}: obs.n.{count} is {value}; {allowed}")

    def _refuse_rows(self, slot: Slot, ids: EnvIds) -> NoReturn:
        """Raise the ValueError for the first of `ids` with a bad feature, or an actor without a choice, in the array `slot`."""
        for i in ids.tolist():
            rows, counts = self.slots[slot.name][i], self.slots["counts"][i]
            if slot.kind is not Kind.MASK:
                name = GLOBAL_ENTITY if slot.kind is Kind.GLOBAL_FEATURES else self.layout.entity_names[slot.owner]
                shown: RaggedBuffer[Any] = RaggedBuffer.from_array(rows[None, : counts[slot.rows]])
                check_features(name, shown, np.array([i]), self._reader)
                continue
            [action] = [each for each in self.layout.actions if each.attribute == slot.owner]
            columns = counts[action.lists[1].count] if action.space.selects else rows.shape[1]
            closed = ~rows[: counts[action.attribute], :columns].any(axis=1)
            if columns and closed.any():
                raise ValueError(
                    f"{self.where(i)}: every one of the {columns} choices of actor {closed.argmax()} of action "
                    f"{action.name!r} is masked; leave one open, or leave the actor out"
                )
        raise AssertionError(f"nothing is wrong with {slot.name}")

    def _collect(self, ids: EnvIds, run: Run | None = None, todo: int = 0) -> VecObs:
        """Run the phases `todo`, and pack the observations of `ids`; `run` may split the copying.

        Raises:
            ValueError: for a bad feature, or an actor whose every choice is closed.
        """
        caller, num_ids = self._callers[0], len(ids)
        parts = max(1, self.options.num_workers - 1) if run is not None and num_ids >= _WORTH_SPLITTING else 1
        block = self._take_block(num_ids)
        report = self._run(caller, todo | PLAN if parts > 1 else todo | PLAN | COPY, ids)
        if not report[runtime.COPIED]:
            totals = block.arrays[0][:, num_ids]
            if (totals > self._rooms).any():
                self._make_room(num_ids, (totals + totals // 4).tolist())
                block = self._take_block(num_ids)
                self._run(caller, PLAN, ids)
            if run is not None and parts > 1:
                run(lambda part: caller.run(COPY, ids, num_ids * part // parts, num_ids * (part + 1) // parts), parts)
            if (
                parts == 1 or caller.report[runtime.FAULT]
            ):  # several parts may have written a report at once: look again
                report = self._run(caller, COPY, ids)
            if report[runtime.FAULT]:
                self._refuse_rows(self.layout.packed[report[runtime.WHAT]], ids)
        return self._batch(ids, block)

    def _add_last_observations(self, obs: VecObs, ids: EnvIds) -> None:
        """Set the last observations of the episodes that ended in `ids`.

        The same loops observe them in slots of their own, from the records of the ended episodes as they were.
        """
        if self._last is None:
            shown = _new_arrays(self.layout, len(self), self.layout.of_kind(*_SHOWN))
            shown["elapsed"] = np.zeros_like(self.slots["elapsed"])
            shown["settings"][runtime.DROP_ACTIONS] = True
            self._last = copy.copy(self)
            self._last.slots = {**self.slots, **shown, "record": self.slots["final_record"]}
            self._last._prepare()
        obs.final = self._last._collect(ids, todo=OBSERVE)

    # ---- batches

    def _take_block(self, num_ids: int) -> Block:
        """Memory for the next batch: the block that was taken last until a batch is made of it."""
        if num_ids >= self._stride:
            self._make_room(num_ids, self._rooms.tolist())
        if self._block is None:
            self._block = self._blocks.take()
            self._callers[0].use(self._block)
        return self._block

    def _make_room(self, num_ids: int, rooms: list[int]) -> None:
        """Divide blocks of memory anew: room for `num_ids` environments, and for `rooms` rows by column of the layout."""
        self._stride = max(num_ids, min(self._num_envs, num_ids + num_ids // 4)) + 1
        self._rooms[:] = rooms
        arrays: list[tuple[tuple[int, ...], np.dtype[Any]]] = [((len(rooms), self._stride), np.dtype(np.int64))]
        for slot, column, _ in self._packed:
            arrays.append(((rooms[column], *slot.row), slot.dtype))
        self._blocks, self._block = Recycler(arrays), None
        caller = self._callers[0]
        caller.table[STRIDE] = self._stride
        for slot, start in zip(self.layout.packed, self._blocks.starts[1:], strict=True):
            caller.table[caller.places[f"packed_{slot.name}"]] = start

    def _batch(self, ids: EnvIds, block: Block, ended: EnvIds | None = None) -> VecObs:
        """The batch over the rows that a call has left in `block`.

        `ended` are the environments whose episodes have just ended; None: those of `ids` that are done.
        """
        num_ids, slots = len(ids), self.slots
        self._block = None  # it is used up
        offsets, *packed = block.arrays
        offsets = offsets[:, : num_ids + 1]
        rows = list(offsets)
        totals = offsets[:, num_ids].tolist()
        make_buffer = RaggedBuffer.unchecked
        buffers: list[Any] = [
            make_buffer(array[: totals[column]], rows[column])
            for (_, column, _), array in zip(self._packed, packed, strict=True)
        ]
        # Keep less where there were many more rows at some time.
        if (spare := self._blocks.size - 16 * offsets.size - 65536) > 0:
            if spare > 4 * sum(totals[column] * row_bytes for _, column, row_bytes in self._packed):
                self._make_room(num_ids, [total + total // 4 for total in totals])

        features = {name: buffers[place] for name, place in self._features}
        masks = {}
        buffers.append(None)  # at -1, where an action has no actees or mask
        for name, actors, actees, mask, mask_after in self._masks:
            is_open = buffers[mask]
            if is_open is not None and not len(is_open.values):
                is_open = None
            masks[name] = VecActionMask(buffers[actors], buffers[actees], is_open, buffers[mask_after])
        if self._closes:
            check_open_after(masks, self.action_space, lambda k: self.where(int(ids[k])))
        everyone = ids is self._everyone
        if not everyone and num_ids == self._num_envs and (np.diff(ids) == 1).all():
            self._everyone, everyone = ids, True
        shown = [slots["reward"], slots["done"], slots["truncated"], slots["elapsed"]]
        reward, done, truncated, elapsed = [x.copy() for x in shown] if everyone else [x.take(ids) for x in shown]
        obs = VecObs(features, masks, reward, done, truncated, ids.copy(), elapsed)
        for name, place in self._visible:
            if not buffers[place].values.all():
                obs.visible[name] = buffers[place]
        for name, place in self._ids:
            obs.ids[name] = buffers[place]
        if self._info:
            ended = ids[done] if ended is None else ended
            if len(ended):
                reports = {name: column.take(ended) for name, column in self._info.items()}
                obs.end_of_episode_info = _EpisodeInfo(reports, ended.copy())
        for name, column_of in self._metrics.items():
            told = column_of[ids]
            told = told[~np.isnan(told)]  # NaN: nothing to report
            if len(told):
                obs.metrics[name] = Metric(len(told), float(told.sum()), float(told.min()), float(told.max()))
        if self.options.group_size > 1:
            obs.arrays[INSTANCE] = slots["instance"].take(ids).view(np.int64)
        for name in self.layout.env.targets:
            told = slots["record"][name].take(ids).astype(np.float32)
            if not np.isfinite(told).all():
                wrong = int(ids[np.flatnonzero(~np.isfinite(told))[0]])
                raise ValueError(f"{self.where(wrong)}: target {name!r} is not a finite number")
            obs.arrays[f"{TARGET}{name}"] = told[:, None]
        if self.layout.env.player_rewards:
            earned = slots["player_rewards"].take(ids, 0)
            obs.arrays[PLAYER_REWARD] = RaggedBuffer(earned.ravel(), np.arange(num_ids + 1) * earned.shape[1])
        return obs


def _new_arrays(layout: Layout, num_slots: int, slots: Sequence[Slot]) -> dict[str, NDArray[Any]]:
    """Records, counts and `slots` of so many environments."""
    names = layout.counts.names or ()
    lengths = np.zeros((num_slots, len(names)), dtype=np.int64)
    lengths[:, -1] = GLOBAL_ENTITY in names  # the only count that never changes
    arrays: dict[str, NDArray[Any]] = {
        "record": np.zeros(num_slots, layout.record),
        "final_record": np.zeros(num_slots, layout.record),
        "lengths": lengths,
        "counts": lengths.view(layout.counts)[:, 0],
        "settings": np.zeros(5, dtype=np.int64),
        "coming": np.zeros(num_slots, dtype=np.uint64),  # with groups: `s.rng` at the beginning of the next episode
        "instance": np.zeros(num_slots, dtype=np.uint64),  # and that of the running one
    }
    return arrays | {slot.name: np.zeros((num_slots, *slot.shape), slot.dtype) for slot in slots}


class _EpisodeInfo(UserDict[int, dict[str, Any]]):
    """The reports of finished episodes, made into dictionaries only when somebody asks.

    Args:
        columns: (n,) each, what is reported.
        ids: (n,) environments whose episodes the rows of `columns` are of.
    """

    def __init__(self, columns: Mapping[str, NDArray[Any]], ids: EnvIds) -> None:
        self._columns, self._ids = columns, ids

    @functools.cached_property
    def data(self) -> dict[int, dict[str, Any]]:  # type: ignore[override]
        """Environment -> report."""
        reports: dict[int, dict[str, Any]] = {env_id: {} for env_id in self._ids.tolist()}
        for name, column in self._columns.items():
            for report, value in zip(reports.values(), column.tolist(), strict=True):
                if value == value:  # NaN, which does not equal itself: nothing to report
                    report[name] = value
        return reports

    def get(self, env_id: int, default: Any = None) -> Any:
        return self.data.get(env_id, default)  # a third of the time of `UserDict.get`

    def __len__(self) -> int:
        return len(self._ids)
