"""Actions of one actor from Gymnasium's action spaces, and the way back to values of the space.

Shapes: n actors, C choices.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import ActionSpace, CategoricalActionSpace, ContinuousActionSpace, SelectEntitiesActionSpace
from entity_gym.bridges.gymnasium.observations import FIXED, GROUPS, join, kind_of, members_of, numbered, shape_of

#: Name of an action without a name of its own.
ACTION = "action"
#: The network has weights and a probability for every choice, so their number is limited.
MOST_CHOICES = 2**16

#: Action -> (n,) int64 choices, (n, size) float32 numbers, or (n, size) int64 flags of sets.
Chosen = Mapping[str, NDArray[Any]]
#: Action -> (C,) bool, true where the choice is open; actions that are left out are open.
Masks = dict[str, NDArray[np.bool_]]
#: Returns n values of a space, one for each actor, in arrays of their own.
Decode = Callable[[Chosen, int], list[Any]]


class GymActions:
    """Actions of a space, and the way back.

    A Discrete is a categorical action with the choices "0" ... "n - 1"; a MultiDiscrete, MultiBinary or integer Box is one for
    each of its numbers, "action.0" and so on, or one set of entities where all are 0 or 1 and `selected` names the action. A Box
    of real numbers is one continuous action with its bounds.
    Members of a Dict or Tuple are called by their paths, those of an outermost Tuple "action.0" and so on.

    Args:
        space: of the actions.
        selected: names of actions that select entities.

    Attributes:
        firsts: action -> the number that its choice "0" stands for.
        counts: action -> C, of sets the number of flags; 0 for real numbers.
        num_choices: of all actions together.
        decode: returns n values of the space for `Chosen`.

    Raises:
        ValueError: for a space that has no such form, naming it and what to do.
    """

    def __init__(self, space: Any, selected: Collection[str] = ()) -> None:
        self.action_space: dict[str, ActionSpace] = {}
        self.firsts: dict[str, int] = {}
        self.counts: dict[str, int] = {}
        self._selected = selected
        self._tree, self.decode = self._read(space, "")
        if not self.action_space:
            raise ValueError("the action space holds no action")
        self.num_choices = sum(self.counts.values())

    def masks(self, given: Any, *, are_numbers: bool = False) -> Masks:
        """Return the masks of the actions.

        Args:
            given: flags of the choices (of a set: of its rows), 1 where open: of a Discrete, or of all actions, one after
                another; in a tuple, list or dictionary in the form of the space, one for each member; None where everything is
                open.
            are_numbers: in place of flags there are the numbers of the open choices.

        Raises:
            ValueError: if it does not fit the space.
        """
        return dict(self._masks(given, self._tree, "the action mask", are_numbers))

    def _masks(self, given: Any, tree: Any, path: str, are_numbers: bool) -> Iterator[tuple[str, NDArray[np.bool_]]]:
        """Yield the actions below `tree`, which are names in the form of the space, and their masks."""
        if given is None:
            return
        if isinstance(given, list | tuple):
            is_flat = all(map(np.isscalar, given))
        else:
            is_flat = getattr(given, "ndim", None) == 1 and given.dtype != object
        if not isinstance(tree, str) and not is_flat:
            members = tree if isinstance(tree, Mapping) else dict(enumerate(tree))
            if isinstance(given, Sequence | np.ndarray) and not isinstance(tree, Mapping):
                given = dict(enumerate(given))
            if not isinstance(given, Mapping) or set(given) != set(members):
                raise ValueError(f"{path} is {given!r:.200}; expected one mask for each of {list(members)}")
            for key, member in members.items():
                yield from self._masks(given[key], member, f"{path} of {key!r}", are_numbers)
            return
        counts = {name: self.counts[name] for name in _names(tree)}
        size, first = sum(counts.values()), self.firsts.get(next(iter(counts)), 0) if len(counts) == 1 else 0
        flags = np.asarray(given).reshape(-1)
        if are_numbers and flags.dtype.kind != "b":
            numbers = flags - first if len(flags) else np.zeros(0, np.int64)
            flags = np.isin(np.arange(size), numbers) if is_distinct(numbers, size) else np.zeros(0)
        if len(flags) != size or flags.dtype.kind not in "biuf" or not ((flags == 0) | (flags == 1)).all() or not size:
            expected = f"{size} flags, 1 where a choice is open: {counts}"
            if are_numbers:
                expected = f"different whole numbers from {first} to {first + size - 1}"
            elif not size:
                expected = "None, since real numbers have no mask"
            raise ValueError(f"{path} is {given!r:.200}; expected {expected}")
        flags, start = flags != 0, 0
        for name, count in counts.items():
            if count:
                yield name, flags[start : start + count]
            start += count

    def _read(self, space: Any, path: str) -> tuple[Any, Decode]:
        """Return the names of a space's actions, in its form, and what decodes them."""
        kind, name = kind_of(space), path or ACTION
        if kind in GROUPS:
            return self._read_group(space, ACTION if kind == "Tuple" and not path else path, kind == "Tuple")
        if kind not in FIXED:
            raise ValueError(
                f"the action space at {name!r} is a {kind}, which no actor can take: make it of Discrete, MultiDiscrete, "
                "MultiBinary and Box, in a wrapper such as gymnasium.wrappers.TransformAction"
            )
        shape, dtype = shape_of(space), np.dtype(space.dtype or np.int64)
        if kind == "Box" and dtype.kind == "f":
            low, high = (np.broadcast_to(side, shape).astype(dtype) for side in (space.low, space.high))
            self._add(name, ContinuousActionSpace(low.reshape(-1).tolist(), high.reshape(-1).tolist()), 0)

            def numbers(chosen: Chosen, n: int) -> list[Any]:
                values = chosen[name].reshape(n, *shape).astype(dtype)
                # float32 meets bounds of float64 only to its precision
                return list(np.clip(values, low, high, out=values))

            return name, numbers
        if kind == "Box":
            firsts, nums = np.asarray(space.low, np.int64), np.asarray(space.high, np.int64) - space.low + 1
        else:
            firsts = np.asarray(getattr(space, "start", 0))
            nums = 2 if kind == "MultiBinary" else space.n if kind == "Discrete" else space.nvec
        firsts, nums = (np.broadcast_to(each, shape).reshape(-1).astype(np.int64) for each in (firsts, nums))
        if name in self._selected and shape and (firsts == 0).all() and (nums == 2).all():
            self._add(name, SelectEntitiesActionSpace(), len(nums))
            return name, lambda chosen, n: list(chosen[name].astype(dtype).reshape(n, *shape))
        names = numbered(name, shape)
        for each, num, first in zip(names, nums.tolist(), firsts.tolist(), strict=True):
            if not 1 <= num <= MOST_CHOICES:
                raise ValueError(
                    f"the action space at {each!r} is a {kind} of {num:,} choices; from 1 to {MOST_CHOICES:,} can be there: "
                    "make it a MultiDiscrete of several smaller ones, such as rows and columns, or a Box of float32, in a wrapper"
                )
            self._add(each, CategoricalActionSpace([str(choice) for choice in range(num)]), num)
            self.firsts[each] = first
        if kind == "Discrete":
            first = firsts[0]
            return name, lambda chosen, n: (chosen[name] + first if first else chosen[name]).tolist()

        def choices(chosen: Chosen, n: int) -> list[Any]:
            values = np.stack([chosen[each] for each in names], axis=1) + firsts
            return list(values.astype(dtype).reshape(n, *shape))

        return names, choices

    def _read_group(self, space: Any, path: str, is_tuple: bool) -> tuple[Any, Decode]:
        members = {key: self._read(each, join(path, str(key))) for key, each in members_of(space).items()}

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
        self.action_space[name], self.counts[name] = space, count


def is_distinct(numbers: NDArray[Any], size: int) -> bool:
    """Return whether these are different whole numbers from 0 to `size` - 1."""
    fits = numbers.dtype.kind in "iu" and len(np.unique(numbers)) == len(numbers)
    return bool(fits and ((numbers >= 0) & (numbers < size)).all())


def _names(tree: Any) -> Iterator[str]:
    """Yield the names in a tree, in order."""
    if isinstance(tree, str):
        yield tree
    else:
        for each in tree.values() if isinstance(tree, Mapping) else tree:
            yield from _names(each)
