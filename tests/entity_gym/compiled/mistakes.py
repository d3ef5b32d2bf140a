"""Environments that cannot be compiled, and ones that the check before the first use finds out. `# here` marks the line."""

from random import randrange
from typing import Any

import numpy as np

from entity_gym.compiled import Categorical, CompiledEnvironment, Entity, SelectEntities, SelectEntity, kernel, rand_int


class Sound(CompiledEnvironment):
    """A world without a mistake; the others differ in one function."""

    entities = {"Foot Soldier": Entity(["x"], max=2), "Enemy": Entity(["x"], max=2)}
    global_features = ["time"]
    actions = {
        "Move": Categorical(["left", "right"], actors="Foot Soldier"),
        "Shoot Enemy": SelectEntity(actors="Foot Soldier", actees="Enemy"),
    }
    parameters = {"width": 6}
    state = [("pos", np.int64), ("speed", np.float64), ("grid", np.int64, (4,)), ("seen", np.int64)]
    max_steps = 20

    def reset(s: Any) -> None:
        s.pos = rand_int(s, s.width)

    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        s.pos = (s.pos + act.Move[0]) % s.width
        return 1.0, False, False

    def observe(s: Any, obs: Any) -> None:
        obs.n.Foot_Soldier = 1
        obs.Foot_Soldier[0, 0] = s.pos
        obs.global_features[0] = s.steps


# --- Seen in the source


class MisspeltField(Sound):
    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        s.pos = s.pos + s.spede  # here
        return 1.0, False, False


class MisspeltAction(Sound):
    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        s.pos += act.Mov[0]  # here
        return 1.0, False, False


class NoMask(Sound):
    def observe(s: Any, obs: Any) -> None:
        obs.n.Foot_Soldier = 1
        obs.Move.mask[0, 0] = False  # here


class WritesParameter(Sound):
    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        s.width = 3  # here
        return 1.0, False, False


class WritesInObserve(Sound):
    def observe(s: Any, obs: Any) -> None:
        s.seen += 1  # here


class Generates(Sound):
    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        return float(sum(s.grid[k] for k in range(4))), False, False  # here


class WithSelf(Sound):
    def reset(self, s: Any) -> None:
        s.pos = 1


class DrawsFromNumPy(Sound):
    def reset(s: Any) -> None:
        s.pos = np.random.randint(s.width)  # here


@kernel
def drawn(s: Any) -> int:
    return randrange(s.width)  # here


class DrawsInHelper(Sound):
    def reset(s: Any) -> None:
        s.pos = drawn(s)


# --- Found by the compiler


@kernel
def misspelt(s: Any) -> None:
    s.pso = 1  # here


def not_a_kernel(s: Any) -> int:
    return s.pos + 1


class MisspeltInHelper(Sound):
    def reset(s: Any) -> None:
        misspelt(s)


class UnknownName(Sound):
    def reset(s: Any) -> None:
        s.pos = WIDHT  # noqa: F821  # here


class NotAKernel(Sound):
    def reset(s: Any) -> None:
        s.pos = not_a_kernel(s)  # here


class TwoTypes(Sound):
    def reset(s: Any) -> None:
        if s.width > 3:
            start = 1
        else:
            start = (1, 2)
        s.pos = start  # type: ignore[assignment]  # here


class ReturnsTwo(Sound):
    def step(s: Any, act: Any) -> tuple[float, bool, bool]:  # here
        pair = 1.0, False
        return pair  # type: ignore[return-value]


# --- Found by playing


@kernel
def write_width(s: Any) -> None:
    s.width = 7


@kernel
def look(s: Any) -> None:
    s.seen += 1


class WritesOutside(Sound):
    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        s.pos = (s.pos + act.Move[0]) % s.width
        s.grid[s.pos] = 1  # 0 to 5
        return 1.0, False, False


class WritesWithinWidth(Sound):
    state = [*Sound.state, ("marks", np.int64, (6,))]

    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        s.pos = (s.pos + act.Move[0]) % s.width
        s.marks[s.pos] = 1
        return 1.0, False, False


