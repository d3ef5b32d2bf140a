"""Compiled environments side by side.

Every environment owns a row of preallocated arrays; `collect` packs the rows that are asked for into fresh ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions.choices import check_actions
from entity_gym.batch.frame import FrameReader
from entity_gym.batch.ragged import RaggedBufferF32, RaggedBufferI64
from entity_gym.batch.vec_obs import VecAction, VecObs
from entity_gym.compiled.build import Table, build
from entity_gym.compiled.codegen import Fault, Mode, control_index, pending_parameters
from entity_gym.compiled.declare import safe_name
from entity_gym.compiled.environment import CompiledEnvironment, describe
from entity_gym.compiled.faults import raise_fault
from entity_gym.compiled.first_use import check_first_use
from entity_gym.compiled.packing import Packer
from entity_gym.compiled.random import first_random_states
from entity_gym.compiled.record import Record
from entity_gym.pools.slots import (
    EnvIds,
    EnvSlots,
    FinalObservations,
    Run,
    check_final_observations,
    check_num_envs,
    check_seed,
    check_state,
)


class CompiledSlots(EnvSlots):
    """N environments of a `CompiledEnvironment`, stepped without the GIL.

    Args:
        env: the class with its parameters.
        num_envs: N.
        first_env: number of the first environment, where these are part of a larger pool.
        autoreset, final_observations: see `EnvSlots`.
        compile: false runs the source as ordinary Python, with checks of array bounds.
        boundscheck: compile these checks in.
        num_workers: threads that may call `reset` and `step` at the same time.
        check: before a source is used for the first time, play it for 1,000 steps as ordinary Python.
        numbered: whether messages number the environments; otherwise somebody else does.

    Raises:
        CompileError: if the source cannot be compiled.
        ValueError: if its first steps break a rule.
    """

    one_by_one: ClassVar[bool] = False

    def __init__(
        self,
        env: CompiledEnvironment | type[CompiledEnvironment],
        num_envs: int,
        *,
        first_env: int = 0,
        autoreset: bool = True,
        final_observations: FinalObservations = "truncated",
        compile: bool = True,
        boundscheck: bool = False,
        num_workers: int = 1,
        check: bool = True,
        numbered: bool = True,
    ) -> None:
        check_num_envs(num_envs)
        check_final_observations(final_observations)
        self.env = describe(env)
        self.autoreset, self.final_observations = autoreset, final_observations
        self._arguments: dict[str, Any] = {
            "compile": compile,
            "boundscheck": boundscheck,
            "num_workers": num_workers,
            "numbered": numbered,
        }
        self._first_env, self._num_envs = first_env, num_envs
        self.program = build(type(self.env), compile=compile, boundscheck=boundscheck)
        self.layout = self.program.layout
        if check and compile:
            check_first_use(self.env, self.program)
        self._reader = FrameReader(self.env.obs_space(), self.env.action_space(), self.layout.name, first_env)
        arrays = self._new_slots()
        self.slots = arrays
        arrays["cfg"][control_index("autoreset")] = autoreset
        arrays["cfg"][control_index("keep_truncated")] = final_observations == "truncated"
        arrays["cfg"][control_index("keep_all")] = final_observations == "all"
        self._tables = [self._new_table(arrays) for _ in range(num_workers)]
        self._packer = Packer(self.layout, self._tables[0], arrays, arrays, self.where, max(1, num_workers - 1))
        self._final: tuple[Table, Packer] | None = None
        self._keeps_finals = autoreset and final_observations != "none"
        self._checked: Mapping[str, VecAction] | None = None
        for name, value in self.env.values.items():
            self.slots["S"][name] = value
        self.seed(0)

    def __len__(self) -> int:
        return self._num_envs

    def where(self, i: int) -> str:  # noqa: D102 - see EnvSlots
        return super().where(i) if self._arguments["numbered"] else self.layout.name

    def seed(self, seed: int) -> None:  # noqa: D102
        check_seed(seed)
        self.slots["S"]["rng"] = first_random_states(seed, len(self), self._first_env)

    def configure(self, ids: EnvIds, env_info: Sequence[Mapping[str, Any]]) -> None:  # noqa: D102
        slots = self.slots
        checked = []  # all before any is set
        for i, info in zip(ids.tolist(), env_info, strict=True):
            waiting = slots["pending"][i]
            current = {
                name: (slots[f"p_{name}"] if waiting else slots["S"][name])[i].item() for name in self.env.values
            }
            current["max_steps"] = current["max_steps"] or None
            try:
                checked.append(self.env.check_values({**current, **info}))
            except ValueError as error:
                error.add_note(f"in env_info of {self.where(i)}")
                raise
        for name in self.env.values:
            slots[f"p_{name}"][ids] = [values[name] for values in checked]
        slots["pending"][ids] = True

    def reset(self, ids: EnvIds, worker: int = 0) -> None:  # noqa: D102
        self._run(self._tables[worker], Mode.RESET, ids, 0, len(ids))

    def observe(self, ids: EnvIds) -> None:
        """Show the states of `ids` again, for example after they were written to."""
        self._run(self._tables[0], Mode.OBSERVE, ids, 0, len(ids))

    def check(self, actions: Mapping[str, VecAction], ids: EnvIds) -> None:  # noqa: D102
        table = self._tables[0]
        self._checked = None  # whatever comes of this, others are no longer bound
        if self._bind_actions(table, actions, len(ids)):
            table.bind("ids", ids)
            table.arrays["err"][0] = Fault.NONE
            table.run(Mode.CHECK, 0, len(ids))
            if table.arrays["err"][0] == Fault.NONE:
                self._checked = actions
                return
        shown = self._packer.pack(ids, _serial)
        where = lambda position: self._reader.where(int(ids[position]))  # noqa: E731
        check_actions(actions, shown.action_masks, self._reader.action_space, where)  # says what is wrong
        raise AssertionError(f"actions {actions!r:.200} were refused, though they were offered")

    def step(  # noqa: D102
        self, actions: Mapping[str, VecAction], ids: EnvIds, lo: int, hi: int, worker: int = 0
    ) -> None:
        table = self._tables[worker]
        if worker or self._checked is not actions:  # else they are bound already
            self._bind_actions(table, actions, len(ids))
        self._run(table, Mode.STEP, ids, lo, hi)

    def collect(self, ids: EnvIds, run: Run) -> VecObs:  # noqa: D102
        obs = self._packer.pack(ids, run)
        if self._keeps_finals and np.count_nonzero(obs.done):
            ended = ids[self.slots["fin"][ids]]
            if len(ended):
                obs.final = self._collect_final(ended)
        return obs

    def render(self, i: int) -> NDArray[np.uint8]:  # noqa: D102
        draw = type(self.env).render
        if draw is None:
            raise NotImplementedError(f"{self.layout.name} does not implement render(s)")
        return draw(Record(self.slots["S"][i]))

    @property
    def can_save(self) -> bool:  # noqa: D102
        return True

    def state(self) -> dict[str, Any]:  # noqa: D102
        records = self.slots["S"]
        fields = {name: records[name].copy() for name in self.layout.record.names or ()}
        shown = {name: self.slots[name].copy() for name in self._saved()}
        pending = {name: array.copy() for name, array in self._pending().items()}
        return {"num_envs": len(self), "fields": fields, "shown": shown, "pending": pending}

    def load_state(self, state: Mapping[str, Any]) -> None:  # noqa: D102
        check_state(state, "num_envs", "fields", "shown")
        if state["num_envs"] != len(self):
            raise ValueError(f"the saved state has {state['num_envs']} environments; this pool has {len(self)}")
        records = self.slots["S"]
        fields = {name: records[name] for name in self.layout.record.names or ()}
        shown = {name: self.slots[name] for name in self._saved()}
        parts = [(fields, state["fields"]), (shown, state["shown"])]
        if "pending" in state:
            parts.append((self._pending(), state["pending"]))
        else:  # it was saved before parameters could wait
            self.slots["pending"][:] = False
        other = f"the saved state is of another version of {self.layout.name}"
        for own, saved in parts:
            if saved.keys() != own.keys():
                raise ValueError(f"{other}: fields {sorted(saved.keys() ^ own.keys())} differ")
            for name, values in own.items():
                if saved[name].shape != values.shape:
                    raise ValueError(f"{other}: {name} was {saved[name].shape[1:]} and is {values.shape[1:]}")
        for own, saved in parts:
            for name, values in own.items():
                values[...] = saved[name]
        self.slots["fin"][:] = False

    def clone(self) -> Self:  # noqa: D102
        copy = type(self)(
            self.env,
            len(self),
            first_env=self._first_env,
            autoreset=self.autoreset,
            final_observations=self.final_observations,
            check=False,
            **self._arguments,
        )
        for name, array in self.slots.items():
            copy.slots[name][...] = array
        return copy

    def close(self) -> None:  # noqa: D102
        pass

    def _pending(self) -> dict[str, NDArray[Any]]:
        """The parameters that wait for the next episode, and where some do."""
        names = ["pending", *(f"p_{name}" for name in pending_parameters(self.layout))]
        return {name: self.slots[name] for name in names}

    def _saved(self) -> list[str]:
        """What a slot shows and how its episode ended; with the records, everything."""
        apart = {"S", "FS", "N", "cfg", "fin", *self._pending(), *(f"d_{a.attribute}" for a in self.layout.actions)}
        return [name for name in self.slots if name not in apart]

    def _new_slots(self) -> dict[str, NDArray[Any]]:
        layout, many = self.layout, self._num_envs
        records = np.zeros(many, layout.record)
        counts = np.zeros((many, len(layout.counts.names or ())), dtype=np.int64)
        arrays: dict[str, NDArray[Any]] = {
            "S": records,
            "FS": np.zeros(many, layout.record),
            "N": counts.view(layout.counts)[:, 0],
            "L": counts,
            "cfg": np.zeros(4, dtype=np.int64),
            "reward": np.zeros(many, dtype=np.float32),
            "done": np.zeros(many, dtype=np.bool_),
            "truncated": np.zeros(many, dtype=np.bool_),
            "elapsed": np.zeros(many, dtype=np.int64),
            "fin": np.zeros(many, dtype=np.bool_),
        }
        for slot in layout.slots:
            arrays[slot.name] = np.zeros((many, *slot.shape), slot.dtype)
        for name, field in layout.info.items():
            arrays[f"i_{safe_name(name)}"] = np.zeros(many, layout.record[field])
        for name in layout.metrics:
            arrays[f"q_{safe_name(name)}"] = np.full(many, np.nan)
        if layout.player_rewards:
            arrays["pr"] = np.zeros((many, len(layout.player_rewards)), dtype=np.float32)
        arrays["pending"] = np.zeros(many, dtype=np.bool_)
        for name in pending_parameters(layout):
            arrays[f"p_{name}"] = np.zeros(many, dtype=layout.record[name])
        return arrays

    def _new_table(self, arrays: dict[str, NDArray[Any]]) -> Table:
        table = Table(self.program, self._num_envs, arrays)
        table.bind("err", np.zeros(4, dtype=np.int64))
        return table

    def _bind_actions(self, table: Table, actions: Mapping[str, VecAction], num_ids: int) -> bool:
        """Hand the actions over as they are; false if they do not have the right form to be looked at."""
        if actions.keys() != self._reader.action_space.keys():
            return False
        for action in self.layout.actions:
            given = actions[action.name]
            if (
                not isinstance(given, RaggedBufferF32 if action.bounds else RaggedBufferI64)
                or len(given.offsets) != num_ids + 1
                or given.values.shape[1] != (len(action.bounds) or 1)
            ):
                return False
            table.bind(f"a_{action.attribute}", given.values)
            table.bind(f"o_{action.attribute}", given.offsets)
        return True

    def _run(self, table: Table, mode: int, ids: EnvIds, lo: int, hi: int) -> None:
        table.bind("ids", ids)
        err = table.arrays["err"]
        err[0] = Fault.NONE
        try:
            table.run(mode, lo, hi)
        except Exception as error:
            function = "reset" if mode == Mode.RESET else "act"
            error.add_note(f"raised by {self.where(int(err[1]))} in {function}()")
            raise
        if err[0] != Fault.NONE:
            raise_fault(err, self.layout, table.arrays, self.where(int(err[1])))

    def _collect_final(self, ids: EnvIds) -> VecObs:
        """The last observations of episodes: the same code shows the records as they were before the reset."""
        if self._final is None:
            arrays = self._new_slots()
            arrays["S"] = self.slots["FS"]
            arrays["cfg"][control_index("drop_actions")] = 1
            table = self._new_table(arrays)
            self._final = table, Packer(self.layout, table, arrays, self.slots, self.where)
        table, packer = self._final
        self._run(table, Mode.OBSERVE, ids, 0, len(ids))
        return packer.pack(ids, _serial)


def _serial(fn: Any, n: int) -> None:
    for worker in range(n):
        fn(worker)
