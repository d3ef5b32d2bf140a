"""Before a source is compiled and trusted for the first time it is played as ordinary Python, with array bounds checked."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from entity_gym.batch.frame import FrameReader
from entity_gym.compiled.declare import safe_name

if TYPE_CHECKING:
    from entity_gym.compiled.build import Program
    from entity_gym.compiled.environment import CompiledEnvironment
    from entity_gym.compiled.slots import CompiledSlots

STEPS = 1000


def check_first_use(env: CompiledEnvironment, program: Program) -> None:
    """Play random actions, unless this source passed with these parameters before.

    Raises:
        ValueError: or whatever the environment's own code raises, with a note that says so.
    """
    marker = program.folder / f"checked_{hashlib.sha256(repr(env.values).encode()).hexdigest()[:16]}"
    if marker.exists():
        return
    try:
        _play(env)
    except Exception as error:
        error.add_note(
            f"found by the check of {type(env).__name__} before its first use, which runs it as ordinary Python for {STEPS} "
            "random steps"
        )
        raise
    with suppress(OSError):  # a cache that cannot be written means checking again
        marker.touch()


def _play(env: CompiledEnvironment) -> None:
    from entity_gym.actions.choices import random_actions
    from entity_gym.compiled.slots import CompiledSlots

    name = type(env).__name__
    slots = CompiledSlots(env, 1, compile=False, check=False, final_observations="all")
    view = env.as_environment()
    reader = FrameReader(view.obs_space(), view.action_space(), name)
    ids = np.zeros(1, dtype=np.int64)
    rng = np.random.default_rng(0)
    records = slots.slots["S"]
    before = {name: records[name].copy() for name in env.values}
    slots.reset(ids)
    for _ in range(STEPS):
        for field in before:
            if (records[field] != before[field]).any():
                raise ValueError(f"{name}: the parameter {field!r} was changed; parameters are read-only")
        obs = slots.collect(ids, lambda fn, n: fn(0))
        seen = records.copy()
        slots.observe(ids)
        fields = records.dtype.names or ()
        changed = [field for field in fields if records[field].tobytes() != seen[field].tobytes()]  # NaN is not itself
        if changed:
            raise ValueError(f"{name}: observe() changes {', '.join(changed)}; do that in reset() or step()")
        _check_all_is_written(slots, ids)
        view.load_state(slots.state())
        if not obs.done[0]:
            reader.read(view.show(), 0)  # finds what a compiled check does not look for, such as an actor listed twice
        actions = random_actions(obs, rng, slots.action_space)
        slots.check(actions, ids)
        slots.step(actions, ids, 0, 1)


def _check_all_is_written(slots: CompiledSlots, ids: NDArray[np.int64]) -> None:
    """Observe over two different backgrounds: what differs is left from an earlier step, or from another episode."""
    layout, arrays = slots.layout, slots.slots
    shown = []
    for background in (0, 1):
        for slot in layout.slots:
            if slot.name[:2] in ("f_", "g", "x_"):
                arrays[slot.name].fill(background)
            elif slot.name[:2] in ("w_", "t_"):
                arrays[slot.name].fill(-1)  # refused by `observe` itself
        slots.observe(ids)
        shown.append({slot.name: arrays[slot.name][0].copy() for slot in layout.slots})
    counts = {f"f_{name}": int(arrays["N"][0][name]) for name in layout.entities}
    counts |= {
        f"x_{safe_name(name)}": int(arrays["N"][0]["players"]) for name, a in slots.env.arrays.items() if a.per_player
    }
    for slot in layout.slots:
        first, second = (each[slot.name][: counts.get(slot.name)] if slot.shape else each[slot.name] for each in shown)
        if first.tobytes() != second.tobytes():
            raise ValueError(
                f"{layout.name}: observe() leaves {_part(slots, slot.name, first != second)} as it was in an earlier step, or in "
                "an earlier episode; write everything that it shows"
            )


def _part(slots: CompiledSlots, slot: str, differs: NDArray[np.bool_]) -> str:
    layout, place = slots.layout, np.argwhere(differs)[0].tolist()
    if slot == "g":
        return f"global feature {layout.global_features[place[0]]!r}"
    if slot.startswith("x_"):
        name = next(name for name in slots.env.arrays if f"x_{safe_name(name)}" == slot)
        return f"array {name!r}{place if place else ''}"
    name, feature = layout.entity_names[slot[2:]], layout.entities[slot[2:]].features[place[1]]
    return f"feature {feature!r} of entity {place[0]} of type {name!r}"
