"""Worlds that replays are made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from entity_gym import CategoricalActionMask, CategoricalActionSpace, Entity, Environment, Observation, ObsSpace


class Rooms(Environment):
    """A guest walks through rooms in a row to the last one; it ends after `size` steps."""

    def __init__(self, size: int = 3, broken: bool = False) -> None:
        self.size, self.broken = size, broken

    def obs_space(self) -> ObsSpace:
        return ObsSpace({"Guest": Entity(["room"])})

    def action_space(self) -> dict[str, Any]:
        return {"walk": CategoricalActionSpace(["on", "stay"])}

    def reset(self) -> Observation:
        self.room = self.steps = 0
        return self.observe()

    def act(self, actions: Mapping[str, Any]) -> Observation:
        self.room += int(actions["walk"].actions[0] == 0)
        self.steps += 1
        return self.observe()

    def observe(self) -> Observation:
        return Observation(
            features={"Guest": [[self.room]]},
            ids={"Guest": ["the guest"]},
            actions={"walk": CategoricalActionMask(actor_ids=["the guest"])},
            reward=0.1 * self.room,
            done=self.steps == self.size,
            end_of_episode_info={"reached": self.room},
        )

    def draw(self) -> dict[str, Any]:
        if self.broken:
            raise KeyError("door")
        return {"bounds": [0, 0, self.size, 1]}
