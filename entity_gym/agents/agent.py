"""Agents for programs that own their main loop: the program asks the agent for actions.

    while True:
        obs = Obs(Move, score=game.score, entities=[*game.foods], actors=[game.head])
        move = agent.act(obs)
        if move is None:        # the trainer is done
            return
        game.step(move)
        if game.is_over:
            agent.game_over(Obs(Move, score=game.score))
            game.restart()

The same loop trains (`entity_gym.agents.train_env`), plays a trained policy (`enn_ppo.load_agent`), and plays at random
(`random_agent`). Entities are dataclasses, actions are Enums or dataclasses of Enums (`entity_gym.agents.schema`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import CategoricalActionMask
from entity_gym.actions.reading import EntityID
from entity_gym.agents.schema import Choices, EntityType, choices_of, entity_type
from entity_gym.environment import Observation
from entity_gym.errors import check_whole
from entity_gym.spaces import LARGEST_FLOAT32

A = TypeVar("A")


class Obs(Generic[A]):
    """The observation that a program shows when it asks for actions.

    Args:
        action: the class of the actions asked for: an Enum, or a dataclass of Enums.
        score: the game's score so far. In training the reward is the change since the observation before; the first
            observation of a game has reward 0.
        entities: dataclass objects that do not act, of any types in any order.
        actors: the entities that act, one action each. May be empty: nobody acts now.
        metrics: numbers to log, by name.
        allowed: the actions open to each actor, at least one. None: all actions are open to all actors.

    Raises:
        ValueError: an argument is invalid.
    """

    def __init__(
        self,
        action: type[A],
        *,
        score: float,
        entities: Iterable[object] = (),
        actors: Iterable[object] = (),
        metrics: Mapping[str, float] | None = None,
        allowed: Sequence[Collection[A]] | None = None,
    ) -> None:
        self.choices: Choices[A] = choices_of(action)
        is_number = isinstance(score, int | float | np.number) and not isinstance(score, bool)
        if not is_number or not abs(score) <= LARGEST_FLOAT32:
            raise ValueError(f"Obs: score is {score!r}; it must be a finite number that float32 can hold")
        for name, given in (
            ("entities", entities),
            ("actors", actors),
            ("allowed", () if allowed is None else allowed),
        ):
            if not isinstance(given, Iterable):
                raise ValueError(f"Obs: {name} is {given!r:.200}; it must be a list")
        self.score = float(score)
        self.entities, self.actors = list(entities), list(actors)
        self.metrics = dict(metrics or {})
        self.allowed = None if allowed is None else list(allowed)
        if self.allowed is not None and len(self.allowed) != len(self.actors):
            raise ValueError(
                f"Obs: allowed has {len(self.allowed)} collections of actions for {len(self.actors)} actors"
            )

    def mask(self) -> NDArray[np.bool_] | None:
        """Return the open choices, shape (number of actors, number of choices); None if all are open."""
        if self.allowed is None:
            return None
        mask = np.zeros((len(self.actors), len(self.choices.labels)), np.bool_)
        for row, allowed in enumerate(self.allowed):
            if not isinstance(allowed, Collection) or not len(allowed):
                raise ValueError(
                    f"Obs: allowed[{row}] is {allowed!r:.200}; it must be a collection of actions, at least one for each actor"
                )
            for choice in allowed:
                mask[row, self.choices.index(choice)] = True
        return mask

    def types(self) -> dict[str, EntityType]:
        """Return the types of all entities by name.

        Raises:
            ValueError: an entity is no dataclass object, or two types have the same name.
        """
        types: dict[str, EntityType] = {}
        for cls in dict.fromkeys(map(type, (*self.entities, *self.actors))):
            known = entity_type(cls)
            if known.name in types:
                raise ValueError(f"Obs: two types of entity are called {known.name!r}; rename one")
            types[known.name] = known
        return types

    def to_observation(self, reward: float = 0.0, *, done: bool = False, truncated: bool = False) -> Observation:
        """Return the observation in an environment's form. Actors have the ids 0, 1, ...; other entities have none.

        Raises:
            ValueError: an entity or `allowed` is invalid.
        """
        types = self.types()
        objects: dict[str, list[object]] = {name: [] for name in types}
        for each in self.entities:
            objects[type(each).__name__].append(each)
        ids: dict[str, list[EntityID | None]] = {}
        for number, actor in enumerate(self.actors):
            name = type(actor).__name__
            ids.setdefault(name, [None] * len(objects[name])).append(number)
            objects[name].append(actor)
        offered = CategoricalActionMask(actor_ids=range(len(self.actors)), mask=self.mask())
        return Observation(
            features={name: list(map(types[name].row, members)) for name, members in objects.items()},
            ids=ids,
            actions={} if done else {self.choices.name: offered},
            reward=reward,
            done=done,
            truncated=truncated,
            metrics=self.metrics,
        )


def check_obs(obs: object) -> None:
    """Raise a ValueError unless `obs` is an `Obs`."""
    if not isinstance(obs, Obs):
        raise ValueError(f"{obs!r:.200} is no Obs; agents are shown Obs(Move, score=..., entities=[...], actors=[...])")


class Agent(ABC):
    """Decides for the actors of a program. Agents of `enn_ppo.load_agent` also have `decide` and `news`."""

    @abstractmethod
    def act_each(self, obs: Obs[A]) -> list[A] | None:
        """Return the actions of all actors in `obs`, in their order; None: the trainer is gone, and the program must return."""

    def act(self, obs: Obs[A]) -> A | None:
        """Return the action of the only actor in `obs`; None: the trainer is gone, and the program must return.

        Raises:
            ValueError: there is not exactly one actor, or `obs` is invalid.
        """
        check_obs(obs)
        if len(obs.actors) != 1:
            raise ValueError(
                f"act: the observation has {len(obs.actors)} actors; it must have exactly one, or use act_each"
            )
        actions = self.act_each(obs)
        return None if actions is None else actions[0]

    def game_over(self, obs: Obs[A], *, truncated: bool = False) -> None:
        """End the game.

        Args:
            obs: the last observation, with the final score. Nobody acts on it, so actors may be left out.
            truncated: a limit cut the game short, and it did not end by its own rules; then `obs` needs all entities, since
                its value is estimated.

        Raises:
            ValueError: `obs` is no observation.
        """
        check_obs(obs)


class _RandomAgent(Agent):
    def __init__(self, seed: int) -> None:
        check_whole(seed, "seed", 0)
        self._rng = np.random.default_rng(seed)

    def act_each(self, obs: Obs[A]) -> list[A]:
        check_obs(obs)
        obs.to_observation()  # refuses entities that training refuses
        mask = obs.mask()
        if mask is None:
            mask = np.ones((len(obs.actors), len(obs.choices.labels)), np.bool_)
        return [obs.choices.pick(int(self._rng.choice(np.flatnonzero(row)))) for row in mask]


def random_agent(seed: int = 0) -> Agent:
    """Return an agent that picks an open action for each actor, uniformly at random; the same seed picks the same.

    Raises:
        ValueError: the seed is no integer of at least 0.
    """
    return _RandomAgent(seed)
