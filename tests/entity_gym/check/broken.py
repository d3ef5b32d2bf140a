"""A world that is as it must be, and worlds that each have one thing wrong, for the tests of the test kit."""

import os
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from entity_gym import (
    Action,
    ActionSpace,
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    Environment,
    Observation,
    ObsSpace,
    SelectEntitiesActionMask,
    SelectEntitiesActionSpace,
    SelectEntityActionMask,
    SelectEntityActionSpace,
)


class Walk(Environment):
    """A walker between walls wants to get to the right end. Nothing is wrong with it."""

    def __init__(self, size: int = 6, max_steps: int = 10) -> None:
        self.size = size
        self.max_steps = max_steps
        self.x = self.steps = 0

    def obs_space(self) -> ObsSpace:
        return ObsSpace({"Walker": Entity(["x"]), "Wall": Entity(["x"])})

    def action_space(self) -> Mapping[str, ActionSpace]:
        return {"step": CategoricalActionSpace(["left", "right", "stay"]), "look at": SelectEntityActionSpace()}

    def reset(self) -> Observation:
        self.x = int(self.rng.integers(1, self.size - 1))
        self.steps = 0
        return self.observe()

    def act(self, actions: Mapping[str, Action]) -> Observation:
        self.x += (-1, 1, 0)[int(actions["step"].actions[0])]
        self.steps += 1
        return self.observe()

    def observe(self) -> Observation:
        won, cut = self.x == self.size - 1, self.steps == self.max_steps
        return Observation(
            features={"Walker": np.array([[self.x]], np.float32), "Wall": [[0], [self.size]]},
            ids={"Walker": ["walker"], "Wall": ["left", "right"]},
            actions={
                "step": CategoricalActionMask(actor_ids=["walker"], mask=[[self.x > 1, True, True]]),
                "look at": SelectEntityActionMask(
                    actor_ids=["walker"], actee_types=["Wall"], mask=[[True, self.x > 2]]
                ),
            },
            reward=float(won),
            done=won or cut,
            truncated=cut and not won,
            end_of_episode_info={"x": self.x} if won or cut else None,
        )

    def state(self) -> dict[str, Any]:
        return {"x": self.x, "steps": self.steps}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.x, self.steps = state["x"], state["steps"]

    def render(self) -> np.ndarray:
        image = np.zeros((4, 4 * self.size, 3), np.uint8)
        image[:, 4 * self.x : 4 * self.x + 4] = 255
        return image


def pretend_compiled() -> Any:
    """Makes what is no environment."""
    return "a world"


class RaisesInConstructor(Walk):
    def __init__(self) -> None:
        super().__init__()
        raise RuntimeError("no disk left")


class NoActions(Walk):
    def action_space(self) -> Mapping[str, ActionSpace]:
        return {}


class RaisesInReset(Walk):
    def reset(self) -> Observation:
        return self.observations[0]


class RaisesInAct(Walk):
    def act(self, actions: Mapping[str, Action]) -> Observation:
        if self.steps == 3:
            self.x //= 0
        return super().act(actions)


class ShowsNaN(Walk):
    def act(self, actions: Mapping[str, Action]) -> Observation:
        obs = super().act(actions)
        obs.features["Walker"][0, 0] = np.nan
        return obs


class NobodyActs(Walk):
    def act(self, actions: Mapping[str, Action]) -> Observation:
        self.steps += 1
        return self.observe()

    def observe(self) -> Observation:
        obs = super().observe()
        obs.actions = {}
        return obs


class Unseeded(Walk):
    def reset(self) -> Observation:
        super().reset()
        self.x = int(np.random.default_rng().integers(1, 5))
        return self.observe()


class PythonRandom(Walk):
    def reset(self) -> Observation:
        super().reset()
        self.x = random.randint(1, 4)
        return self.observe()


class NothingRandom(Walk):
    def reset(self) -> Observation:
        super().reset()
        self.x = 2
        return self.observe()


class CarriesOver(Walk):
    def reset(self) -> Observation:
        steps, obs = self.steps, super().reset()
        self.steps = steps % self.max_steps
        return obs


class Shares(Walk):
    episodes: ClassVar[list[int]] = []

    def reset(self) -> Observation:
        super().reset()
        self.episodes.append(self.x)
        self.x = 1 + len(self.episodes) % 4
        return self.observe()

    @property
    def rng(self) -> np.random.Generator:
        return super().rng

    @rng.setter
    def rng(self, rng: np.random.Generator) -> None:
        self.episodes.clear()
        self._rng = rng


class NeverEnds(Walk):
    def __init__(self) -> None:
        super().__init__(size=1000, max_steps=-1)


class CutUnderAnotherName(Walk):
    patience = 7

    def __init__(self) -> None:
        super().__init__(max_steps=-1)

    def act(self, actions: Mapping[str, Action]) -> Observation:
        obs = super().act(actions)
        obs.done = obs.done or self.steps == self.patience
        return obs


