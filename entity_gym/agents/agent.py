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
(`random_agent`). Entities are objects of dataclasses, and an action is an Enum, or a `Selection` of entities:

    @dataclass
    class Head:
        x: int                  # a number
        facing: Facing          # an Enum with the members LEFT and RIGHT: Flag("facing.is_LEFT"), Flag("facing.is_RIGHT")
        alive: bool             # Flag("alive")
        _log: list[str]         # no feature: its name begins with an underscore

    class Move(Enum):           # an action with 3 choices: "LEFT", "STAY", "RIGHT"
        LEFT, STAY, RIGHT = range(3)

    class Grab(Selection, max=2):   # an action of which every choice is a list of up to 2 entities
        pass
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import Action, ActionSpace, CategoricalActionSpace, SelectEntitiesActionSpace
from entity_gym.actions.reading import EntityID
from entity_gym.batch.batching import batch_masks
from entity_gym.batch.frame import FrameReader
from entity_gym.environment import Observation
from entity_gym.errors import check_whole, nearest
from entity_gym.spaces import Entity, Feature, Flag, ObsSpace

A = TypeVar("A")

# ---- entity types are dataclasses, and actions are Enums


@functools.cache
def _fields_of(cls: Any) -> dict[str, Any]:
    """Return the types of a dataclass's fields by name, without those that begin with an underscore.

    Raises:
        ValueError: `cls` is no dataclass, or a field is neither a number nor an Enum; names the field.
    """
    if not isinstance(cls, type) or not dataclasses.is_dataclass(cls):
        raise ValueError(f"{cls!r:.200} is no dataclass, of which entities are objects")
    types = typing.get_type_hints(cls)
    kinds = {field.name: types[field.name] for field in dataclasses.fields(cls) if not field.name.startswith("_")}
    for name, kind in kinds.items():
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            _check_enum(kind, f"{cls.__name__}.{name}")
        elif not isinstance(kind, type) or not issubclass(kind, bool | int | float | np.number | np.bool_):
            raise ValueError(f"{cls.__name__}.{name} is of type {kind}; allowed: bool, int, float, or an Enum")
    return kinds


def _check_enum(kind: Any, where: str) -> None:
    is_enum = isinstance(kind, type) and issubclass(kind, enum.Enum) and not issubclass(kind, enum.Flag)
    if not is_enum or not list(kind):
        raise ValueError(
            f"{where} is {kind!r:.200}; it must be an Enum with members, and no Flag, whose members combine"
        )


@functools.cache
def entity_of(cls: Any) -> Entity:
    """Return the features of a dataclass's objects; raises ValueError if it has none."""
    features: list[Feature] = []
    for name, kind in _fields_of(cls).items():
        if issubclass(kind, enum.Enum):
            features += [Flag(f"{name}.is_{member.name}") for member in kind]
        else:
            features.append(Flag(name) if issubclass(kind, bool | np.bool_) else name)
    return Entity(features)


def row_of(each: object) -> list[Any]:
    """Return the features of an object. Numbers are checked where the observation is read.

    Raises:
        ValueError: a field is missing, or holds no member of its Enum; names the field.
    """
    row: list[Any] = []
    cls: Any = type(each)
    for name, kind in _fields_of(cls).items():
        value = getattr(each, name, None)
        if not issubclass(kind, enum.Enum):
            row.append(value)
        elif isinstance(value, kind):
            row += [float(value is member) for member in kind]
        else:
            allowed = ", ".join(map(str, kind))
            raise ValueError(f"{cls.__name__}.{name} is {value!r:.200}; it must be one of {allowed}")
    return row


class Selection(list[Any]):
    """Base of actions that select entities: `class Grab(Selection, max=2)`; what an actor chose is a list of the objects.

    Options of the class are `min`, `max` and `ordered` of `SelectEntitiesActionSpace`, and its others.

    Attributes:
        space: the action with these options.
    """

    space: ClassVar[SelectEntitiesActionSpace] = SelectEntitiesActionSpace()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__()
        cls.space = SelectEntitiesActionSpace(**options)


@functools.cache
def action_space_of(action: Any) -> ActionSpace:
    """Return the action of a `Selection`, or whose choices are the members of an Enum; raises ValueError for what is neither."""
    if isinstance(action, type) and issubclass(action, Selection):
        return action.space
    _check_enum(action, "the action")
    return CategoricalActionSpace([member.name for member in action])


# ---- observations


