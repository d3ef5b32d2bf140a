"""Compiled worlds for the tests of the test kit: one as it must be, and some with one thing wrong."""

from typing import Any

import numpy as np

from entity_gym.compiled import Categorical, CompiledEnvironment, Entity, kernel, rand_int


class Climb(CompiledEnvironment):
    """A climber goes up or down a ladder. Nothing is wrong with it."""

    entities = {"Climber": Entity(["height"], max=1)}
    actions = {"climb": Categorical(["down", "up"], actors="Climber")}
    parameters = {"top": 5}
    max_steps = 8
    state = [("height", np.int64), ("seen", np.int64), ("small", np.int8)]

    def reset(s: Any) -> None:
        s.height = rand_int(s, s.top)
        s.small = 0

    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        s.height += 1 if act.climb[0] == 1 else -1
        return 0.0, s.height == s.top, False

    def observe(s: Any, obs: Any) -> None:
        obs.n.Climber = 1
        obs.Climber[0, 0] = s.height


class UnknownField(Climb):
    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        s.heigth += 1
        return 0.0, False, False


class OutOfBounds(Climb):
    def observe(s: Any, obs: Any) -> None:
        obs.n.Climber = 1
        obs.Climber[s.steps // 4, 0] = s.height


@kernel
def count_looks(s: Any) -> None:
    """Changes the state where nobody looks for it."""
    s.seen += 1


class ObserveChanges(Climb):
    def observe(s: Any, obs: Any) -> None:
        count_looks(s)
        obs.n.Climber = 1
        obs.Climber[0, 0] = s.height


class Overflows(Climb):
    """Sums of small numbers are small in NumPy, and not in compiled code."""

    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        s.small = 100
        return float(s.small + s.small), s.height == s.top, False


class TwoTypes(Climb):
    """Python takes it, and Numba does not: a variable is a number or a text."""

    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        height = s.height if s.height > 2 else "low"
        return 0.0, height == s.top, False
