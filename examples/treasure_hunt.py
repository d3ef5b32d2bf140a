"""A complete environment in plain Python: TreasureHunt, of which the package has a compiled version.

python -m enn_ppo.train env=custom env.id=examples.treasure_hunt:PythonTreasureHunt total_timesteps=200000
python -m entity_gym.play examples.treasure_hunt:PythonTreasureHunt
python -m entity_gym.check examples.treasure_hunt:PythonTreasureHunt
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from entity_gym import (
    Action,
    ActionSpace,
    Entity,
    Environment,
    GlobalCategoricalAction,
    GlobalCategoricalActionMask,
    GlobalCategoricalActionSpace,
    Observation,
    ObsSpace,
)

STEPS = {"up": (0, 1), "down": (0, -1), "left": (-1, 0), "right": (1, 0)}


class PythonTreasureHunt(Environment):
    """A player collects treasures and avoids traps. The rules are those of `entity_gym.envs.treasure_hunt.TreasureHunt`.

    Args:
        num_traps: from 0 to 16.
        num_treasures: from 1 to 16.
        max_steps: steps after which an episode is truncated.
    """

    def __init__(self, num_traps: int = 5, num_treasures: int = 5, max_steps: int = 100) -> None:
        if not 0 <= num_traps <= 16 or not 1 <= num_treasures <= 16 or max_steps < 1:
            raise ValueError(
                f"PythonTreasureHunt: num_traps={num_traps}, num_treasures={num_treasures}, max_steps={max_steps}; "
                "they must be from 0 to 16, from 1 to 16, and at least 1"
            )
        self.num_traps = num_traps
        self.num_treasures = num_treasures
        self.max_steps = max_steps
        self.player = (0, 0)
        self.traps: list[tuple[int, int]] = []
        self.treasures: list[tuple[int, int]] = []
        self.steps = 0

    def obs_space(self) -> ObsSpace:
        return ObsSpace(
            global_features=["x_pos", "y_pos"],
            entities={"Trap": Entity(["x_pos", "y_pos"]), "Treasure": Entity(["x_pos", "y_pos"])},
        )

    def action_space(self) -> Mapping[str, ActionSpace]:
        # A global action belongs to the environment and needs no actor.
        return {"move": GlobalCategoricalActionSpace(["up", "down", "left", "right"])}

    def reset(self) -> Observation:
        self.steps = 0
        self.player = (0, 0)
        squares = [(x, y) for x in range(-5, 6) for y in range(-5, 6) if (x, y) != self.player]
        chosen = self.rng.permutation(len(squares))[: self.num_traps + self.num_treasures].tolist()
        self.traps = [squares[i] for i in chosen[: self.num_traps]]
        self.treasures = [squares[i] for i in chosen[self.num_traps :]]
        return self.observe()

    def act(self, actions: Mapping[str, Action]) -> Observation:
        move = actions["move"]
        assert isinstance(move, GlobalCategoricalAction)
        dx, dy = STEPS[move.label]
        x, y = self.player
        self.player = (min(max(x + dx, -10), 10), min(max(y + dy, -10), 10))
        self.steps += 1

        reward = 0.0
        if self.player in self.treasures:
            self.treasures.remove(self.player)
            reward = 1.0
        return self.observe(reward)

    def observe(self, reward: float = 0.0) -> Observation:
        ended = not self.treasures or self.player in self.traps
        truncated = not ended and self.steps == self.max_steps
        done = ended or truncated
        return Observation(
            global_features=self.player,
            features={"Trap": self.traps, "Treasure": self.treasures},
            actions={} if done else {"move": GlobalCategoricalActionMask()},
            reward=reward,
            done=done,
            truncated=truncated,
            end_of_episode_info={"treasures_left": len(self.treasures)} if done else None,
        )

    def state(self) -> dict[str, Any]:
        return {"player": self.player, "traps": self.traps, "treasures": self.treasures, "steps": self.steps}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.player = tuple(state["player"])
        self.traps = [(x, y) for x, y in state["traps"]]
        self.treasures = [(x, y) for x, y in state["treasures"]]
        self.steps = state["steps"]
