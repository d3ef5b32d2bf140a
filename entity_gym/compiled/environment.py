"""Environments written as three plain functions over a record, and compiled."""

from __future__ import annotations

import hashlib
import os
import time
from contextlib import suppress
from typing import Any

import numpy as np

from entity_gym.actions.choices import random_actions
from entity_gym.batch.vec_obs import VecObs
from entity_gym.compiled.build import build
from entity_gym.compiled.declare import Description
from entity_gym.compiled.layout import Kind, layout_of
from entity_gym.compiled.slots import CompiledSlots
from entity_gym.pools.one import SlotEnvironment
from entity_gym.pools.slots import SlotOptions, run_serially

STEPS = 1000
#: Worlds whose steps are slow as ordinary Python are played for so many seconds of this thread, but at least so many steps.
SECONDS, LEAST = 15.0, 100


class CompiledEnvironment(Description):
    """A world as three plain functions over one record `s`; thousands of them are stepped by compiled code.

    A subclass declares the attributes below and writes `reset(s)`, `step(s, act)` and `observe(s, obs)`, without `self`.
    An instance holds parameters, and is no running environment: give it to a `ThreadedVecEnv`, or ask it for a plain
    environment with `as_environment()`.

    `s` holds every parameter (read-only), the declared state, `s.steps` (of this episode; 1 in the first call of `step`)
    and `s.max_steps`. Fields that `reset` does not write keep their values from the episode before. Random numbers come from
    `rand_int(s, n)`, `rand_float(s)` and `rand_normal(s)`, in `reset` and `step` only.

    Attributes:
        entities: name -> `Entity`. Their order is the order of entities in a frame.
        actions: name -> `Categorical`, or another function of `entity_gym.compiled` that declares one.
        global_features: names of the numbers in `obs.global_features`, or a `Category`, `Angle` or `Flag`.
        parameters: name -> default; keywords of the constructor, of the default's type (int, float or bool).
        ranges: parameter -> (least, most) of its values; None for no bound above.
        max_steps: steps after which an episode is truncated, None for no limit; a keyword of the constructor too.
        state: (name, dtype) or (name, dtype, shape) of every field.
        info: state fields that are reported when an episode ends. NaN: nothing to report.
        metrics: state fields that are reported with every step. NaN: nothing to report.
        player_rewards: in worlds with several players (`entity_gym.pools.players`), the state fields that say what each player
            earned with a step, in the order of players. NaN: there is no such player. Empty: all share the reward.
        targets: state fields that no policy sees, for a network to predict (`ObsSpace.targets`).
        reward_threshold: mean episodic reward at which the environment counts as solved.
        draw: hints for pictures, or a function of `s` that returns them.

    Names become attributes with "_" for whatever cannot stand in an identifier: `act.Fire_Orbital_Cannon`.

    Args:
        max_steps: replaces the class's.
        parameters: replace the defaults.

    Raises:
        ValueError: for unknown parameters, or values of another type, outside `ranges` or that `check_parameters` refuses.
    """

    def __init__(self, **parameters: Any) -> None:
        layout_of(type(self))  # checks the declaration
        super().__init__(**parameters)

    def as_environment(self) -> SlotEnvironment:
        """Make a plain `Environment` with the same rules, in ordinary Python, for playing, checking and debugging."""
        return SlotEnvironment(CompiledSlots(self, 1, SlotOptions(autoreset=False, compile=False)))

    def make_slots(self, num_envs: int, options: SlotOptions = SlotOptions()) -> CompiledSlots:
        """Make the environments of a pool.

        Before the first use with these parameters, after every change of the code, and before `env_info` sets a parameter that
        is larger or smaller than any before, 1,000 random steps run as ordinary Python, or at least 100 of them where they take
        longer than 15 seconds.

        Raises:
            CompileError: the source cannot be compiled.
            ValueError: its first steps break a rule.
        """
        if options.compile:
            check_first_use(self)
        slots = CompiledSlots(self, num_envs, options)
        if options.compile:
            slots.play_first = check_first_use
        return slots


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
        if step % 8 == 7:  # finds rules that use -1, nobody, as an index, or need somebody in a set
            for action, offered in obs.action_masks.items():
                rare = list(slots.action_space[action].rare_choices(offered))
                if rare:
                    actions[action].values[:] = rare[step // 8 % len(rare)][1]
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
            if slot.kind is Kind.GLOBAL_FEATURES:
                part = f"global feature {layout.obs_space.global_features[column]!r}"
            else:
                feature, type_ = layout.entities[slot.owner].features[column], layout.entity_names[slot.owner]
                part = f"feature {feature!r} of entity {row} of type {type_!r}"
            raise ValueError(
                f"{layout.name}: observe() leaves {part} as it was in an earlier step, or in an earlier episode; write "
                "everything that it shows"
            )


def _check_nothing_is_listed_twice(name: str, obs: VecObs) -> None:
    """Check that no actor and no actee is listed twice, and no id given twice to entities of a type."""
    lists = {f"ids.{type_}": numbers for type_, numbers in obs.ids.items()}
    for action, offered in obs.action_masks.items():
        lists |= {f"{action}.actors": offered.actors, f"{action}.actees": offered.actees or offered.actors}
    for where, listed in lists.items():
        numbers = listed.values[listed.values >= 0]
        if len(np.unique(numbers)) < len(numbers):
            raise ValueError(f"{name}: obs.{where} {numbers.tolist()} lists an entity twice")
