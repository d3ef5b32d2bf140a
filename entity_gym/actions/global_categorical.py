"""Global categorical actions: the environment as a whole takes one choice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions.categorical import (
    check_choices,
    choice_allowed,
    choice_mistakes,
    new_choices,
    sample_choices,
)
from entity_gym.actions.kind import ActionSpace
from entity_gym.actions.reading import EntityID, Flags, FrameEntities, Offer
from entity_gym.batch.vec_obs import VecActionMask


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
class GlobalCategoricalActionSpace(ActionSpace):
    """The environment as a whole takes one of `choices`: one decision per frame."""

    choices: Sequence[str]

    kind = "global categorical"
    mask_type = GlobalCategoricalActionMask
    is_global = True

    def __post_init__(self) -> None:
        check_choices(self)

    @property
    def num_choices(self) -> int:
        return len(self.choices)

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(self.choices)

    def changes_since(self, before: Self, name: str) -> Iterator[str]:
        yield from new_choices(before.choices, self.choices, name)

    def read(self, name: str, mask: GlobalCategoricalActionMask, entities: FrameEntities) -> Offer:
        actors = np.array([len(entities.ids)], dtype=np.int64)  # `__global__` stands last in the frame
        is_open = entities.mask(mask.mask, actors, len(self.choices), "choices", name)
        entities.require_open(is_open, actors, "choices", name)
        return Offer(actors, mask=is_open)

    def allowed(self, values: NDArray[np.int64], offered: VecActionMask) -> NDArray[np.bool_]:
        return choice_allowed(values[:, 0], offered, len(self.choices))

    def refusal(self, value: NDArray[np.int64]) -> str:
        return f" is {value[0]}; expected a choice below {len(self.choices)} that is not masked"

    def for_world(
        self, values: NDArray[np.int64], offer: Offer, ids: Sequence[EntityID | None]
    ) -> GlobalCategoricalAction:
        choice = int(values[0, 0])
        return GlobalCategoricalAction(choice, self.choices[choice])

    def sample(self, name: str, offered: VecActionMask, rng: np.random.Generator) -> NDArray[np.int64]:
        return sample_choices(name, offered, len(self.choices), rng)

    def mistakes(self, values: NDArray[Any], offered: VecActionMask) -> Iterator[tuple[str, NDArray[Any]]]:
        return choice_mistakes(values, offered, len(self.choices))

    def action_to_json(self, action: GlobalCategoricalAction) -> dict[str, Any]:
        return {"choice": int(action.action), "label": action.label}

    def probabilities_to_json(self, probabilities: NDArray[Any], offer: Offer, ids: Sequence[EntityID | None]) -> Any:
        return probabilities[0].tolist()
