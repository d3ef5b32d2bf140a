"""Before a source is compiled and trusted for the first time it is played as ordinary Python, with array bounds checked."""

from __future__ import annotations

import hashlib
import os
import time
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions.choices import random_actions
from entity_gym.batch.frame import FrameReader
from entity_gym.compiled.build import Program
from entity_gym.compiled.declare import Kind, Slot
from entity_gym.compiled.description import Description
from entity_gym.compiled.slots import CompiledSlots
from entity_gym.compiled.view import CompiledView
from entity_gym.pools.slots import SlotOptions, run_serially

STEPS = 1000
SECONDS, LEAST = (
    15.0,
    100,
)  # worlds whose steps are slow as ordinary Python: seconds of this thread, but at least so many steps


def check_first_use(env: Description, program: Program) -> None:
    """Play random actions, unless this code has passed with these parameters before.

    Raises:
        ValueError: a rule is broken. Exceptions of the environment's own code pass through, with a note.
    """
    name = f"checked_{hashlib.sha256(repr(env.values).encode()).hexdigest()[:16]}"
    marker = None if program.folder is None else program.folder / name
    if marker is not None and os.path.exists(marker):  # false where it may not be looked at
        return
    try:
        _play(env)
    except Exception as error:
        error.add_note(
            f"found by the check of {type(env).__name__} before its first use, which runs it as ordinary Python for up to "
            f"{STEPS} random steps"
        )
        raise
    if marker is not None:
        with suppress(OSError):  # a cache that cannot be written means checking again
            marker.touch()


def _play(env: Description) -> None:
    name = type(env).__name__
    slots = CompiledSlots(env, 1, SlotOptions(final_observations="all", compile=False))
    view = CompiledView(env)
    reader = FrameReader(view.obs_space(), view.action_space(), name)
    ids = np.zeros(1, dtype=np.int64)
    rng = np.random.default_rng(0)
    records = slots.slots["record"]
    before = {name: records[name].copy() for name in env.values}
    slots.reset(ids)
    started = time.thread_time()
    for step in range(STEPS):
        if step >= LEAST and time.thread_time() - started > SECONDS:
            return
        for field in before:
            if (records[field] != before[field]).any():
                raise ValueError(f"{name}: the parameter {field!r} was changed; parameters are read-only")
        obs = slots.collect(ids, run_serially)
        seen = records.copy()
        slots.observe(ids)
        fields = records.dtype.names or ()
        changed = [
            field for field in fields if records[field].tobytes() != seen[field].tobytes()
        ]  # as bytes, since NaN != NaN
        if changed:
            raise ValueError(f"{name}: observe() changes {', '.join(changed)}; do that in reset() or step()")
        _check_all_is_written(slots, ids)
        view.load_state(slots.state())
        if not obs.done[0]:
            reader.read(view.show(), 0)  # finds what a compiled check does not look for, such as an actor listed twice
        actions = random_actions(obs, rng, slots.action_space)
        if step % 8 == 7:  # finds rules that use -1, nobody, as an index
            for plan in slots.layout.actions:
                plan.choose_nobody(actions[plan.name].values)
        slots.check(actions, ids)
        slots.step(actions, ids, 0, 1)


def _check_all_is_written(slots: CompiledSlots, ids: NDArray[np.int64]) -> None:
    """Fill the arrays with 0, then with 1, and observe each time: what differs was not written by `observe`."""
    layout, arrays = slots.layout, slots.slots
    written = layout.of_kind(Kind.FEATURES, Kind.GLOBAL_FEATURES)
    shown = []
    for background in (0, 1):
        for slot in written:
            arrays[slot.name].fill(background)
        for slot in layout.of_kind(Kind.ACTORS, Kind.ACTEES):
            arrays[slot.name].fill(-1)  # if not written, reported as an entity index that is out of range
        slots.observe(ids)
        shown.append({slot.name: arrays[slot.name][0].copy() for slot in written})
    for slot in written:
        count = int(arrays["counts"][0][slot.rows]) if slot.rows else None
        first, second = (each[slot.name][:count] for each in shown)
        if first.tobytes() != second.tobytes():
            place = np.argwhere(first != second)[0].tolist()
            raise ValueError(
                f"{layout.name}: observe() leaves {_part(slots, slot, place)} as it was in an earlier step, or in "
                "an earlier episode; write everything that it shows"
            )


def _part(slots: CompiledSlots, slot: Slot, place: list[int]) -> str:
    layout = slots.layout
    if slot.kind is Kind.GLOBAL_FEATURES:
        return f"global feature {layout.global_features[place[0]]!r}"
    name, feature = layout.entity_names[slot.owner], layout.entities[slot.owner].features[place[1]]
    return f"feature {feature!r} of entity {place[0]} of type {name!r}"
