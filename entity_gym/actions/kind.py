"""The base of all kinds of actions: what the rest of the project asks of an action without knowing its kind.

A kind is one module of this package with three dataclasses, the space that a world declares, the mask with which an
observation offers the action, and the action that a world receives. Everything that happens to an action on its way is a
method of the space, in the order of the way:

    read                 the offer of an observation, checked, with ids turned into entity indices
    allowed, refusal     a choice checked against the offer
    for_world            a choice in the world's own ids
    sample               a random choice
    rare_choices, mistakes    allowed and refused choices for tests of a world
    list_choices, numbers     the choices of one actor, for playing by hand
    padded_...           values and masks of fixed shapes, for libraries without entities
    ..._json             masks, actions and probabilities in the messages of docs/protocol.md
    ..._for_replay       the space and the decisions of one frame in the format of docs/replays.md
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions.reading import EntityID, FrameEntities, Offer
from entity_gym.batch.vec_obs import VecActionMask
from entity_gym.errors import check_parts
from entity_gym.spaces import ObsSpace

#: Decimals of probabilities in replays.
DECIMALS = 7


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
        for ids, types in (("actor_ids", "actor_types"), ("actee_ids", "actee_types")):
            if getattr(self, ids, None) is not None and getattr(self, types, None) is not None:
                told = " and ".join(f"{name}={getattr(self, name)!r}" for name in (ids, types))
                raise ValueError(f"{type(self).__name__} was given both {told}; give one")


class Choice(NamedTuple):
    """A choice of an actor: its value in a batch, and whether it is open."""

    value: float
    is_open: bool


class ActionSpace(ABC):
    """One action of an environment: the actors take it in turn, once per step.

    Attributes:
        kind: the name of the kind, for people to read.
        mask_type: the class of the masks that offer it in an observation.
        is_global: the frame takes the action, once, and no entity does.
        selects: actors select entities; masks then have actees, and are over pairs of an actor and an actee.
        discrete: actors take one of several choices, each with a probability; false where they give real numbers.
        dtype: the type of a choice in a batch.
    """

    kind: ClassVar[str]
    mask_type: ClassVar[type]
    is_global: ClassVar[bool] = False
    selects: ClassVar[bool] = False
    discrete: ClassVar[bool] = True
    dtype: ClassVar[type[np.generic]] = np.int64

    @property
    def num_choices(self) -> int | None:
        """C, how many choices an actor has in every frame; None where that is no fixed number."""
        return None

    @property
    def width(self) -> int:
        """The numbers that an actor gives, at least 1."""
        return 1

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
        yield from ()

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
    def sample(self, name: str, offered: VecActionMask, rng: np.random.Generator) -> NDArray[Any]:
        """Draw (A, width) choices, each uniformly from what its actor may choose.

        Raises:
            ValueError: nothing is open to an actor who must choose something.
        """

    def rare_choices(self, offered: VecActionMask) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield allowed (A, width) choices that random play rarely takes, each with a description."""
        yield from ()

    @abstractmethod
    def mistakes(self, values: NDArray[Any], offered: VecActionMask) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield choices that must be refused, each with a description: `values` with a mistake of one actor.

        Args:
            values: (A, width) allowed choices; A is at least 1.
            offered: the offer that they are allowed in.
        """

    def list_choices(self, offer: Offer, row: int) -> list[Choice]:
        """List the choices of an actor in the order of replays, closed ones included; nothing for `numbers`.

        Args:
            offer: the action in one frame.
            row: the actor's place in `offer.actors`.
        """
        return [Choice(k, offer.is_open(row, k)) for k in range(len(self.labels))]

    @property
    def numbers(self) -> Mapping[str, tuple[float, float]]:
        """The name and the bounds of each number that an actor gives; empty if it takes one of several choices."""
        return {}

    # ---- the padded form (`entity_gym.bridges.padded`), in which entities are rows of a list of fixed length

    def padded_choices(self, num_rows: int) -> int:
        """Return C, the choices of an actor where the list of entities has `num_rows` rows; 1 for continuous actions."""
        return self.num_choices or 1

    def padded_mask(self, offered: VecActionMask, num_choices: int, rows: NDArray[np.int64] | None) -> NDArray[np.int8]:
        """Return (A, C) int8, 1 where the actor may take the choice; `rows` are those of the actees, if there are any."""
        return offered.spelled_out(num_choices).values.view(np.int8)

    def padded_bounds(self, num_choices: int) -> tuple[Any, Any]:
        """Return the smallest and the largest value that an actor gives, inclusive."""
        return 0, num_choices - 1

    # ---- JSON, by the protocol of docs/protocol.md

    def mask_from_json(self, name: str, given: Any) -> Any:
        """Make a `mask_type` from a JSON object with any of its attributes.

        Raises:
            ValueError: an attribute is unknown, or of another type; names the action.
        """
        known = [field.name for field in fields(self.mask_type)]
        where = f"action {name!r}"
        if not isinstance(given, dict):
            raise ValueError(f"{where} is {given!r:.200}; it must be an object with any of {known}")
        check_parts(given, known, where)
        for part, value in given.items():
            if value is None:
                continue
            if not isinstance(value, list):
                raise ValueError(f"{part} of {where} is {value!r:.200}; it must be a list")
            if part.endswith("_ids"):
                check_json_ids(value, f"{part} of {where}")
            elif part.endswith("_types") and not all(isinstance(each, str) for each in value):
                raise ValueError(f"{part} of {where} are {value!r:.200}; they must be names of entity types")
        try:
            return self.mask_type(**given)
        except ValueError as error:  # both ids and types
            raise ValueError(f"{where}: {error}") from None

    @abstractmethod
    def action_to_json(self, action: Any) -> dict[str, Any]:
        """Return the action that a world receives as a JSON object."""

    def probabilities_to_json(self, probabilities: NDArray[Any], offer: Offer, ids: Sequence[EntityID | None]) -> Any:
        """Return the probabilities of one frame's choices as JSON. Only for discrete actions.

        Args:
            probabilities: as a policy's logits are laid out, (A, C), or (pairs, 1) where actors select entities.
            offer: the action in that frame.
            ids: of its entities, by entity index.
        """
        return probabilities.tolist()

    # ---- JSON, by the format of docs/replays.md

    def space_for_replay(self) -> dict[str, Any]:
        """Return the space as JSON."""
        return {"kind": self.kind.replace(" ", "_"), "choices": list(self.labels)}

    def decisions_for_replay(
        self, offer: Offer, values: NDArray[Any], logits: NDArray[np.float32] | None
    ) -> dict[str, Any]:
        """Return the decisions of one frame's actors as JSON: all but their entropies.

        Args:
            offer: the action in that frame.
            values: (A, width) what the actors chose.
            logits: of the frame, as a policy's are laid out: (A, C), (pairs, 1) or (A, 2 n). None: they are not known.
        """
        probs = None if logits is None else np.exp(logits.astype(np.float64)).round(DECIMALS).tolist()
        mask = {} if offer.mask is None or offer.mask.all() else {"mask": offer.mask.astype(np.int64).tolist()}
        return {"actors": offer.actors.tolist(), "probs": probs, **mask, "chosen": values[:, 0].tolist()}

    def to_dict(self) -> dict[str, Any]:
        """Return the space as plain values that JSON can hold. Options with their default value are left out."""
        saved: dict[str, Any] = {"type": type(self).__name__}
        for option in fields(self):  # type: ignore[arg-type]
            value = getattr(self, option.name)
            if value != option.default:
                saved[option.name] = list(value) if isinstance(value, tuple) else value
        return saved

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Self:
        """Make the space that `to_dict` has saved."""
        return cls(**{name: value for name, value in saved.items() if name != "type"})


def with_value(values: NDArray[Any], row: int, value: float, column: int = 0) -> NDArray[Any]:
    """Return a copy of `values` with one value replaced."""
    copy = values.copy()
    copy[row, column] = value
    return copy


def check_json_ids(given: Any, what: str) -> None:
    """Raise a ValueError unless `given` is a list of ids that JSON can hold."""
    if not isinstance(given, list) or not all(type(each) in (str, int) for each in given):
        raise ValueError(f"{what} are {given!r:.200}; they must be a list of texts or whole numbers")


def has_global_entity(obs_space: ObsSpace, action_space: Mapping[str, ActionSpace]) -> bool:
    """Return true if every frame ends with the `__global__` entity: there are global features or a global action."""
    return bool(obs_space.global_features) or any(space.is_global for space in action_space.values())
