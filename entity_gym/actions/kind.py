"""The base of all kinds of actions: what the rest of the project asks of an action without knowing its kind.

A kind is one module of this package with three dataclasses, the space that a world declares, the mask with which an
observation offers the action, and the action that a world receives. Everything that happens to an action on its way is a
method of the space, in the order of the way:

    read                 the offer of an observation, checked, with ids turned into entity indices
    sample, rare_choices    random choices, and allowed ones that are rare at random
    allowed, refusal     a choice checked against the offer
    for_world            a choice in the world's own ids
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions.reading import EntityID, FrameEntities, Offer
from entity_gym.batch.vec_obs import VecActionMask
from entity_gym.errors import nearest
from entity_gym.spaces import ObsSpace


@dataclass(kw_only=True)
class ActorMask:
    """The actors of an action.

    They are given by `actor_ids` or by `actor_types`, not both; neither means every entity, an empty list nobody.

    Attributes:
        actor_ids: ids of the actors.
        actor_types: entity types whose every entity acts.
    """

    actor_ids: Sequence[EntityID] | None = None
    actor_types: Sequence[str] | None = None

    def __post_init__(self) -> None:
        self._check_one("actor", self.actor_ids, self.actor_types)

    def _check_one(self, role: str, ids: Sequence[EntityID] | None, types: Sequence[str] | None) -> None:
        if ids is not None and types is not None:
            told = f"{role}_ids={ids!r} and {role}_types={types!r}"
            raise ValueError(f"{type(self).__name__} was given both {told}; give one")


class ActionSpace(ABC):
    """One action of an environment: the actors take it in turn, once per step.

    Attributes:
        kind: the name of the kind, for people to read.
        mask_type: the class of the masks that offer it in an observation.
        action_type: the class of the actions that a world receives.
        choices_field: the field of an `action_type` with what the actors chose.
        is_global: the frame takes the action, once, and no entity does.
        selects: actors select entities; masks then have actees, and are over pairs of an actor and an actee.
        discrete: actors take one of several choices, each with a probability; false where they give real numbers.
        dtype: the type of a choice in a batch.
    """

    kind: ClassVar[str]
    mask_type: ClassVar[type]
    action_type: ClassVar[type]
    choices_field: ClassVar[str]
    is_global: ClassVar[bool] = False
    selects: ClassVar[bool] = False
    discrete: ClassVar[bool] = True
    dtype: ClassVar[type[np.generic]] = np.int64

    @property
    def num_choices(self) -> int | None:
        """C, how many choices an actor has in every frame; None where that is no fixed number."""
        return len(self.labels) if self.discrete and not self.selects else None

    @property
    def width(self) -> int:
        """The numbers that an actor gives, at least 1."""
        return 1 if self.discrete else len(self.labels)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the choices or of the numbers; empty where the entities of a frame are the choices."""
        return ()

    def changes_since(self, before: Self, name: str) -> Iterator[str]:
        """Describe how the action has changed, where a trained policy can go on with the new space.

        Args:
            before: the space that the policy was trained with.
            name: of the action.

        Raises:
            ValueError: the policy cannot go on: a choice or a number is gone, or means something else.
        """
        what, now = "choice", "at first as likely as the others are on average"
        if not self.discrete:
            what, now = "number", "untrained"
        for label in before.labels:
            if label not in self.labels:
                raise ValueError(f"the {what} {label!r} of the action {name!r} is gone; {nearest(label, self.labels)}")
        for label in self.labels:
            if label not in before.labels:
                yield f"{what} {label!r} of action {name!r} is new: {now}"

    @abstractmethod
    def read(self, name: str, mask: Any, entities: FrameEntities) -> Offer:
        """Read how one frame of a Python world offers the action.

        Args:
            name: of the action, for messages.
            mask: a `mask_type`.
            entities: of the frame.

        Raises:
            ValueError: the mask does not fit the frame or the space.
        """

    @abstractmethod
    def allowed(self, values: NDArray[Any], offered: VecActionMask) -> NDArray[np.bool_]:
        """Return (A,) true where the actor may choose its row of `values`, which is (A, width)."""

    @abstractmethod
    def refusal(self, value: NDArray[Any]) -> str:
        """Return the end of a message: the refused choice, `value` of shape (width,), and what would be allowed."""

    @abstractmethod
    def for_world(self, values: NDArray[Any], offer: Offer, ids: Sequence[EntityID | None]) -> Any:
        """Turn the choices of one frame's actors into the action that the world receives.

        Args:
            values: (A, width), checked.
            offer: the action in that frame.
            ids: of its entities, by entity index.
        """

    @abstractmethod
    def sample(self, offered: VecActionMask, rng: np.random.Generator) -> NDArray[Any]:
        """Draw (A, width) choices, each uniformly from what its actor may choose.

        Raises:
            ValueError: nothing is open to an actor who must choose something.
        """

    def rare_choices(self, offered: VecActionMask) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield allowed (A, width) choices that random play rarely takes, each with a description."""
        yield from ()

    def to_dict(self) -> dict[str, Any]:
        """Return the space as plain values that JSON can hold. Options with their default value are left out."""
        saved: dict[str, Any] = {"type": type(self).__name__}
        for option in fields(self):  # type: ignore[arg-type]
            value = getattr(self, option.name)
            if value != option.default:
                saved[option.name] = [_in_json(each) for each in value] if isinstance(value, tuple) else value
        return saved

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Self:
        """Make the space that `to_dict` has saved."""
        return cls(**{name: value for name, value in saved.items() if name != "type"})


def _in_json(value: Any) -> Any:
    """Return a bound or a name as JSON, which has no infinity: None, where there is no bound."""
    return None if value in (np.inf, -np.inf) else value


def has_global_entity(obs_space: ObsSpace, action_space: Mapping[str, ActionSpace]) -> bool:
    """Return true if every frame ends with the `__global__` entity: there are global features or a global action."""
    return bool(obs_space.global_features) or any(space.is_global for space in action_space.values())
