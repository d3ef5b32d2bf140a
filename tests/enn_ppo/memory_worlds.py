"""A world that needs memory, and small networks that have it, for tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from enn_ppo import EnvConfig, OptimConfig, RogueNetConfig, TrainConfig
from entity_gym import (
    Action,
    CategoricalAction,
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    Environment,
    Observation,
    ObsSpace,
)
from tests.enn_ppo.worlds import tiny_config


class Marks(Environment):
    """Two shells show their marks in the first step of an episode, and change places in every step; each says its mark.

    A right answer is worth 1/2, so the best reward of an episode is `steps`; without memory it is 1 + (steps - 1) / 2. Episodes
    end by a limit if the first two marks are the same, else by themselves.
    """

    def __init__(self, steps: int = 4) -> None:
        self.steps = steps

    def obs_space(self) -> ObsSpace:
        return ObsSpace({"Shell": Entity(["left", "right"]), "Table": Entity(["size"])}, global_features=["begins"])

    def action_space(self) -> dict[str, CategoricalActionSpace]:
        return {"Say": CategoricalActionSpace(("left", "right"))}

    def reset(self) -> Observation:
        self.step, self.marks, self.order = 0, self.rng.integers(2, size=2).tolist(), [0, 1]
        return self._observation(0.0)

    def act(self, actions: Mapping[str, Action]) -> Observation:
        said = actions["Say"]
        assert isinstance(said, CategoricalAction)
        right = sum(
            int(choice == self.marks[actor]) for actor, choice in zip(said.actors, said.actions.tolist(), strict=True)
        )
        self.step, self.order = self.step + 1, self.rng.permutation(2).tolist()
        return self._observation(right / 2)

    def _observation(self, reward: float) -> Observation:
        shown = [[0, 0]] * 2 if self.step else [[1 - self.marks[shell], self.marks[shell]] for shell in self.order]
        done = self.step == self.steps
        return Observation(
            features={"Shell": shown, "Table": [[1.0]]},
            global_features=[float(self.step == 0)],
            ids={"Shell": self.order},
            actions={"Say": CategoricalActionMask(actor_types=["Shell"])},
            reward=reward,
            done=done,
            truncated=done and self.marks[0] == self.marks[1],
        )

    def state(self) -> dict[str, Any]:
        return {name: vars(self)[name] for name in ("step", "marks", "order")}

    def load_state(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state)


MARKS = EnvConfig(id="tests.enn_ppo.memory_worlds:Marks")
#: Each army has two units, which have ids.
ARMIES = EnvConfig(
    id="Skirmish", kwargs={"num_units": 2, "opponent": 0, "width": 12, "num_obstacles": 0, "max_steps": 10}
)


def net(memory: Any = "entity", **changes: Any) -> RogueNetConfig:
    return RogueNetConfig(**{"d_model": 16, "n_layer": 1, "n_head": 2, "memory": memory} | changes)


def remembering(run_dir: Path | str, **changes: Any) -> TrainConfig:
    """A short run in `Marks`: 5 updates, some of which begin in the middle of episodes."""
    optim = OptimConfig(batch_size=16, epochs=2)
    return tiny_config(run_dir, **{"env": MARKS, "net": net(), "optim": optim} | changes)
