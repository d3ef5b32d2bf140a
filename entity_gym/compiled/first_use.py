"""Before a source is compiled and trusted for the first time it is played as ordinary Python, with array bounds checked."""

from __future__ import annotations

import hashlib
import os
import time
from contextlib import suppress

import numpy as np

from entity_gym.actions.choices import random_actions
from entity_gym.batch.vec_obs import VecObs
from entity_gym.compiled.build import build
from entity_gym.compiled.declare import Description
from entity_gym.compiled.layout import Kind
from entity_gym.compiled.slots import CompiledSlots
from entity_gym.pools.slots import SlotOptions, run_serially

STEPS = 1000
#: Worlds whose steps are slow as ordinary Python are played for so many seconds of this thread, but at least so many steps.
SECONDS, LEAST = 15.0, 100


def check_first_use(env: Description) -> None:
    """Play random actions, unless this code has passed with these parameters before.

    Raises:
        ValueError: a rule is broken. Exceptions of the environment's own code pass through, with a note.
    """
    name = f"checked_{hashlib.sha256(repr(env.values).encode()).hexdigest()[:16]}"
    folder = build(type(env), compile=False).folder
    marker = None if folder is None else folder / name
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
    ids, rng, records = np.zeros(1, dtype=np.int64), np.random.default_rng(0), slots.slots["record"]
    before = {field: records[field].copy() for field in env.values}
    slots.reset(ids)
    started = time.thread_time()
    for step in range(STEPS):
        if step >= LEAST and time.thread_time() - started > SECONDS:
            return
        for field in before:
            if (records[field] != before[field]).any():
                raise ValueError(f"{name}: the parameter {field!r} was changed; parameters are read-only")
        obs, seen = slots.collect(ids, run_serially), records.copy()
        slots.observe(ids)
        # Compared as bytes, since NaN != NaN.
        changed = [field for field in records.dtype.names or () if records[field].tobytes() != seen[field].tobytes()]
        if changed:
            raise ValueError(f"{name}: observe() changes {', '.join(changed)}; do that in reset() or step()")
        _check_all_is_written(slots)
        _check_nothing_is_listed_twice(name, obs)
        actions = random_actions(obs, rng, slots.action_space)
        if step % 8 == 7:  # finds rules that use -1, nobody, as an index
            for action, offered in obs.action_masks.items():
                for _, values in slots.action_space[action].rare_choices(offered):
                    actions[action].values[:] = values
        slots.check(actions, ids)
        slots.step(actions, ids, 0, 1)


def _check_all_is_written(slots: CompiledSlots) -> None:
    """Fill the arrays with 0, then with 1, and observe each time: what differs was not written by `observe`."""
    layout, arrays = slots.layout, slots.slots
    written = layout.of_kind(Kind.FEATURES, Kind.GLOBAL_FEATURES)
    shown = []
    for background in (0, 1):
        for slot in written:
            arrays[slot.name].fill(background)
        for slot in layout.of_kind(Kind.ACTORS, Kind.ACTEES):
            arrays[slot.name].fill(-1)  # if not written, reported as an entity index that is out of range
        slots.observe(np.zeros(1, dtype=np.int64))
        shown.append({slot.name: arrays[slot.name][0].copy() for slot in written})
    for slot in written:
        count = int(arrays["counts"][0][slot.rows])
        first, second = (each[slot.name][:count] for each in shown)
        if first.tobytes() != second.tobytes():
            row, column = np.argwhere(first != second)[0].tolist()
            part = (
                f"global feature {layout.obs_space.global_features[column]!r}"
                if slot.kind is Kind.GLOBAL_FEATURES
                else ""
            )
            if entity := layout.entities.get(slot.owner):
                part = (
                    f"feature {entity.features[column]!r} of entity {row} of type {layout.entity_names[slot.owner]!r}"
                )
            raise ValueError(
                f"{layout.name}: observe() leaves {part} as it was in an earlier step, or in an earlier episode; write "
                "everything that it shows"
            )


def _check_nothing_is_listed_twice(name: str, obs: VecObs) -> None:
    """Check that no actor and no actee is listed twice, and no id given twice to entities of a type."""
    lists = {f"obs.{action}.actors": offered.actors for action, offered in obs.action_masks.items()}
    lists |= {
        f"obs.{action}.actees": each.actees for action, each in obs.action_masks.items() if each.actees is not None
    }
    lists |= {f"obs.ids.{type_}": numbers for type_, numbers in obs.ids.items()}
    for where, listed in lists.items():
        numbers = listed.values[listed.values >= 0]
        if len(np.unique(numbers)) < len(numbers):
            raise ValueError(f"{name}: {where} {numbers.tolist()} lists an entity twice")
