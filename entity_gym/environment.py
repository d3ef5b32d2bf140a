"""The interface that a world implements: `Environment`, and what it shows, `Observation`."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import Action, ActionMask, ActionSpace
from entity_gym.actions.reading import EntityID, Flags
from entity_gym.errors import nearest
from entity_gym.spaces import ObsSpace

DRAW_IS_A_HOOK = (
    "draw() is called by replays, without arguments, and returns hints on how they draw the world (docs/replays.md) or None; "
    "give a method that does something else another name"
)
NumberRows = Sequence[Sequence[float]] | NDArray[Any]


@dataclass(kw_only=True)
class Observation:
    """One environment at one step. The last observation of an episode has `done` set and need not offer actions.

    Attributes:
        features: entity type -> (number of entities, F) numbers. A type may be left out: there is none of it now.
        ids: entity type -> one id per entity. Needed only for entities that act or may be selected.
        actions: action -> who may do what. An action may be left out: nobody takes it now.
        reward: received for the actions that led here.
        done: the episode ends here.
        truncated: the episode was cut here (a time limit) and did not end by its own rules; implies `done`.
        global_features: one number per name in the space's `global_features`.
        visible: entity type -> one bool per entity. A hidden entity is seen by the value function and not by the policy.
            Types left out are visible. An entity that acts or may be selected shows itself in that action, hidden or not.
        end_of_episode_info: anything worth knowing about the finished episode; only read together with `done`.
        metrics: numbers of every step, aggregated over a rollout as count, sum, min and max.
        player_rewards: in worlds with several players (`entity_gym.pools.players`), what each of them received for the actions
            that led here. Empty: all share `reward`.
        targets: name -> numbers about this frame that no policy sees, all of the space's `targets`, for a network to predict.
    """

    features: Mapping[str, NumberRows] = field(default_factory=dict)
    ids: Mapping[str, Sequence[EntityID]] = field(default_factory=dict)
    actions: Mapping[str, ActionMask] = field(default_factory=dict)
    reward: float = 0.0
    done: bool = False
    truncated: bool = False
    global_features: Sequence[float] | NDArray[Any] = ()
    visible: Mapping[str, Flags] = field(default_factory=dict)
    end_of_episode_info: Mapping[str, Any] | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    player_rewards: Sequence[float] = ()
    targets: Mapping[str, Sequence[float] | NDArray[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.truncated and not self.done:
            raise ValueError(
                "Observation(truncated=True, done=False): a truncated episode has ended, so done must be True"
            )


class Environment(ABC):
    """A world with a variable number of things.

    Implement four methods; all others are optional.

    1. `obs_space` names the entity types with their features, and `action_space` the actions. Both never change.
    2. `reset` starts an episode and returns its first observation, which is not `done`.
    3. `act` takes one step. Its argument has every action that the last observation offered, with the ids of the actors as
       that observation gave them; actions that were not offered are left out.
    4. After an observation with `done` comes `reset`. Return a new `Observation` each time; its arrays may be reused.
    5. Give ids to entities that act or may be selected. An entity keeps its id for the whole episode.
    6. Draw every random number from `self.rng`: pools seed it, and then the same seed gives the same episodes.
    """

    #: The name of this environment in messages and titles. Empty: the name of its class.
    display_name: str = ""

    _rng: np.random.Generator | None = None

    @property
    def rng(self) -> np.random.Generator:
        """The environment's source of random numbers; freshly seeded by the operating system until somebody sets it."""
        if self._rng is None:
            self._rng = np.random.default_rng()
        return self._rng

    @rng.setter
    def rng(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def reseed(self, seed: int, number: int) -> None:
        """Begin the random numbers anew: those of environment `number` in a pool that is seeded with `seed`.

        Optional. Override it where the world draws from something else than `rng`, and call this one, too.
        """
        self.rng = np.random.default_rng(np.random.SeedSequence((seed, number)))

    @abstractmethod
    def obs_space(self) -> ObsSpace:
        """Return the space of its observations. Must not change."""

    @abstractmethod
    def action_space(self) -> Mapping[str, ActionSpace]:
        """The actions by name. Must not change."""

    @abstractmethod
    def reset(self) -> Observation:
        """Start an episode."""

    @abstractmethod
    def act(self, actions: Mapping[str, Action]) -> Observation:
        """Take one step. `actions` holds the actions that the last observation offered."""

    def begin(self, actions: Mapping[str, Action] | None) -> None:  # noqa: B027 - most environments step at once
        """Begin the step that `act(actions)` finishes, or with None the episode that `reset()` begins, without waiting for it.

        Optional, for worlds that are computed elsewhere: a pool calls it for all its environments before it waits for the first.
        """

    def configure(self, info: Mapping[str, Any]) -> None:
        """Set parameters for the coming episodes; called right before `begin` and `reset` with those that a pool was given.

        By default, the parameters are the arguments of the constructor that it keeps in attributes of the same names: these
        attributes are set, and pools save them. Override it to check values or to do more than that; the parameters then
        belong into `state`.

        Raises:
            ValueError: there is no such parameter, or its value is not allowed.
        """
        self.check_parameters(info)
        for name, value in info.items():
            setattr(self, name, value)

    def check_parameters(self, info: Mapping[str, Any]) -> None:
        """Raise a ValueError unless `info` only has parameters that the default `configure` can set."""
        allowed = [name for name in inspect.signature(type(self)).parameters if hasattr(self, name)]
        for name in info:
            if name not in allowed:
                raise ValueError(f"{type(self).__name__} has no parameter {name!r}; {nearest(name, allowed)}")

    def render(self) -> NDArray[np.uint8]:
        """Draw the current state as a (height, width, 3) image."""
        raise NotImplementedError(f"{type(self).__name__} does not implement render()")

    def draw(self) -> Mapping[str, Any] | None:
        """Return hints on how a replay draws this episode, asked for after `reset`: see docs/replays.md.

        Optional. None: the page that shows the replay chooses. The name is reserved for it: give a method that draws on a
        screen another name.
        """
        return None

    def close(self) -> None:  # noqa: B027 - most environments hold nothing
        """Release what the environment holds. May be called twice."""

    def state(self) -> dict[str, Any]:
        """Return all but `rng` that `load_state` needs to continue this episode exactly.

        Optional. The values are arrays, numbers, strings, None, and lists, tuples and dictionaries of these.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement state()")

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned. Optional."""
        raise NotImplementedError(f"{type(self).__name__} does not implement load_state()")

    @classmethod
    def can_save(cls) -> bool:
        """Return True if both `state` and `load_state` are implemented."""
        return cls.state is not Environment.state and cls.load_state is not Environment.load_state
