"""Actions of one actor from Gymnasium's action spaces, and the way back to values of the space.

Shapes: n actors, C choices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import ActionSpace, CategoricalActionSpace, ContinuousActionSpace
from entity_gym.bridges.gymnasium.observations import GROUPS, join, kind_of, members_of, numbered, shape_of

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
#: Returns n values of a space, one for each actor, in arrays of their own.
Decode = Callable[[Chosen, int], list[Any]]


class GymActions:
    """Actions of a space, and the way back.

    A Discrete is a categorical action with the choices "0" ... "n - 1"; a MultiDiscrete, MultiBinary or integer Box is one for
    each of its numbers, "action.0" and so on. A Box of real numbers is one continuous action with its bounds.
    Members of a Dict or Tuple are called by their paths, those of an outermost Tuple "action.0" and so on.

    Attributes:
        firsts: action -> the number that its choice "0" stands for.
        num_choices: of all actions together.
        decode: returns n values of the space for `Chosen`.

    Raises:
        ValueError: for a space that has no such form, naming it and what to do.
    """

    def __init__(self, space: Any) -> None:
        self.action_space: dict[str, ActionSpace] = {}
        self.firsts: dict[str, int] = {}
        self._counts: dict[str, int] = {}  # action -> C, 0 for real numbers
        self._tree, self.decode = self._read(space, "")
        if not self.action_space:
            raise ValueError("the action space holds no action")
        self.num_choices = sum(self._counts.values())

    def masks(self, given: Any, *, are_numbers: bool = False) -> Masks:
        """Return the masks of the actions.

        Args:
            given: flags of the choices, 1 where open: of a Discrete, or of all actions, one after another; in a tuple, list or
                dictionary in the form of the space, one for each member; None where everything is open.
            are_numbers: in place of flags there are the numbers of the open choices.

        Raises:
            ValueError: if it does not fit the space.
        """
        return dict(self._masks(given, self._tree, "the action mask", are_numbers))

    def _masks(self, given: Any, tree: Any, path: str, are_numbers: bool) -> Iterator[tuple[str, NDArray[np.bool_]]]:
        """Yield the actions below `tree`, which are names in the form of the space, and their masks."""
        if given is None:
            return
        if not isinstance(tree, str) and not _is_flat(given):
            members = tree if isinstance(tree, Mapping) else dict(enumerate(tree))
            if isinstance(given, Sequence | np.ndarray) and not isinstance(tree, Mapping):
                given = dict(enumerate(given))
            if not isinstance(given, Mapping) or set(given) != set(members):
                raise ValueError(f"{path} is {given!r:.200}; expected one mask for each of {list(members)}")
            for key, member in members.items():
                yield from self._masks(given[key], member, f"{path} of {key!r}", are_numbers)
            return
        names = list(_names(tree))
        counts = [self._counts[name] for name in names]
        size, first = sum(counts), self.firsts.get(names[0], 0) if len(names) == 1 else 0
        flags = np.asarray(given).reshape(-1)
        if are_numbers:
            flags = _flags_of(flags, first, size)
        if len(flags) != size or flags.dtype.kind not in "biuf" or not np.isin(flags, (0, 1)).all() or not size:
            expected = f"{size} flags, 1 where the choice is open"
            if are_numbers:
                expected = f"different whole numbers from {first} to {first + size - 1}"
            elif not size:
                expected = "None, since real numbers have no mask"
            elif len(names) > 1:
                expected += f": {' and '.join(f'{count} of {name}' for name, count in zip(names, counts, strict=True))}"
            raise ValueError(f"the action mask of {', '.join(map(repr, names))} is {given!r:.200}; expected {expected}")
        parts = np.split(flags.astype(np.bool_), np.cumsum(counts)[:-1])
        yield from ((name, part) for name, part in zip(names, parts, strict=True) if len(part))

    def _read(self, space: Any, path: str) -> tuple[Any, Decode]:
        """Return the names of a space's actions, in its form, and what decodes them."""
        kind = kind_of(space)
        if kind in GROUPS:
            return self._read_group(space, path, kind == "Tuple")
        name, shape = (
            path or ACTION,
            shape_of(space) if kind in ("Box", "Discrete", "MultiDiscrete", "MultiBinary") else (),
        )
        if kind == "Box" and np.dtype(space.dtype).kind == "f":
            self._add(name, _continuous(space, name), 0)
            dtype = np.dtype(space.dtype)
            low, high = (np.broadcast_to(side, shape).astype(dtype) for side in (space.low, space.high))

            def numbers(chosen: Chosen, n: int) -> list[Any]:
                values = chosen[name].reshape(n, *shape).astype(dtype)
                return list(
                    np.clip(values, low, high, out=values)
                )  # float32 meets bounds of float64 only to its precision

            return name, numbers
        if kind not in ("Discrete", "Box", "MultiDiscrete", "MultiBinary"):
            raise ValueError(
                f"the action space at {name!r} is a {kind}, which no actor can take: make it of Discrete, MultiDiscrete, "
                "MultiBinary and Box, in a wrapper such as gymnasium.wrappers.TransformAction"
            )
        firsts, counts = _whole_numbers(space, kind, name)
        names = numbered(name, shape)
        for each, count, first in zip(names, counts, firsts.tolist(), strict=True):
            self._add(each, _categorical(count, each), count)
            self.firsts[each] = first
        if kind == "Discrete":
            first = firsts[0]
            return name, lambda chosen, n: (chosen[name] + first if first else chosen[name]).tolist()
        whole = np.dtype(space.dtype or np.int64)

        def choices(chosen: Chosen, n: int) -> list[Any]:
            values = np.stack([chosen[each] for each in names], axis=1) + firsts
            return list(values.astype(whole).reshape(n, *shape))

        return names, choices

    def _read_group(self, space: Any, path: str, is_tuple: bool) -> tuple[Any, Decode]:
        outer = ACTION if is_tuple and not path else path
        members = {key: self._read(each, join(outer, str(key))) for key, each in members_of(space)}

        def decode(chosen: Chosen, n: int) -> list[Any]:
            parts = [of_member(chosen, n) for _, of_member in members.values()]
            values = zip(*parts, strict=True) if parts else [()] * n
            return list(values) if is_tuple else [dict(zip(members, each, strict=True)) for each in values]

        trees = {key: tree for key, (tree, _) in members.items()}
        return list(trees.values()) if is_tuple else trees, decode

    def _add(self, name: str, space: ActionSpace, count: int) -> None:
        if name in self.action_space:
            raise ValueError(
                f"the action space has two things that would be the action {name!r}: rename a key in a wrapper"
            )
        self.action_space[name], self._counts[name] = space, count