class ForgetsNobody(Walk):
    """Counts how often each of many walls is looked at, and forgets that the walker may look at nobody."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = dict.fromkeys(range(500), 0)

    def action_space(self) -> Mapping[str, ActionSpace]:
        return {**super().action_space(), "look at": SelectEntityActionSpace(nobody=True)}

    def act(self, actions: Mapping[str, Action]) -> Observation:
        self.looks[actions["look at"].actees[0]] += 1
        return super().act(actions)

    def observe(self) -> Observation:
        obs = super().observe()
        obs.features["Wall"], obs.ids["Wall"] = np.zeros((500, 1), np.float32), list(range(500))
        obs.actions["look at"].mask = None
        return obs


class Gather(Walk):
    """Earns the numbers of the walls that the walker gathers, in order. Nothing is wrong with it."""

    num_walls = 4

    def action_space(self) -> Mapping[str, ActionSpace]:
        return {
            **super().action_space(),
            "gather": SelectEntitiesActionSpace(ordered=True),
            "look at": SelectEntitiesActionSpace(min=1, max=2),
        }

    def act(self, actions: Mapping[str, Action]) -> Observation:
        obs = super().act(actions)
        obs.reward += self.worth(actions["gather"].actees[0])
        return obs

    def worth(self, gathered: Sequence[int]) -> float:
        return sum(wall / (1 + place) for place, wall in enumerate(gathered))

    def observe(self) -> Observation:
        obs = super().observe()
        obs.features["Wall"], obs.ids["Wall"] = np.zeros((self.num_walls, 1), np.float32), list(range(self.num_walls))
        obs.actions["gather"] = SelectEntitiesActionMask(actor_ids=["walker"], actee_types=["Wall"])
        is_open = (np.arange(self.num_walls) + self.x)[None] % 2 == 0
        obs.actions["look at"] = SelectEntitiesActionMask(actor_ids=["walker"], actee_types=["Wall"], mask=is_open)
        return obs


class MasksAllEntities(Gather):
    """Its mask has a column for the walker, too, who is not among the entities that may be gathered."""

    def observe(self) -> Observation:
        obs = super().observe()
        obs.actions["gather"].mask = np.ones((1, 1 + self.num_walls), bool)
        return obs


class OffersOneEntity(Gather):
    """Offers a set as if it was the selection of one entity."""

    def observe(self) -> Observation:
        obs = super().observe()
        obs.actions["gather"] = SelectEntityActionMask(actor_ids=["walker"], actee_types=["Wall"])
        return obs


class ForgetsTheEmptySet(Gather):
    num_walls = 500

    def worth(self, gathered: Sequence[int]) -> float:
        return float(gathered[0])


class OneObservation(Walk):
    """Returns one object for ever."""

    def __init__(self) -> None:
        super().__init__()
        self.shown = Observation()

    def observe(self) -> Observation:
        vars(self.shown).update(vars(super().observe()))
        return self.shown


class ShowsTheStateBefore(Walk):
    """Looks at the world before it steps, so that the end is seen a step too late."""

    track: Sequence[float] = [0.0] * 8

    def act(self, actions: Mapping[str, Action]) -> Observation:
        obs = self.observe()
        super().act(actions)
        obs.metrics = {"track": self.track[self.x]}
        return obs


class ForgetsToSave(Walk):
    def state(self) -> dict[str, Any]:
        return {"x": self.x, "steps": 0}


class RendersNothing(Walk):
    def render(self) -> np.ndarray:
        raise NotImplementedError


class DrawsForAnotherPurpose(Walk):
    def draw(self, canvas: Any) -> None:  # type: ignore[override]
        canvas.fill(0)


class SavesAnObject(Walk):
    def state(self) -> dict[str, Any]:
        return {**super().state(), "seen": {1, 2}}


class DrawsFloats(Walk):
    def render(self) -> np.ndarray:
        return super().render() / 255


class DrawsAndMoves(Walk):
    def render(self) -> np.ndarray:
        image = super().render()
        self.steps += self.rng.integers(2)
        return image


class HintsOfNothing(Walk):
    def draw(self) -> dict[str, Any]:
        return {"types": {"Wlaker": {}}}


class HangsStubbornly(Walk):
    """Hangs in a step, and no exception gets it out of there."""

    def act(self, actions: Mapping[str, Action]) -> Observation:
        while True:
            try:
                time.sleep(0.01)
            except BaseException:
                continue


class OtherInAnotherProcess(Walk):
    """Depends on which process it is in."""

    home = os.environ.setdefault("BROKEN_WORLDS_HOME", str(os.getpid()))

    def reset(self) -> Observation:
        super().reset()
        self.x = 2 + (self.home == str(os.getpid()))
        return self.observe()
