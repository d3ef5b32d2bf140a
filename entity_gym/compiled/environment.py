"""Environments written as three plain functions over a record, and compiled."""

from __future__ import annotations

from typing import Any

from entity_gym.compiled.declare import Description
from entity_gym.compiled.first_use import check_first_use
from entity_gym.compiled.layout import layout_of
from entity_gym.compiled.slots import CompiledSlots
from entity_gym.pools.one import SlotEnvironment
from entity_gym.pools.slots import SlotOptions


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
        actions: name -> `Categorical`, `GlobalCategorical`, `SelectEntity` or `Continuous`.
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
