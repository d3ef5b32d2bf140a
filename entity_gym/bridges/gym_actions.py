"""Gymnasium's action spaces as actions of one kind of actor, and the way back: what actors chose as an environment takes it.

Shapes: n actors, of n environments or of one; C choices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import ActionSpace, CategoricalActionSpace, ContinuousActionSpace
from entity_gym.bridges.gym_features import GROUPS, join, kind_of, members_of, numbered, shape_of

#: What actions are called that have no name of their own.
ACTION = "action"
#: A number of an integer Box with more values than this is a number, rather than a choice among them.
MOST_OF_A_BOX = 1024
#: A network has weights and a probability for every choice, so at some point there are too many.
MOST_CHOICES = 2**16

#: Action -> (n,) int64 choices, or (n, size) float32 numbers.
Chosen = Mapping[str, NDArray[Any]]
#: Action -> (C,) bool, true where the choice is open.
Masks = dict[str, NDArray[np.bool_]]


class GymActions:
    """Actions, and what was chosen as an environment takes it.

    A Discrete is a categorical action with the choices "0" ... "n - 1"; a MultiDiscrete or MultiBinary is one for each of its
    numbers, "action.0" and so on; so is a Box of whole numbers. A Box of real numbers is one continuous action with its bounds.
    Members of a Dict or Tuple are called by their paths, those of an outermost Tuple "action.0" and so on.

    Args:
        space: of actions.

    Attributes:
        action_space: what it makes of them.
        firsts: action -> the number that its choice "0" stands for.

    Raises:
        ValueError: for a space that has no such form, naming it and what to do.
    """

    def __init__(self, space: Any) -> None:
        self.action_space: dict[str, ActionSpace] = {}
        self.firsts: dict[str, int] = {}
        self._node = self._node_of(space, "")
        if not self.action_space:
            raise ValueError("the action space holds no action")

    def decode(self, chosen: Chosen, n: int) -> list[Any]:
        """N values of the space, one for each actor; arrays are their own."""
        return self._node.decode(chosen, n)

    def masks(self, given: Any) -> Masks:
        """The masks that `info["action_mask"]` is: (C,) flags for a Discrete; for others a tuple or dictionary of such.

        Args:
            given: in the form of Gymnasium's `sample(mask=...)`; None where everything is open.

        Raises:
            ValueError: if it does not fit the space.
        """
        masks: Masks = {}
        self._node.read_mask(given, masks)
        return masks

    def _node_of(self, space: Any, path: str) -> _Node:
        kind = kind_of(space)
        if kind in GROUPS:
            outer = ACTION if kind == "Tuple" and not path else path
            members = {key: self._node_of(each, join(outer, str(key))) for key, each in members_of(space)}
            return _Group(members, path or ACTION, kind == "Tuple")
        name = path or ACTION
        if kind == "Discrete":
            self.firsts[name] = int(getattr(space, "start", 0))
            return _Discrete(self._add(name, _choices(int(space.n), name)), self.firsts[name], int(space.n))
        if kind == "Box" and np.dtype(space.dtype).kind == "f":
            return _Numbers(self._add(name, _continuous(space, name)), space)
        if kind not in ("Box", "MultiDiscrete", "MultiBinary"):
            raise ValueError(
                f"the action space at {name!r} is a {kind}, which no actor can take: make it of Discrete, MultiDiscrete, "
                "MultiBinary and Box, in a wrapper such as gymnasium.wrappers.TransformAction"
            )
        firsts, counts = _whole_numbers(space, kind, name)
        shape = shape_of(space)
        names = [
            self._add(each, _choices(count, each)) for each, count in zip(numbered(name, shape), counts, strict=True)
        ]
        self.firsts.update(zip(names, firsts.tolist(), strict=True))
        return _WholeNumbers(names, counts, firsts, shape, np.dtype(space.dtype or np.int64), name)

    def _add(self, name: str, space: ActionSpace) -> str:
        if name in self.action_space:
            raise ValueError(
                f"the action space has two things that would be the action {name!r}: rename a key in a wrapper"
            )
        self.action_space[name] = space
        return name


class _Node(Protocol):
    def decode(self, chosen: Chosen, n: int) -> list[Any]: ...

    def read_mask(self, given: Any, masks: Masks) -> None: ...


class _Discrete:
    def __init__(self, name: str, start: int, n: int) -> None:
        self._name, self._start, self._n = name, start, n

    def decode(self, chosen: Chosen, n: int) -> list[Any]:
        values = chosen[self._name]
        return (values + self._start if self._start else values).tolist()  # type: ignore[no-any-return]

    def read_mask(self, given: Any, masks: Masks) -> None:
        _add_mask(given, self._name, self._n, masks)


class _WholeNumbers:
    """A choice for each number of an array."""

    def __init__(
        self,
        names: list[str],
        counts: list[int],
        firsts: NDArray[np.int64],
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        path: str,
    ) -> None:
        self._names, self._counts, self._firsts = names, counts, firsts
        self._shape, self._dtype, self._path = shape, dtype, path

    def decode(self, chosen: Chosen, n: int) -> list[Any]:
        values = np.stack([chosen[name] for name in self._names], axis=1) + self._firsts
        return list(values.astype(self._dtype).reshape(n, *self._shape))

    def read_mask(self, given: Any, masks: Masks) -> None:
        if given is None:
            return
        if not isinstance(given, Sequence | np.ndarray) or len(given) != len(self._names):
            raise ValueError(
                f"the action mask of {self._path!r} is {given!r:.200}; expected one mask for each of {len(self._names)} numbers"
            )
        for name, count, mask in zip(self._names, self._counts, given, strict=True):
            _add_mask(mask, name, count, masks)


class _Numbers:
    """A Box of real numbers."""

    def __init__(self, name: str, space: Any) -> None:
        self._name, self._shape, self._dtype = name, shape_of(space), np.dtype(space.dtype)
        self._low = np.broadcast_to(space.low, self._shape).astype(self._dtype)
        self._high = np.broadcast_to(space.high, self._shape).astype(self._dtype)

    def decode(self, chosen: Chosen, n: int) -> list[Any]:
        values = chosen[self._name].reshape(n, *self._shape).astype(self._dtype)
        # Bounds of float64 are met as float32 only to its precision.
        return list(np.clip(values, self._low, self._high, out=values))

    def read_mask(self, given: Any, masks: Masks) -> None:
        if given is not None:
            raise ValueError(f"the action mask of {self._name!r} is {given!r:.200}; real numbers have none, give None")


class _Group:
    """A Dict or a Tuple."""

    def __init__(self, members: Mapping[Any, _Node], path: str, is_tuple: bool) -> None:
        self._members, self._path, self._is_tuple = dict(members), path, is_tuple

    def decode(self, chosen: Chosen, n: int) -> list[Any]:
        parts = [node.decode(chosen, n) for node in self._members.values()]
        if self._is_tuple:
            return list(zip(*parts, strict=True)) if parts else [()] * n
        return [dict(zip(self._members, values, strict=True)) for values in zip(*parts, strict=True)]

    def read_mask(self, given: Any, masks: Masks) -> None:
        if given is None:
            return
        fits = isinstance(given, tuple | list) if self._is_tuple else isinstance(given, Mapping)
        keys = range(len(given)) if self._is_tuple and fits else given
        if not fits or list(keys) != list(self._members):
            raise ValueError(
                f"the action mask of {self._path!r} is {given!r:.200}; expected one for each of {list(self._members)}"
            )
        for key, node in self._members.items():
            node.read_mask(given[key], masks)


def _add_mask(given: Any, name: str, count: int, masks: Masks) -> None:
    if given is None:
        return
    mask = np.asarray(given)
    if mask.shape != (count,) or mask.dtype.kind not in "biu" or not np.isin(mask, (0, 1)).all():
        raise ValueError(
            f"the action mask of {name!r} is {given!r:.200}; expected {count} flags, 1 where the choice is open"
        )
    masks[name] = mask.astype(np.bool_)


def _choices(count: int, name: str) -> CategoricalActionSpace:
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
    """The smallest value of each number, and how many it has."""
    shape = shape_of(space)
    size = int(np.prod(shape, dtype=np.int64))
    if kind == "MultiBinary":
        return np.zeros(size, np.int64), [2] * size
    if kind == "MultiDiscrete":
        firsts = np.broadcast_to(np.asarray(getattr(space, "start", 0)), shape).reshape(-1).astype(np.int64)
        return firsts, np.asarray(space.nvec).reshape(-1).tolist()
    low, high = (np.broadcast_to(side, shape).reshape(-1).tolist() for side in (space.low, space.high))
    counts = [int(high) - int(low) + 1 for low, high in zip(low, high, strict=True)]
    if max(counts, default=0) > MOST_OF_A_BOX:
        raise ValueError(
            f"the action space at {name!r} is a Box of whole numbers of which one has {max(counts):,} values; at most "
            f"{MOST_OF_A_BOX:,} can be chosen from: make it a Box of float32, and round, in a wrapper"
        )
    return np.array(low, np.int64), counts