def is_distinct(numbers: NDArray[Any], size: int) -> bool:
    """Return whether these are different whole numbers from 0 to `size` - 1."""
    fits = numbers.dtype.kind in "iu" and len(np.unique(numbers)) == len(numbers)
    return bool(fits and ((numbers >= 0) & (numbers < size)).all())


def _flags_of(numbers: NDArray[Any], first: int, size: int) -> NDArray[Any]:
    """Return flags from the numbers of open choices, which count from `first`, or flags in their place; of others []."""
    if numbers.dtype.kind == "b" or (len(numbers) == size and len(np.unique(numbers)) < size):
        return numbers
    numbers = numbers - first if len(numbers) else np.zeros(0, np.int64)
    return np.isin(np.arange(size), numbers) if is_distinct(numbers, size) else np.zeros(0)


def _is_flat(given: Any) -> bool:
    """Return whether a mask is a row of flags, in contrast to one of several masks."""
    if isinstance(given, list | tuple):
        return all(np.isscalar(each) for each in given)
    return getattr(given, "ndim", None) == 1 and given.dtype != object


def _names(tree: Any) -> Iterator[str]:
    """Yield the names in a tree, in order."""
    if isinstance(tree, str):
        yield tree
    else:
        for each in tree.values() if isinstance(tree, Mapping) else tree:
            yield from _names(each)


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
