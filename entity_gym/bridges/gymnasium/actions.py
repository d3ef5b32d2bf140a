"""Actions of one actor from Gymnasium's action spaces, and the way back to values of the space.

Shapes: n actors, C choices.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import ActionSpace, CategoricalActionSpace, ContinuousActionSpace
from entity_gym.bridges.gymnasium.observations import GROUPS, join, kind_of, members_of, numbered, shape_of
from entity_gym.errors import warn_caller

#: Name of an action without a name of its own.
ACTION = "action"
#: An integer Box with more values than this is a number rather than a choice.
MOST_OF_A_BOX = 1024
#: The network has weights and a probability for every choice, so their number is limited.
MOST_CHOICES = 2**16

#: Action -> (n,) int64 choices, or (n, size) float32 numbers.
Chosen = Mapping[str, NDArray[Any]]
#: Action -> (C,) bool, true where the choice is open; actions that are left out are open.
Masks = dict[str, NDArray[np.bool_]]

#: Names under which environments show which actions are open.
_MASK = re.compile(
    r"((in|il)?(valid|legal)_|allowed_|avail\w*_)?(action|move)s?_masks?|((in|il)?(valid|legal)|allowed|avail\w*)_(action|move)s?"
)


def warn_of_masks(name: str, env: Any, space: Any, info: Iterable[Any], used: str) -> bool:
    """Warn if something that no bridge reads looks like an action mask; return whether it does.

    Args:
        name: the environment's name in messages.
        env: the environment, which may have a method `action_masks`.
        space: of its observations.
        info: the keys of an info.
        used: how choices are closed, for the message.
    """
    keys = [key for key, _ in members_of(space)] if kind_of(space) == "Dict" else []
    found = [f"observation[{key!r}]" for key in keys if _MASK.fullmatch(str(key))]
    found += [f"info[{key!r}]" for key in info if _MASK.fullmatch(str(key))]
    if getattr(env, "has_wrapper_attr", lambda method: hasattr(env, method))("action_masks"):
        found.append("action_masks()")
    if found:
        warn_caller(
            f"{name}: {' and '.join(found)} looks like an action mask, and closes nothing: actions that it forbids are taken, "
            f"too. Choices are closed by {used}; show the mask there, in a wrapper"
        )
    return bool(found)


class GymActions:
    """Actions of a space, and the way back.

    A Discrete is a categorical action with the choices "0" ... "n - 1"; a MultiDiscrete, MultiBinary or integer Box is one for
    each of its numbers, "action.0" and so on. A Box of real numbers is one continuous action with its bounds.
    Members of a Dict or Tuple are called by their paths, those of an outermost Tuple "action.0" and so on.

    Attributes:
        firsts: action -> the number that its choice "0" stands for.
        counts: action -> number of its choices; actions of real numbers are left out.
        tree: the names of the actions in the form of the space: one name, or a list or dictionary of such trees.

    Raises:
        ValueError: for a space that has no such form, naming it and what to do.
    """

    def __init__(self, space: Any) -> None:
        self.action_space: dict[str, ActionSpace] = {}
        self.firsts: dict[str, int] = {}
        self.counts: dict[str, int] = {}
        self._node = self._node_of(space, "")
        self.tree: Any = self._node.tree
        if not self.action_space:
            raise ValueError("the action space holds no action")

    def decode(self, chosen: Chosen, n: int) -> list[Any]:
        """Return n values of the space, one for each actor, in arrays of their own."""
        values: list[Any] = self._node.decode(chosen, n)
        return values

    def masks(self, given: Any) -> Masks:
        """Return the masks in `info["action_mask"]`: (C,) flags for a Discrete, a tuple or dictionary of these for others.

        Args:
            given: in the form of Gymnasium's `sample(mask=...)`; None where everything is open.

        Raises:
            ValueError: if it does not fit the space.
        """
        masks: Masks = {}
        self._node.read_mask(given, masks)
        return masks

    def _node_of(self, space: Any, path: str) -> _Choices | _Numbers | _Group:
        kind = kind_of(space)
        if kind in GROUPS:
            outer = ACTION if kind == "Tuple" and not path else path
            members = {key: self._node_of(each, join(outer, str(key))) for key, each in members_of(space)}
            return _Group(members, path or ACTION, kind == "Tuple")
        name = path or ACTION
        if kind == "Box" and np.dtype(space.dtype).kind == "f":
            self._add(name, _continuous(space, name))
            return _Numbers(name, space)
        if kind not in ("Discrete", "Box", "MultiDiscrete", "MultiBinary"):
            raise ValueError(
                f"the action space at {name!r} is a {kind}, which no actor can take: make it of Discrete, MultiDiscrete, "
                "MultiBinary and Box, in a wrapper such as gymnasium.wrappers.TransformAction"
            )
        firsts, counts = _whole_numbers(space, kind, name)
        names = numbered(name, shape_of(space))
        for each, count, first in zip(names, counts, firsts.tolist(), strict=True):
            self._add(each, _categorical(count, each))
            self.firsts[each], self.counts[each] = first, count
        dtype = None if kind == "Discrete" else np.dtype(space.dtype or np.int64)
        return _Choices(names, counts, firsts, shape_of(space), dtype, name)

    def _add(self, name: str, space: ActionSpace) -> None:
        if name in self.action_space:
            raise ValueError(
                f"the action space has two things that would be the action {name!r}: rename a key in a wrapper"
            )
        self.action_space[name] = space


@dataclass(frozen=True)
class _Choices:
    """A Discrete (without dtype), or a choice for each number of an array."""

    names: list[str]
    counts: list[int]
    firsts: NDArray[np.int64]
    shape: tuple[int, ...]
    dtype: np.dtype[Any] | None
    path: str

    @property
    def tree(self) -> Any:
        return self.names[0] if self.dtype is None else self.names

    def decode(self, chosen: Chosen, n: int) -> list[Any]:
        if self.dtype is None:
            values, first = chosen[self.names[0]], self.firsts[0]
            return (values + first if first else values).tolist()  # type: ignore[no-any-return]
        values = np.stack([chosen[name] for name in self.names], axis=1) + self.firsts
        return list(values.astype(self.dtype).reshape(n, *self.shape))

    def read_mask(self, given: Any, masks: Masks) -> None:
        if given is None:
            return
        if self.dtype is None:
            given = [given]
        elif not isinstance(given, Sequence | np.ndarray) or len(given) != len(self.names):
            raise ValueError(
                f"the action mask of {self.path!r} is {given!r:.200}; expected one mask for each of {len(self.names)} numbers"
            )
        for name, count, flags in zip(self.names, self.counts, given, strict=True):
            if flags is None:
                continue
            mask = np.asarray(flags)
            if mask.shape != (count,) or mask.dtype.kind not in "biu" or not np.isin(mask, (0, 1)).all():
                raise ValueError(
                    f"the action mask of {name!r} is {flags!r:.200}; expected {count} flags, 1 where the choice is open"
                )
            masks[name] = mask.astype(np.bool_)


class _Numbers:
    """A Box of real numbers."""

    def __init__(self, name: str, space: Any) -> None:
        self.tree = self._name = name
        self._shape, self._dtype = shape_of(space), np.dtype(space.dtype)
        self._low = np.broadcast_to(space.low, self._shape).astype(self._dtype)
        self._high = np.broadcast_to(space.high, self._shape).astype(self._dtype)

    def decode(self, chosen: Chosen, n: int) -> list[Any]:
        values = chosen[self._name].reshape(n, *self._shape).astype(self._dtype)
        # float32 meets bounds of float64 only to its precision.
        return list(np.clip(values, self._low, self._high, out=values))

    def read_mask(self, given: Any, masks: Masks) -> None:
        if given is not None:
            raise ValueError(f"the action mask of {self._name!r} is {given!r:.200}; real numbers have none, give None")


@dataclass(frozen=True)
class _Group:
    """A Dict or a Tuple."""

    members: Mapping[Any, Any]
    path: str
    is_tuple: bool

    @property
    def tree(self) -> Any:
        trees = {key: node.tree for key, node in self.members.items()}
        return list(trees.values()) if self.is_tuple else trees

    def decode(self, chosen: Chosen, n: int) -> list[Any]:
        parts = [node.decode(chosen, n) for node in self.members.values()]
        if self.is_tuple:
            return list(zip(*parts, strict=True)) if parts else [()] * n
        return [dict(zip(self.members, values, strict=True)) for values in zip(*parts, strict=True)]

    def read_mask(self, given: Any, masks: Masks) -> None:
        if given is None:
            return
        fits = isinstance(given, tuple | list) if self.is_tuple else isinstance(given, Mapping)
        keys = range(len(given)) if self.is_tuple and fits else given
        if not fits or list(keys) != list(self.members):
            raise ValueError(
                f"the action mask of {self.path!r} is {given!r:.200}; expected one for each of {list(self.members)}"
            )
        for key, node in self.members.items():
            node.read_mask(given[key], masks)


def _categorical(count: int, name: str) -> CategoricalActionSpace:
    if count < 1:
        raise ValueError(f"the action space at {name!r} has {count} choices; it needs at least one")
    if count > MOST_CHOICES:
        raise ValueError(
            f"the action space at {name!r} has {count:,} choices; at most {MOST_CHOICES:,} can be chosen from: make it a "
            "MultiDiscrete of several smaller ones, such as rows and columns, or a Box of float32, in a wrapper"
        )
    return CategoricalActionSpace([str(choice) for choice in range(count)])


def _continuous(space: Any, name: str) -> ContinuousActionSpace:
    shape = shape_of(space)
    low, high = (np.broadcast_to(side, shape).reshape(-1).tolist() for side in (space.low, space.high))
    try:
        return ContinuousActionSpace(low, high)
    except ValueError as error:
        raise ValueError(
            f"the action space at {name!r}: {error}; leave such numbers out in a wrapper, and let it fill them in"
        ) from None


def _whole_numbers(space: Any, kind: str, name: str) -> tuple[NDArray[np.int64], list[int]]:
    """Return the smallest value of each number of a space, and how many values it has."""
    shape = shape_of(space)
    size = int(np.prod(shape, dtype=np.int64))
    if kind == "MultiBinary":
        return np.zeros(size, np.int64), [2] * size
    if kind in ("Discrete", "MultiDiscrete"):
        firsts = np.broadcast_to(np.asarray(getattr(space, "start", 0)), shape).reshape(-1).astype(np.int64)
        return firsts, np.asarray(space.n if kind == "Discrete" else space.nvec).reshape(-1).tolist()
    low, high = (np.broadcast_to(side, shape).reshape(-1).tolist() for side in (space.low, space.high))
    counts = [int(high) - int(low) + 1 for low, high in zip(low, high, strict=True)]
    if max(counts, default=0) > MOST_OF_A_BOX:
        raise ValueError(
            f"the action space at {name!r} is a Box of whole numbers of which one has {max(counts):,} values; at most "
            f"{MOST_OF_A_BOX:,} can be chosen from: make it a Box of float32, and round, in a wrapper"
        )
    return np.array(low, np.int64), counts
