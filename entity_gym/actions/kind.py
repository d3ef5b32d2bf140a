"""The base of all kinds of actions: what the rest of the project asks of an action without knowing its kind.

A kind is one module of this package with three dataclasses, the space that a world declares, the mask with which an
observation offers the action, and the action that a world receives. Everything that happens to an action on its way is a
method of the space, in the order of the way:

    check_features, prices          the features that an action needs
    read                            the offer of an observation, checked, with ids turned into entity indices
    sample, rare_choices            random choices, and allowed ones that are rare at random
    is_allowed, refusal             a choice checked against the offer
    compiled_check                  the same in compiled worlds
    for_world, from_world           a choice in the world's own ids, and back
    padded_bounds, closest          values in arrays of fixed shapes, and allowed ones in the place of others
    described, columns              the space and an offer on a page that shows or plays a game
    for_page, from_page             a choice there, and back
    by_actor                        the probabilities of choices, actor by actor

An action has `to_json`, which returns it as programs in other languages read it (docs/protocol.md).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions.reading import EntityID, Flags, FrameEntities, Offer
from entity_gym.batch.vec_obs import VecActionMask
from entity_gym.errors import nearest
from entity_gym.spaces import ObsSpace, check_names


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


#: Whether the actors of a slot of a compiled world may do what they are told; see `ActionSpace.compiled_check`.
CompiledCheck = Callable[[Any, int, int, Any, int, Any, int], bool]

#: In `ActionSpace.after`: the actors before, in the order in which a frame lists them.
ACTORS = "actors"


@dataclass(frozen=True, kw_only=True)
class ActionSpace(ABC):
    """One action of an environment: its actors take it once per step.

    Attributes:
        after: actions that are decided before; the policy sees their choices. With the name `actors` among them, the actors of
            this action decide one after another, and each sees the choices before its own. One name may be given as a text.
        allowed: earlier action -> (choices of the earlier action, choices of this one) bool, true where the combination is
            allowed. Of categorical actions alone; the earlier action must be in `after`.
        kind: the name of the kind, for people to read.
        mask_type: the class of the masks that offer it in an observation.
        action_type: the class of the actions that a world receives.
        choices_field: the field of an `action_type` with what the actors chose.
        is_global: the frame takes the action, once, and no entity does.
        selects: actors select entities; masks then have actees, and are over pairs of an actor and an actee.
        per_pair: an actor's choice is a value for each actee of its frame, and not a single one. `selects` holds then.
        discrete: actors take one of several choices, each with a probability; false where they give real numbers.
        dtype: the type of a choice in a batch.
        page_options: the options of the space that a page must know.
        counted: what metrics call the number of values above 0; None where they count each choice, or numbers.
    """

    kind: ClassVar[str]
    mask_type: ClassVar[type]
    action_type: ClassVar[type]
    choices_field: ClassVar[str]
    is_global: ClassVar[bool] = False
    selects: ClassVar[bool] = False
    per_pair: ClassVar[bool] = False
    discrete: ClassVar[bool] = True
    dtype: ClassVar[type[np.generic]] = np.int64
    page_options: ClassVar[tuple[str, ...]] = ()
    counted: ClassVar[str | None] = None

    after: Sequence[str] = ()
    allowed: Mapping[str, Sequence[Flags]] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        where = type(self).__name__
        after = (self.after,) if isinstance(self.after, str) else self.after
        check_names(after, f"{where}.after")
        if self.is_global and ACTORS in after:
            raise ValueError(
                f"{where}.after names {ACTORS!r}, but the frame takes the action once: it has no actors in turn"
            )
        object.__setattr__(self, "after", tuple(after))
        if not isinstance(self.allowed, Mapping):
            raise ValueError(
                f"{where}.allowed is {self.allowed!r:.200}; it must map earlier actions to tables of bools"
            )
        tables = {name: self._table(name, table) for name, table in self.allowed.items()}
        object.__setattr__(self, "allowed", tables)

    def _table(self, earlier: str, given: Any) -> tuple[tuple[bool, ...], ...]:
        """Return one table of `allowed` as tuples, after checking it as far as this space alone can tell."""
        where = f"{type(self).__name__}.allowed[{earlier!r}]"
        if earlier not in self.after or earlier == ACTORS:
            raise ValueError(f"{where}: {earlier!r} is not among the earlier actions, after={list(self.after)}")
        if self.num_choices is None:
            raise ValueError(f"{where}: a {self.kind} action has no table; categorical and global categorical ones may")
        try:
            table = np.asarray(given)
        except ValueError:  # rows of different lengths
            table = np.asarray(None)
        if table.dtype != np.bool_ or table.ndim != 2 or table.shape[1] != self.num_choices or not len(table):
            raise ValueError(
                f"{where} is {given!r:.200}; it must be rows of {self.num_choices} bools, a row for each choice of {earlier!r}"
            )
        if not table.any(axis=1).all():
            row = int((~table.any(axis=1)).argmax())
            raise ValueError(f"{where}: row {row} closes every choice; leave one open for each choice of {earlier!r}")
        return tuple(map(tuple, table.tolist()))

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
        if lost := [earlier for earlier in before.after if earlier not in self.after]:
            raise ValueError(f"the action {name!r} is no longer decided after {lost[0]!r}")
        if new := [earlier for earlier in self.after if earlier not in before.after]:
            yield f"action {name!r} is now decided after {', '.join(map(repr, new))}: at first as before"
        if before.allowed != self.allowed:
            yield f"action {name!r} has other combinations with earlier choices that are allowed"
        what, now = "choice", "at first as likely as the others are on average"
        if not self.discrete:
            what, now = "number", "untrained"
        for label in before.labels:
            if label not in self.labels:
                raise ValueError(f"the {what} {label!r} of the action {name!r} is gone; {nearest(label, self.labels)}")
        for label in self.labels:
            if label not in before.labels:
                yield f"{what} {label!r} of action {name!r} is new: {now}"

    @property
    def prices(self) -> tuple[str, str] | None:
        """The features with the costs of actees and the budgets of actors; None: nothing has a cost."""
        return None

    def check_features(self, name: str, obs_space: ObsSpace) -> None:  # noqa: B027 - most kinds need none
        """Raise a ValueError if the action `name` needs a feature that `obs_space` does not have."""

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
    def is_allowed(self, values: NDArray[Any], offered: VecActionMask) -> NDArray[np.bool_]:
        """Return (A,) true where the actor may choose its row of `values`, which is (A, width), or (P, 1) with `per_pair`."""

    @abstractmethod
    def compiled_check(self) -> CompiledCheck:
        """Return `is_allowed` for compiled worlds: ordinary Python that Numba compiles into its caller.

        Its arguments are `values`, (rows,) choices or (rows, width) numbers; `first`, the row of the first actor, and `count`, A;
        `mask`, (slots, A, C or N) bool, or None where everything is open; the slot `i`; and for actions that select entities
        `actees`, (slots, N) entity indices, and `num_actees`, N in this slot.
        """

    @abstractmethod
    def refusal(self, value: NDArray[Any]) -> str:
        """Return the end of a message: the refused choice, (width,) or (N,), and what would be allowed."""

    @abstractmethod
    def for_world(self, values: NDArray[Any], offer: Offer, ids: Sequence[EntityID | None]) -> Any:
        """Turn the choices of one frame's actors into the action that the world receives.

        Args:
            values: (A, width), or (A * N, 1) with `per_pair`; checked.
            offer: the action in that frame.
            ids: of its entities, by entity index.
        """

    def from_world(
        self, where: str, action: Any, offered: VecActionMask, ids: Sequence[EntityID | None]
    ) -> NDArray[Any]:
        """Return the values of an action in ids, in one frame.

        The row of an actor that is left out is -1 or NaN, which is refused unless the actor may select nobody. Its set is empty.

        Args:
            where: names the action in messages.
            action: an `action_type`; None leaves out all actors.
            offered: the action in that frame.
            ids: of its entities, by entity index.

        Raises:
            ValueError: the action is no `action_type`, or one of other actors.
        """
        values = np.full((offered.actors.items(), self.width), -1 if self.discrete else np.nan, self.dtype)
        if action is None:
            return values
        rows, chosen = self._rows(where, action, offered, ids), getattr(action, self.choices_field)
        if self.selects:
            index_of = {None: -1, **{id_: index for index, id_ in enumerate(ids)}}
            for actee in chosen:
                if actee not in index_of:
                    raise ValueError(f"{where} names {actee!r}, which no entity has")
            chosen = [index_of[actee] for actee in chosen]
        given = np.asarray([chosen] * len(rows) if self.is_global else chosen)
        expected = (len(rows),) if self.discrete else (len(rows), self.width)
        if given.shape != expected or (given.size and given.dtype.kind not in ("biu" if self.discrete else "iuf")):
            raise ValueError(
                f"{where} has {self.choices_field} of shape {given.shape} and type {given.dtype}; expected numbers of shape "
                f"{expected}, one row for each of its actors"
            )
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused
            values[rows] = given.reshape(len(rows), self.width).astype(self.dtype)
        return values

    def _rows(self, where: str, action: Any, offered: VecActionMask, ids: Sequence[EntityID | None]) -> list[int]:
        """Return the row of each actor of an action among those of the frame; arguments and errors as in `from_world`."""
        if not isinstance(action, self.action_type):
            raise ValueError(f"{where} is a {type(action).__name__}; it must be a {self.action_type.__name__}")
        if self.is_global:
            return list(range(offered.actors.items()))
        given: Any = action
        row_of = {ids[index]: row for row, index in enumerate(offered.actors.values[:, 0].tolist())}
        rows = [row_of.get(actor, -1) for actor in given.actors]
        if -1 in rows:
            raise ValueError(f"{where} names the actor {given.actors[rows.index(-1)]!r}, which was not offered")
        if len(set(rows)) < len(rows):
            raise ValueError(f"{where} names an actor twice: {list(given.actors)!r:.200}")
        return rows

    @abstractmethod
    def sample(self, offered: VecActionMask, rng: np.random.Generator) -> NDArray[Any]:
        """Draw (A, width) choices, or (P, 1) with `per_pair`, each uniformly from what its actor may choose.

        Raises:
            ValueError: nothing is open to an actor who must choose something.
        """

    def by_actor(self, probs: NDArray[Any], offer: Offer, values: NDArray[np.int64]) -> Sequence[NDArray[Any]]:
        """Cut the probabilities of a discrete action in one frame by actor: (n, C) of n choices in turn; n is 1 but for sets.

        Args:
            probs: in the rows of `ActResult.logits`.
            offer: the action in that frame.
            values: what its actors chose.
        """
        return list(probs.reshape(len(offer.actors), 1, -1)) if len(offer.actors) else []

    def padded_bounds(self, num_rows: int | None) -> tuple[Any, Any]:
        """Return the smallest and the largest value in the padded form: numbers, or tuples of them for continuous actions.

        Where actors select entities, a value is a row of the padded list of entities, in which every type has the room that the
        spec says, and the one after the last row is nobody, if the space has `nobody`. A set has a value for each row: 0 or 1,
        or in ordered sets its place.

        Args:
            num_rows: the length of that list; None: not known, as is the largest value then.
        """
        return 0, len(self.labels) - 1

    def closest(self, chosen: NDArray[np.int64], is_open: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return allowed choices in the place of others: the next open one, after the last the first; -1 where none is open.

        Args:
            chosen: (A,) values in the padded form, or for sets (A, C).
            is_open: (A, C) the open ones.
        """
        closed, size = np.flatnonzero(~is_open[np.arange(len(chosen)), chosen]), is_open.shape[1]
        order = (chosen[closed, None] + np.arange(size)) % size
        first = np.take_along_axis(is_open[closed], order, axis=1).argmax(axis=1)
        allowed = chosen.copy()
        allowed[closed] = np.where(is_open[closed].any(axis=1), order[np.arange(len(closed)), first], -1)
        return allowed

    def described(self) -> dict[str, Any]:
        """Return what a page of docs/replays.md must know of the space, as JSON."""
        shown = {option: _in_json(getattr(self, option)) for option in self.page_options}
        return {"kind": self.kind.replace(" ", "_"), **shown}

    @property
    def undecided(self) -> Any:
        """The choice of an actor that has not chosen, as a page shows it."""
        return [None] * self.width if not self.discrete else None if self.per_pair else -1

    def columns(self, offer: Offer) -> tuple[list[int], NDArray[np.bool_]]:
        """Return the choices of a discrete action as pages list them: C values in a batch, and (A, C) the open ones."""
        columns = offer.actees.tolist() if self.selects else list(range(len(self.labels)))
        is_open = np.ones((len(offer.actors), len(columns)), np.bool_) if offer.mask is None else offer.mask
        return columns, is_open

    def for_page(self, values: NDArray[np.int64], offer: Offer) -> list[Any]:
        """Return a discrete action of one frame as a page shows it: the column of each actor's choice, or a list of columns."""
        chosen: list[Any] = values[:, 0].tolist()
        return chosen

    def from_page(self, where: str, given: Any, columns: Sequence[int], is_open: Sequence[bool]) -> list[Any]:
        """Return the values of what a person has chosen on a page for one actor.

        Args:
            where: names the actor in messages.
            given: JSON, as `for_page`; a list of numbers for continuous actions.
            columns: the C choices, see `columns`.
            is_open: (C,) those that are open to the actor.

        Raises:
            ValueError: the choice is of another type, or closed.
        """
        is_valid = type(given) is int and 0 <= given < len(columns) and is_open[given]
        if not is_valid and (given != -1 or any(is_open)):
            raise ValueError(f"{where} is {given!r:.100}, which is no open choice")
        return [columns[given] if is_valid else -1]

    def rare_choices(self, offered: VecActionMask) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield allowed choices that random play rarely takes, as `sample` returns them, each with a description."""
        yield from ()

    def value_offsets(self, offered: VecActionMask) -> NDArray[np.int64]:
        """Return (N + 1,) int64: where the frames begin among the values of a batched action."""
        return offered.pair_offsets if self.per_pair else offered.actors.offsets

    def to_dict(self) -> dict[str, Any]:
        """Return the space as plain values that JSON can hold. Options with their default value are left out."""
        saved: dict[str, Any] = {"type": type(self).__name__}
        for option in fields(self):
            value = getattr(self, option.name)
            default = option.default if option.default_factory is MISSING else option.default_factory()
            if value != default:
                saved[option.name] = _in_json(value)
        return saved

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Self:
        """Make the space that `to_dict` has saved."""
        return cls(**{name: value for name, value in saved.items() if name != "type"})


def _in_json(value: Any) -> Any:
    """Return a value as JSON, which has neither tuples nor infinity: None, where there is no bound."""
    if isinstance(value, Mapping):
        return {name: _in_json(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return [_in_json(each) for each in value]
    return None if value in (np.inf, -np.inf) else value


def has_global_entity(obs_space: ObsSpace, action_space: Mapping[str, ActionSpace]) -> bool:
    """Return true if every frame ends with the `__global__` entity: there are global features or a global action."""
    return bool(obs_space.global_features) or any(space.is_global for space in action_space.values())
