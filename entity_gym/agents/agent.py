"""Agents for programs that own their main loop: the program asks for actions, and not the other way round.

    while True:
        obs = Obs(Move, score=game.score, entities=[*game.foods], actors=[game.head])
        move = agent.act(obs)
        if move is None:        # the trainer has what it needs
            return
        game.step(move)
        if game.is_over:
            agent.game_over(Obs(Move, score=game.score))
            game.restart()

The same loop trains (`entity_gym.agents.train_agent`), plays a trained policy (`enn_ppo.agent.load_agent`), and plays at
random (`random_agent`). Entities are dataclasses (`entity_gym.agents.features`), actions are Enums or dataclasses of Enums
(`entity_gym.agents.choices`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import CategoricalActionMask
from entity_gym.actions.reading import EntityID
from entity_gym.agents.choices import Choices, choices_of
from entity_gym.agents.features import EntityType, entity_type
from entity_gym.environment import Observation
from entity_gym.pools.slots import check_seed
from entity_gym.spaces import LARGEST_FLOAT32

A = TypeVar("A")


class Obs(Generic[A]):
    """What a program shows when it asks for an action.

    Args:
        action: what is asked for: an Enum, or a dataclass of Enums.
        score: of the game so far. When training, the reward is how much it changed since the observation before; the first
            of a game is rewarded with 0.
        entities: dataclass objects that do not act, of any types in any order.
        actors: those that act, one action each; they are entities as well. None at all: nobody acts now.
        metrics: numbers to be reported, by name.
        allowed: of each actor, the actions open to it, at least one. None: all.

    Raises:
        ValueError: something is not as it must be.
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
        self.action = action
        self.choices: Choices[A] = choices_of(action)
        if (
            isinstance(score, bool)
            or not isinstance(score, int | float | np.number)
            or not abs(score) <= LARGEST_FLOAT32
        ):
            raise ValueError(f"Obs: score is {score!r}; it must be a finite number that float32 can hold")
        self.score = float(score)
        self.entities = _listed(entities, "entities")
        self.actors = _listed(actors, "actors")
        self.metrics = dict(metrics or {})
        for name, value in self.metrics.items():
            if not _is_finite(value):
                raise ValueError(f"Obs: metrics[{name!r}] is {value!r:.200}; it must be a finite number")
        self.allowed = None if allowed is None else _listed(allowed, "allowed")
        if self.allowed is not None and len(self.allowed) != len(self.actors):
            raise ValueError(
                f"Obs: allowed has {len(self.allowed)} collections of actions for {len(self.actors)} actors"
            )

    def mask(self) -> NDArray[np.bool_] | None:
        """(number of actors, number of choices), true where a choice is open; None: everything is."""
        if self.allowed is None:
            return None
        mask = np.zeros((len(self.actors), len(self.choices.labels)), np.bool_)
        for row, allowed in enumerate(self.allowed):
            if not isinstance(allowed, Collection):
                raise ValueError(
                    f"Obs: allowed[{row}] is {allowed!r:.200}; it must be a collection of actions, one for each actor"
                )
            for choice in allowed:
                mask[row, self.choices.index(choice)] = True
            if not len(allowed):
                raise ValueError(f"Obs: no action is allowed to actor {row}; leave one open, or leave the actor out")
        return mask

    def types(self) -> dict[str, EntityType]:
        """The types of its entities by name.

        Raises:
            ValueError: an entity is no dataclass object, or two types have the same name.
        """
        classes = dict.fromkeys(type(each) for each in (*self.entities, *self.actors))
        types: dict[str, EntityType] = {}
        for cls in classes:
            if issubclass(cls, type):
                given = next(each for each in (*self.entities, *self.actors) if type(each) is cls)
                raise ValueError(f"Obs: {given!r} is a class, and no entity; give an object of it")
            known = entity_type(cls)
            if known.name in types:
                raise ValueError(f"Obs: two types of entity are called {known.name!r}; rename one")
            types[known.name] = known
        return types

    def to_observation(self, reward: float = 0.0, *, done: bool = False, truncated: bool = False) -> Observation:
        """The same as an environment shows it. The ids of actors are 0, 1, ..., and other entities have none.

        Raises:
            ValueError: an entity, a metric or `allowed` is not as it must be.
        """
        members: dict[str, list[object]] = {name: [] for name in self.types()}
        ids: dict[str, list[EntityID | None]] = {}
        for each in self.entities:
            members[type(each).__name__].append(each)
        for number, each in enumerate(self.actors):
            name = type(each).__name__
            ids.setdefault(name, [None] * len(members[name])).append(number)
            members[name].append(each)
        offered = CategoricalActionMask(actor_ids=range(len(self.actors)), mask=self.mask())
        return Observation(
            features={name: entity_type(type(objects[0])).rows(objects) for name, objects in members.items()},
            ids=ids,
            actions={} if done else {self.choices.name: offered},
            reward=reward,
            done=done,
            truncated=truncated,
            metrics=self.metrics,
        )


