"""The interface of every pool of environments."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from entity_gym.ragged import RaggedBufferI64
from entity_gym.spaces import ActionSpace, ObsSpace
from entity_gym.vec_obs import VecObs

#: Which last observations a pool keeps in `VecObs.final`: those needed to bootstrap from, all, or none.
FinalObservations = Literal["truncated", "all", "none"]


class VecEnv(ABC):
    """N environments of one kind that are stepped together.

    Autoreset happens in the same step: the observation after `done` is the first of the next episode, and comes with the
    finished episode's reward and info. The finished episode's own last observation is in `VecObs.final`.
    """

    @abstractmethod
    def obs_space(self) -> ObsSpace:
        """What the environments may show."""

    @abstractmethod
    def action_space(self) -> Mapping[str, ActionSpace]:
        """Their actions by name."""

    @abstractmethod
    def reset(self, seed: int | None = None) -> VecObs:
        """Start an episode everywhere.

        Args:
            seed: environment i draws from `SeedSequence((seed, i))`. None: the random numbers go on where they are.
        """

    @abstractmethod
    def act(self, actions: Mapping[str, RaggedBufferI64]) -> VecObs:
        """Step every environment.

        Args:
            actions: action -> N sequences of (A, 1), aligned with the actors of the last observation. A choice for
                categorical actions; for select-entity the entity index inside the frame, -1 for nobody.

        Raises:
            ValueError: for actions that were not offered, or an observation that does not fit the spaces.
        """

    @abstractmethod
    def __len__(self) -> int:
        """The number of environments."""

    @abstractmethod
    def close(self) -> None:
        """Release everything. May be called twice."""

    def render(self, env_ids: Sequence[int]) -> list[NDArray[np.uint8]]:
        """Draw some of the environments, each as a (height, width, 3) image."""
        raise NotImplementedError(f"{type(self).__name__} does not render")

    @property
    def can_save(self) -> bool:
        """Whether `state` and `load_state` work for these environments."""
        return False

    def state(self) -> dict[str, Any]:
        """Everything that `load_state` needs to continue exactly, random numbers and current observations included."""
        raise NotImplementedError(f"{type(self).__name__} cannot be saved")

    def load_state(self, state: Mapping[str, Any]) -> VecObs:
        """Continue from what `state` returned; returns the current observations."""
        raise NotImplementedError(f"{type(self).__name__} cannot be restored")