class ShowsTooMany(Sound):
    def observe(s: Any, obs: Any) -> None:
        obs.n.Foot_Soldier = s.pos + 1
        obs.Foot_Soldier[0, 0] = s.pos
        obs.Foot_Soldier[1, 0] = s.pos
        obs.global_features[0] = s.steps


class ObserveWritesThroughHelper(Sound):
    def observe(s: Any, obs: Any) -> None:
        look(s)
        obs.n.Foot_Soldier = 1
        obs.Foot_Soldier[0, 0] = s.pos
        obs.global_features[0] = s.steps


class ParameterChangedByHelper(Sound):
    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        if s.steps == 9:
            write_width(s)
        return 1.0, False, False


class HalfShown(Sound):
    """Leaves the second soldier's feature as it was in an earlier step, or an earlier episode."""

    def observe(s: Any, obs: Any) -> None:
        obs.n.Foot_Soldier = 2
        obs.Foot_Soldier[0, 0] = s.pos
        obs.global_features[0] = s.steps


class TimeNotShown(Sound):
    def observe(s: Any, obs: Any) -> None:
        obs.n.Foot_Soldier = 1
        obs.Foot_Soldier[0, 0] = s.pos


class ListedTwice(Sound):
    actions = {"Move": Categorical(["left", "right"], max_actors=2)}

    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        return 1.0, False, False

    def observe(s: Any, obs: Any) -> None:
        obs.n.Foot_Soldier = 1
        obs.Foot_Soldier[0, 0] = s.pos
        obs.global_features[0] = s.steps
        obs.n.Move = 2
        obs.Move.actors[0] = 0
        obs.Move.actors[1] = 0


class ForgetsNobody(Sound):
    """Marks the enemy that was selected, and the last one where nobody was."""

    actions = {"Shoot Enemy": SelectEntity(actors="Foot Soldier", actees="Enemy", nobody=True)}

    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        s.grid[act.Shoot_Enemy[0]] = 1
        return 1.0, False, False

    def observe(s: Any, obs: Any) -> None:
        obs.n.Foot_Soldier = 1
        obs.Foot_Soldier[0, 0] = s.pos
        obs.n.Enemy = 2
        obs.Enemy[0, 0] = 0.0
        obs.Enemy[1, 0] = 1.0
        obs.global_features[0] = s.steps


class AsksForNobody(ForgetsNobody):
    """Indexes only with what is there."""

    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        if act.Shoot_Enemy[0] >= 0:
            s.grid[act.Shoot_Enemy[0]] = 1
        return 1.0, False, False


class ForgetsTheEmptySet(CompiledEnvironment):
    """Pays the share of even numbers among many marbles that are picked, and what is a share of nothing?"""

    entities = {"Hand": Entity([], max=1), "Marble": Entity([], max=500)}
    actions = {"Pick": SelectEntities(actors="Hand", actees="Marble")}
    state = [("bag", np.int64, (499,))]
    max_steps = 20

    def reset(s: Any) -> None:
        pass

    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        picked, even = 0, 0
        for k in range(500):
            picked += act.Pick[0, k]
            even += act.Pick[0, k] * (k % 2)
        return float(even) / float(picked), False, False

    def observe(s: Any, obs: Any) -> None:
        obs.n.Hand = 1
        obs.n.Marble = 500


class ForgetsTheFullSet(ForgetsTheEmptySet):
    """Has a bag for all marbles but one."""

    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        picked = 0
        for k in range(500):
            if act.Pick[0, k] > 0:
                s.bag[picked] = k
                picked += 1
        return float(picked), False, False


class TakesSetForNumber(ForgetsTheEmptySet):
    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        return 1.0 if act.Pick[0] > 0 else 0.0, False, False


class NoMaskOfPairs(ForgetsTheEmptySet):
    def observe(s: Any, obs: Any) -> None:
        obs.n.Hand = 1
        obs.n.Marble = 500
        obs.Pick.mask[0, 0] = False