def check_obs(obs: object) -> None:
    """Raise a ValueError for what agents are not shown."""
    if not isinstance(obs, Obs):
        raise ValueError(f"{obs!r:.200} is no Obs; agents are shown Obs(Move, score=..., entities=[...], actors=[...])")


def _listed(given: Any, name: str) -> list[Any]:
    try:
        return list(given)
    except TypeError:
        raise ValueError(f"Obs: {name} is {given!r:.200}; it must be a list") from None


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except TypeError:
        return False


class Handle(ABC, Generic[A]):
    """Actions that were asked for, and may not be there yet."""

    def __init__(self, obs: Obs[A]) -> None:
        self._obs = obs

    def receive(self) -> A | None:
        """Wait for the action of the only actor; None: the trainer is gone, and the program must leave.

        Raises:
            ValueError: there is not exactly one actor.
        """
        if len(self._obs.actors) != 1:
            raise ValueError(
                f"act: the observation has {len(self._obs.actors)} actors; it must have exactly one, or use act_each"
            )
        actions = self.receive_each()
        return None if actions is None else actions[0]

    @abstractmethod
    def receive_each(self) -> list[A] | None:
        """Wait for the actions of all actors, in their order. Called again, it returns the same."""


class Ready(Handle[A]):
    """Actions that are there already."""

    def __init__(self, obs: Obs[A], actions: list[A]) -> None:
        super().__init__(obs)
        self._actions = actions

    def receive_each(self) -> list[A] | None:
        return self._actions


class Agent(ABC):
    """Who decides.

    Only those of `enn_ppo.agent.load_agent` can say why: they have `decide` and `news` as well.
    """

    @abstractmethod
    def act_async(self, obs: Obs[A]) -> Handle[A]:
        """Hand in an observation; the actions are received later.

        Several agents of one world hand in all their observations before any action is received. `obs` and the objects in it
        may be changed as soon as this returns.
        """

    def act(self, obs: Obs[A]) -> A | None:
        """The action of the only actor in `obs`; None: the trainer is gone, and the program must leave.

        Raises:
            ValueError: there is not exactly one actor, or something in `obs` is not as it must be.
        """
        check_obs(obs)
        if len(obs.actors) != 1:
            raise ValueError(
                f"act: the observation has {len(obs.actors)} actors; it must have exactly one, or use act_each"
            )
        return self.act_async(obs).receive()

    def act_each(self, obs: Obs[A]) -> list[A] | None:
        """The actions of all actors in `obs`, in their order; None: the trainer is gone, and the program must leave."""
        return self.act_async(obs).receive_each()

    def game_over(self, obs: Obs[A], *, truncated: bool = False) -> None:
        """Say that the game has ended, and how.

        Args:
            obs: with the final score. Nobody acts on it, so actors may be left out.
            truncated: whether it was cut short (a time limit) and did not end by its own rules; then show all entities.

        Raises:
            ValueError: `obs` is none.
        """
        check_obs(obs)  # most need not know more


class RandomAgent(Agent):
    """Takes any action that is open, all of them equally likely; see `random_agent`."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def act_async(self, obs: Obs[A]) -> Handle[A]:
        check_obs(obs)
        mask, num_choices = obs.mask(), len(obs.choices.labels)
        obs.to_observation()  # what could not be learned from is refused here as well
        if mask is None:
            picked = self._rng.integers(num_choices, size=len(obs.actors)).tolist()
        else:
            picked = [int(self._rng.choice(np.flatnonzero(row))) for row in mask]
        return Ready(obs, [obs.choices.pick(index) for index in picked])


def random_agent(seed: int = 0) -> Agent:
    """An agent that takes any action that is open; the same seed plays the same.

    Raises:
        ValueError: the seed is no whole number of at least 0.
    """
    check_seed(seed)
    return RandomAgent(seed)
