"""Before a source is compiled and trusted for the first time it is played as ordinary Python, with array bounds checked."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from entity_gym.frame import FrameReader

if TYPE_CHECKING:
    from entity_gym.compiled.build import Program
    from entity_gym.compiled.environment import CompiledEnvironment

STEPS = 1000


def check_first_use(env: CompiledEnvironment, program: Program) -> None:
    """Play random actions, unless this source passed with these parameters before.

    Raises:
        ValueError: or whatever the environment's own code raises, with a note that says so.
    """
    marker = program.folder / f"checked_{'_'.join(str(value) for value in env.values.values())[:100]}"
    if marker.exists():
        return
    try:
        _play(env)
    except Exception as error:
        error.add_note(
            f"found by the check of {type(env).__name__} before its first use, which runs it as ordinary Python for {STEPS} "
            "random steps; nothing has been compiled with this mistake"
        )
        raise
    with suppress(OSError):  # a cache that cannot be written means checking again
        marker.touch()


def _play(env: CompiledEnvironment) -> None:
    from entity_gym.compiled.slots import CompiledSlots
    from entity_gym.sampling import random_actions

    name = type(env).__name__
    slots = CompiledSlots(env, 1, compile=False, check=False, final_observations="all")
    view = env.as_environment()
    reader = FrameReader(view.obs_space(), view.action_space(), name)
    ids = np.zeros(1, dtype=np.int64)
    rng = np.random.default_rng(0)
    slots.reset(ids)
    records = slots.slots["S"]
    before = {name: records[name].copy() for name in env.values}
    for _ in range(STEPS):
        obs = slots.collect(ids, lambda fn, n: fn(0))
        seen = records.copy()
        slots.observe(ids)
        fields = records.dtype.names or ()
        changed = [field for field in fields if records[field].tobytes() != seen[field].tobytes()]  # NaN is not itself
        if changed:
            raise ValueError(f"{name}: observe() changes {', '.join(changed)}; do that in reset() or step()")
        view.load_state(slots.state())
        if not obs.done[0]:
            reader.read(view.show(), 0)  # finds what a compiled check does not look for, such as an actor listed twice
        actions = random_actions(obs, rng)
        slots.check(actions, ids)
        slots.step(actions, ids, 0, 1)
        for field in before:
            if (records[field] != before[field]).any():
                raise ValueError(f"{name}: the parameter {field!r} was changed; parameters are read-only")