class Obs(Generic[A]):
    """The observation that a program shows when it asks for actions.

    Args:
        action: the Enum whose members are the actions, or a `Selection`.
        score: the game's score so far. In training the reward is the change since the observation before; the first
            observation of a game has reward 0.
        entities: dataclass objects that do not act, of any types in any order.
        actors: the entities that act, one action each. May be empty: nobody acts now.
        metrics: numbers to log, by name.
        allowed: the actions open to each actor, at least one; for a `Selection` the objects among `entities` and `actors` that
            each may select. None: all actions are open to all actors, and all of `entities` may be selected.

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
        allowed: Sequence[Collection[Any]] | None = None,
    ) -> None:
        self.space = action_space_of(action)  # type: ignore[arg-type]
        self.action = action
        self.score = float(score)
        self.entities, self.actors = list(entities), list(actors)
        self.metrics = dict(metrics or {})
        self.allowed = None if allowed is None else list(allowed)
        if self.allowed is not None and len(self.allowed) != len(self.actors):
            raise ValueError(
                f"Obs: allowed has {len(self.allowed)} collections of actions for {len(self.actors)} actors"
            )

    @property
    def choices(self) -> list[Any]:
        """The members of the action's Enum, or the objects that an actor may select."""
        if not self.space.selects:
            return list(self.action)  # type: ignore[call-overload, no-any-return]
        if self.allowed is None:
            return self.entities
        allowed = {id(each) for choices in self.allowed for each in choices}
        return [each for each in (*self.entities, *self.actors) if id(each) in allowed]

    def mask(self) -> NDArray[np.bool_] | None:
        """Return the open choices, shape (number of actors, number of choices); None if all are open."""
        if self.allowed is None:
            return None
        key: Callable[[Any], Any] = id if self.space.selects else lambda member: member  # objects may have equal values
        choices = list(map(key, self.choices))
        mask = np.zeros((len(self.actors), len(choices)), np.bool_)
        for row, allowed in enumerate(self.allowed):
            for choice in allowed:
                if key(choice) not in choices:
                    known = (
                        nearest(choice, self.space.labels) if self.space.labels else "it is not in entities or actors"
                    )
                    raise ValueError(f"{choice!r:.200} is no {self.action.__name__}; {known}")
                mask[row, choices.index(key(choice))] = True
        return mask

    def types(self) -> dict[str, Entity]:
        """Return the types of all entities by name.

        Raises:
            ValueError: an entity is no dataclass object, or two types have the same name.
        """
        types: dict[str, Entity] = {}
        for cls in dict.fromkeys(map(type, (*self.entities, *self.actors))):
            if cls.__name__ in types:
                raise ValueError(f"Obs: two types of entity are called {cls.__name__!r}; rename one")
            types[cls.__name__] = entity_of(cls)
        return types

    def to_observation(self, reward: float = 0.0, *, done: bool = False, truncated: bool = False) -> Observation:
        """Return the observation in an environment's form.

        Actors have the ids 0, 1, ...; other entities have none, but for a `Selection` the numbers after those of the actors.

        Raises:
            ValueError: an entity or `allowed` is invalid.
        """
        objects: dict[str, list[object]] = {name: [] for name in self.types()}
        ids: dict[str, list[EntityID | None]] = {}
        for number, each in enumerate(self.entities, len(self.actors)):
            objects[type(each).__name__].append(each)
            if self.space.selects:
                ids.setdefault(type(each).__name__, []).append(number)
        for number, actor in enumerate(self.actors):
            name = type(actor).__name__
            ids.setdefault(name, [None] * len(objects[name])).append(number)
            objects[name].append(actor)
        actees = {}
        if self.space.selects:
            number_of = {id(each): number for number, each in enumerate(self._numbered)}
            actees = {"actee_ids": [number_of[id(each)] for each in self.choices]}
        offered = self.space.mask_type(actor_ids=range(len(self.actors)), mask=self.mask(), **actees)
        return Observation(
            features={name: list(map(row_of, members)) for name, members in objects.items()},
            ids=ids,
            actions={} if done else {self.action.__name__: offered},
            reward=reward,
            done=done,
            truncated=truncated,
            metrics=self.metrics,
        )

    @property
    def _numbered(self) -> list[object]:
        """All objects, by the ids that they have where entities are selected."""
        return [*self.actors, *self.entities]

    def chosen(self, actions: Mapping[str, Action]) -> list[A]:
        """Return what the actors chose, in their order, from the actions that answer this observation."""
        action: Any = actions.get(self.action.__name__)
        if action is None:  # nobody acts
            return []
        by_actor = dict(zip(action.actors, getattr(action, self.space.choices_field), strict=True))
        told = [by_actor[actor] for actor in range(len(self.actors))]
        if not self.space.selects:
            return [self.choices[choice] for choice in told]
        objects = self._numbered
        return [self.action([objects[number] for number in actees]) for actees in told]  # type: ignore[call-arg]


class Agent(ABC):
    """Decides for the actors of a program. Agents of `enn_ppo.load_agent` also have `decide` and `news`."""

    @abstractmethod
    def act_each(self, obs: Obs[A]) -> list[A] | None:
        """Return the actions of all actors in `obs`, in their order; None: the trainer is gone, and the program must return."""

    def act(self, obs: Obs[A]) -> A | None:
        """Return the action of the only actor in `obs`; None: the trainer is gone, and the program must return.

        Raises:
            ValueError: there is not exactly one actor, or something in `obs` is invalid.
        """
        if len(obs.actors) != 1:
            raise ValueError(
                f"act: the observation has {len(obs.actors)} actors; it must have exactly one, or use act_each"
            )
        actions = self.act_each(obs)
        return None if actions is None else actions[0]

    def game_over(self, obs: Obs[A], *, truncated: bool = False) -> None:  # noqa: B027 - only training counts games
        """End the game.

        Args:
            obs: the last observation, with the final score. Nobody acts on it, so actors may be left out.
            truncated: a limit cut the game short, and it did not end by its own rules; then `obs` needs all entities, since
                its value is estimated.
        """


class _RandomAgent(Agent):
    def __init__(self, seed: int) -> None:
        check_whole(seed, "seed", 0)
        self._rng = np.random.default_rng(seed)

    def act_each(self, obs: Obs[A]) -> list[A]:
        name, space = obs.action.__name__, obs.space
        reader = FrameReader(ObsSpace(obs.types()), {name: space}, "the program")
        frame = reader.read(obs.to_observation(), 0)
        values = space.sample(batch_masks([frame], reader)[name], self._rng)
        return obs.chosen({name: space.for_world(values, frame.actions[name], frame.ids)})


def random_agent(seed: int = 0) -> Agent:
    """Return an agent that picks an open action for each actor, uniformly at random; the same seed picks the same.

    Raises:
        ValueError: the seed is no integer of at least 0.
    """
    return _RandomAgent(seed)
