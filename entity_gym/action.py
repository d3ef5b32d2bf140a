"""What an environment is told to do: actors and actees are its own ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from entity_gym.observation import EntityID


@dataclass
class CategoricalAction:
    """Choices of several actors.

    Attributes:
        actors: ids of the actors.
        actions: (A,) int64, the choice of each actor, an index into the space's `choices`.
    """

    actors: Sequence[EntityID]
    actions: NDArray[np.int64]


@dataclass
class SelectEntityAction:
    """Selections of several actors. An actor that selected nobody is not listed, whether it chose so or had to.

    Attributes:
        actors: ids of the actors.
        actees: the id that each of them selected.
    """

    actors: Sequence[EntityID]
    actees: Sequence[EntityID]


@dataclass
class GlobalCategoricalAction:
    """The choice of the environment as a whole.

    Attributes:
        action: index into the space's `choices`.
        label: that choice's name.
    """

    action: int
    label: str


@dataclass
class ContinuousAction:
    """Numbers that several actors picked.

    Attributes:
        actors: ids of the actors.
        values: (A, n) float32, those of each actor, within the space's bounds.
    """

    actors: Sequence[EntityID]
    values: NDArray[np.float32]


Action = CategoricalAction | SelectEntityAction | GlobalCategoricalAction | ContinuousAction
