"""Global categorical actions: the environment as a whole takes one choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions.categorical import ChoiceActionSpace
from entity_gym.actions.reading import EntityID, Flags, FrameEntities, Offer


@dataclass(kw_only=True)
class GlobalCategoricalActionMask:
    """The choices open to a global action.

    Attributes:
        mask: (C,) bool, or (1, C); true where the choice is open. None: everything is open.
    """

    mask: Flags | None = None


@dataclass
class GlobalCategoricalAction:
    """The choice of the environment as a whole.

    Attributes:
        action: index into the space's `choices`.
        label: that choice's name.
    """

    action: int
    label: str


@dataclass(frozen=True)
class GlobalCategoricalActionSpace(ChoiceActionSpace):
    """The environment as a whole takes one of `choices`: one decision per frame."""

    kind = "global categorical"
    mask_type = GlobalCategoricalActionMask
    is_global = True

    def read(self, name: str, mask: GlobalCategoricalActionMask, entities: FrameEntities) -> Offer:
        return self.offer(name, np.array([len(entities.ids)]), mask.mask, entities)  # `__global__` stands last

    def for_world(
        self, values: NDArray[np.int64], offer: Offer, ids: Sequence[EntityID | None]
    ) -> GlobalCategoricalAction:
        choice = int(values[0, 0])
        return GlobalCategoricalAction(choice, self.choices[choice])

    def action_to_json(self, action: GlobalCategoricalAction) -> dict[str, Any]:
        return {"choice": int(action.action), "label": action.label}

    def probabilities_to_json(self, probabilities: NDArray[Any], offer: Offer, ids: Sequence[EntityID | None]) -> Any:
        return probabilities[0].tolist()
