"""A world with every kind of action, that shows in its global features what it was told to do."""

from collections.abc import Mapping
from typing import Any

from entity_gym import (
    Action,
    CategoricalActionMask,
    CategoricalActionSpace,
    ContinuousActionMask,
    ContinuousActionSpace,
    Entity,
    Environment,
    GlobalCategoricalActionMask,
    GlobalCategoricalActionSpace,
    Observation,
    ObsSpace,
    SelectEntitiesActionMask,
    SelectEntitiesActionSpace,
    SelectEntityActionMask,
    SelectEntityActionSpace,
)

TOLD = ["moved 0", "moved 1", "aimed 0", "aimed 1", "turned", "pushed", "rang"]
NOBODY = -1.0


class Workshop(Environment):
    """Two robots that move and aim at balls or nobody, of whom the first pushes; the frame rings a bell.

    Args:
        length: steps of an episode.
        breaks_at: step at which it raises an exception.
    """

    def __init__(self, length: int = 3, breaks_at: int = -1) -> None:
        self.length, self.breaks_at = length, breaks_at
        self.step = 0
        self.told = [0.0] * len(TOLD)

    def obs_space(self) -> ObsSpace:
        return ObsSpace({"Ball": Entity(["x", "y"]), "Robot": Entity(["x", "y"])}, TOLD)

    def action_space(self) -> dict[str, Any]:
        return {
            "move": CategoricalActionSpace(["left", "jump", "right"]),
            "aim": SelectEntityActionSpace(nobody=True),
            "push": ContinuousActionSpace([float("-inf"), 0.0], [float("inf"), 1.0], ["turn", "force"]),
            "ring": GlobalCategoricalActionSpace(["no", "yes"]),
        }

    def reset(self) -> Observation:
        self.step = 0
        self.told = [0.0] * len(TOLD)
        return self._observe()

    def act(self, actions: Mapping[str, Action]) -> Observation:
        self.step += 1
        if self.step == self.breaks_at:
            raise ValueError("the workshop burns")
        move, aim, push, ring = (actions[name] for name in ("move", "aim", "push", "ring"))
        aimed = [NOBODY if ball is None else float(ball[1:]) for ball in aim.actees]  # type: ignore[union-attr]
        numbers = [float(value) for value in push.values[0]]  # type: ignore[union-attr]
        moved = [float(value) for value in move.actions]  # type: ignore[union-attr]
        self.told = [*moved, *aimed, *numbers, float(ring.action)]  # type: ignore[union-attr]
        return self._observe()

    def _observe(self) -> Observation:
        done = self.step == self.length
        offers = {
            "move": CategoricalActionMask(actor_types=["Robot"], mask=[[True, False, True], [True, True, True]]),
            "aim": SelectEntityActionMask(
                actor_types=["Robot"], actee_types=["Ball"], mask=[[True, True, False], [True, True, True]]
            ),
            "push": ContinuousActionMask(actor_ids=["r0"]),
            "ring": GlobalCategoricalActionMask(),
        }
        return Observation(
            features={"Ball": [[0, 0], [4, 0], [0, 4]], "Robot": [[2, 2], [4, 4]]},
            ids={"Ball": ["b0", "b1", "b2"], "Robot": ["r0", "r1"]},
            global_features=self.told,
            actions={} if done else offers,
            reward=float(self.step),
            done=done,
            end_of_episode_info={"bells": 7} if done else None,
        )

    def state(self) -> dict[str, Any]:
        return {"step": self.step, "told": list(self.told)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.step, self.told = state["step"], list(state["told"])


class Depot(Environment):
    """Three robots select balls in every step: the first loads up to two in an order, but not the third ball; the second paints
    at least one; to the third none are open.

    The global features are what they were told: the load's number of each place, and whether each ball is painted.
    """

    def obs_space(self) -> ObsSpace:
        told = ["loaded first", "loaded second", "painted 0", "painted 1", "painted 2"]
        return ObsSpace({"Ball": Entity(["x", "y"]), "Robot": Entity(["x", "y"])}, told)

    def action_space(self) -> dict[str, Any]:
        return {
            "load": SelectEntitiesActionSpace(max=2, ordered=True),
            "paint": SelectEntitiesActionSpace(min=1),
        }

    def reset(self) -> Observation:
        return self._observe([NOBODY, NOBODY, 0.0, 0.0, 0.0])

    def act(self, actions: Mapping[str, Any]) -> Observation:
        load, paint = actions["load"], actions["paint"]
        loaded = [float(ball[1:]) for ball in load.actees[0]]
        painted, nothing = paint.actees
        assert nothing == []
        return self._observe([*loaded, *[NOBODY] * (2 - len(loaded)), *(float(f"b{k}" in painted) for k in range(3))])

    def _observe(self, told: list[float]) -> Observation:
        none = [False] * 3
        return Observation(
            features={"Ball": [[0, 0], [4, 0], [0, 4]], "Robot": [[2, 2], [4, 4], [2, 4]]},
            ids={"Ball": ["b0", "b1", "b2"], "Robot": ["r0", "r1", "r2"]},
            global_features=told,
            actions={
                "load": SelectEntitiesActionMask(actor_ids=["r0"], actee_types=["Ball"], mask=[[True, True, False]]),
                "paint": SelectEntitiesActionMask(
                    actor_ids=["r1", "r2"], actee_types=["Ball"], mask=[[True] * 3, none]
                ),
            },
        )

    def state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Nothing is kept from step to step."""
