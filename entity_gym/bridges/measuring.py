"""Room for entities and actors in padded arrays, measured by playing random episodes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from entity_gym.actions.choices import random_actions
from entity_gym.pools.pool import SlotVecEnv

#: What is played: so many episodes, or so many steps if these are fewer.
EPISODES, STEPS = 50, 20_000


class Room(NamedTuple):
    """The most entities of each type, and the most actors of each action, in one frame; at least 1.

    Attributes:
        entities: entity type -> number.
        actors: action -> number, without global actions.
        episodes: episodes that were played to their end.
        steps: steps that were played.
    """

    entities: dict[str, int]
    actors: dict[str, int]
    episodes: int
    steps: int

    def __str__(self) -> str:
        return f"max_entities={self.entities}, max_actors={self.actors}"


def measure_room(pool: SlotVecEnv, seed: int) -> Room:
    """Play random episodes, and return the largest numbers of entities and actors that were shown.

    Args:
        pool: one environment, without autoreset.
        seed: of the environment and of the actions.
    """
    space = pool.action_space()
    entities = dict.fromkeys(pool.obs_space().entities, 1)
    actors = {name: 1 for name, each in space.items() if not each.is_global}
    rng = np.random.default_rng(seed)
    obs, episodes, steps = pool.reset(seed), 0, 0
    while True:
        for name in entities:
            entities[name] = max(entities[name], int(obs.features[name].items()))
        for name in actors:
            actors[name] = max(actors[name], int(obs.action_masks[name].actors.items()))
        if episodes == EPISODES or steps >= STEPS:
            return Room(entities, actors, episodes, steps)
        if obs.done.any():
            episodes += 1
            obs = pool.reset()
        else:
            obs, steps = pool.act(random_actions(obs, rng, space)), steps + 1
